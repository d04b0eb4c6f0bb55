"""RolloutSoFar: a rollout with tools up to the end of one of its turns, from which it goes on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import RoutingCost, SearchRecord, StopReason
from verl_pivot.rollout.observed_turn import ObservedTurn
from verl_pivot.rollout.played_rollout import PlayedRollout, PolicyTurn
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_sampler import EngineReport
from verl_pivot.rollout.workflow_prompt import ShownWorkflows
from verl_pivot.types import JsonObject


class TurnContext(NamedTuple):
    """Tokens and messages that the next turn of the policy follows."""

    tokens: TokenRecord
    messages: list[JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSoFar:
    """A rollout up to the end of a turn, or of the observations after it; the next turn gives a new object."""

    context: TurnContext
    """Tokens and messages that the next turn follows."""
    tokens: TokenRecord
    """Tokens up to the end of the last turn: those of the whole rollout if it ends there."""
    messages: list[JsonObject]
    """Messages up to the same turn."""
    turns: tuple[PolicyTurn, ...] = ()
    observed: tuple[ObservedTurn, ...] = ()
    """[num_turns or num_turns - 1] observations after each turn."""
    engine: EngineReport = field(default_factory=EngineReport)
    deadline: float = math.inf
    """Time of `time.monotonic` after which no turn and no call begins; infinite before the first turn."""
    stop: StopReason | None = None
    """Why the rollout has ended; None if it goes on."""
    workflows: ShownWorkflows | None = None
    """Workflows that the prompt shows; None where `pivot.rollout.workflows` is off."""

    def played(
        self, prompt: Sequence[JsonObject], journey: RoutingCost | None, searched: SearchRecord | None = None
    ) -> PlayedRollout:
        """The rollout at its end.

        Args:
            prompt: The row's prompt.
            journey: Waiting and moves between engines that the router counted; None if it counts nothing.
            searched: Figures of the search that chose the rollout; None if it is the policy's own draw.
        """
        assert self.stop is not None, self
        return PlayedRollout(
            prompt_id=prompt_id(prompt), stop_reason=self.stop, tokens=self.tokens, messages=self.messages,
            turns=[*self.turns], observed=[*self.observed], engine=self.engine, journey=journey, searched=searched,
            workflows=self.workflows,
        )  # fmt: skip
