"""Calls of one turn -> ObservedTurn: the texts that the policy reads after them, cut to their limit, and records."""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.engines.text_cut import CutText, Tokenizer, cut_to_tokens
from verl_pivot.rollout.observations import without_closing_tags, without_special_tokens
from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.types import ErrorKind, Malformed, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTurn:
    """Observations that follow one turn of the policy."""

    texts: list[str]
    """[num_calls] text that the policy reads after each call that began; the retry message alone if the turn has no
    call."""
    calls: list[CallRecord]
    results: list[str] = field(default_factory=list)
    """The texts without the template around them; empty if nothing was run."""
    seconds: float = 0.0
    """Seconds spent waiting for the tools."""
    failure: str = ""
    """Description of a failure of the system; "" if nothing failed."""
    is_bug: bool = False
    """Whether the failure is one of a tool's own code."""
    end: StopReason | None = None
    """Why the rollout ends with the turn; None if neither a tool nor the deadline of its calls ends it."""


def retry_message_in(observed: Iterable[ObservedTurn]) -> str:
    """The message that the policy read after a turn with neither a call nor an answer; "" if it read none."""
    retries = (each for each in observed if any(call.error_kind is ErrorKind.NO_ACTION for call in each.calls))
    return next((each.texts[0] for each in retries), "")


def unread_mistake(calls: Sequence[ToolCall | Malformed], *, is_answer: bool) -> ErrorKind | None:
    """Mistake of a turn that nothing is run after; None if its calls can be read, or it is an answer."""
    if any(isinstance(call, Malformed) for call in calls):
        return ErrorKind.MALFORMED_CALL
    return None if calls or is_answer else ErrorKind.NO_ACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationForm:
    """How observations become text that the policy reads."""

    max_tokens: int
    """Most tokens of one observation; in a longer one a note replaces the middle."""
    tokenizer: Tokenizer
    """Tokenizer of the policy, which counts these tokens."""
    special_tokens: Collection[str] = ()
    """Texts of the policy's special tokens, which observations must not hold."""
    template: str = "{text}"
    """Text around each observation."""

    def cut(self, outcome: CallOutcome) -> CutText:
        """The observation without special tokens and tags that would end it, cut; empty if the system failed."""
        if outcome.observation is None:
            return CutText("", 0, truncated=False)
        return self.cut_text(without_closing_tags(outcome.observation.text, self.template))

    def cut_text(self, text: str) -> CutText:
        """A text of a tool without special tokens and cut to the limit of an observation."""
        return cut_to_tokens(without_special_tokens(text, self.special_tokens), self.max_tokens, self.tokenizer)


async def observe(
    calls: Sequence[ToolCall | Malformed],
    toolbox: Toolbox,
    turn: int,
    form: ObservationForm,
    deadline: float = math.inf,
) -> ObservedTurn:
    """Run the calls of one turn.

    Args:
        calls: The calls in their order.
        toolbox: Tools of the rollout.
        turn: Index of the turn, from 0.
        form: Limit and form of the observations.
        deadline: Time of `time.monotonic` after which no call begins. A call that would have begun later has neither a
            text nor a record, and the rollout ends.
    """
    began = time.monotonic()
    outcomes = await toolbox.run(calls, deadline)
    seconds = time.monotonic() - began
    cuts = [form.cut(outcome) for outcome in outcomes]
    failed = next((outcome for outcome in outcomes if outcome.failure), None)
    late = StopReason.MAX_WALL_SECONDS if failed is None and len(outcomes) < len(calls) else None
    return ObservedTurn(
        texts=[form.template.replace("{text}", cut.text) for cut in cuts],
        results=[cut.text for cut in cuts],
        calls=[_call_record(outcome, turn, cut) for outcome, cut in zip(outcomes, cuts, strict=True)],
        seconds=seconds,
        failure="" if failed is None else failed.failure,
        is_bug=failed is not None and failed.is_bug,
        end=next((end for outcome in outcomes if outcome.observation and (end := outcome.observation.end)), late),
    )


def _call_record(outcome: CallOutcome, turn: int, cut: CutText) -> CallRecord:
    call, observation = outcome.call, outcome.observation
    status = CallStatus.OK
    if observation is None:
        status = CallStatus.SYSTEM_FAILURE
    elif observation.error is not None:
        status = CallStatus.TOOL_ERROR
    return CallRecord(
        turn=turn,
        name=call.name if isinstance(call, ToolCall) else "",
        arguments=call.arguments if isinstance(call, ToolCall) else None,
        status=status,
        error_kind=None if observation is None else observation.error,
        seconds=round(outcome.seconds, 6),
        num_tokens=cut.num_tokens,
        truncated=cut.truncated,
        reward=None if observation is None else observation.reward,
        detail=outcome.failure,
    )
