"""PlayedNotebook: a finished rollout in a notebook -> its record, its outcome and the rows that verl stores."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from verl_pivot.data.rollout_dumps import DumpedStep, DumpedTurn, encode_transcript
from verl_pivot.data.rollout_records import RECORD_FIELD, VERDICT_FIELD, RolloutRecord, RoutingCost, StopReason
from verl_pivot.rollout.context_rows import ContextRow, RowLayout, Stretch, rows_of
from verl_pivot.rollout.notebook import RanCell
from verl_pivot.rollout.notebook_turns import NotebookTurn
from verl_pivot.rollout.turn_sampler import MAX_EMPTY_ANSWERS, EngineReport
from verl_pivot.types import JsonObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """One step of the policy: its turn, and what came of it."""

    index: int
    """Index of the step within the trajectory, from 0."""
    turn: NotebookTurn
    message: JsonObject
    """The turn as a chat message."""
    num_tokens: int
    """Number of sampled tokens."""
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    ran: RanCell
    seconds: float = 0.0
    """Seconds that the cell took, with the calls that it made."""
    routed_experts: Any = None
    """Experts that a mixture-of-experts model routed the tokens through this step to; None if the engine returns none."""

    @property
    def facts(self) -> StepFacts:
        """What the step is rewarded by."""
        output = self.ran.output
        return StepFacts(
            has_form=self.turn.has_form,
            ran=output is not None and output.ran,
            num_errors=0 if output is None else output.num_errors,
            num_outputs=0 if output is None else output.num_outputs,
        )
