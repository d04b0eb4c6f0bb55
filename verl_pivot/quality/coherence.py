"""Filter `coherence`: messages in a sensible order, no missing end, no repeated turns and no invented identifiers."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.messages import check_conversation
from verl_pivot.quality.contract import FilterOptions, Finding, Names, TrajectoryFilter, shortened
from verl_pivot.quality.invented_values import invented_values
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import Json, Message, Role, Trajectory


class CoherenceOptions(FilterOptions):
    order: bool = True
    """Whether to check that every message may follow the one before it."""
    last_turn: Literal["text", "result", "any"] = "result"
    """Allowed last assistant turns: only those without calls, also those whose calls have results, or any.

    A trajectory with `expert_turns` "last" is one action with its state and may end in a call.
    """
    final_tools: Names = ()
    """Tools whose call may end a conversation, such as a transfer to a human."""
    max_repeated_turns: int | None = Field(default=0, ge=0)
    """Maximum number of turns that repeat the text and calls of the turn before, after the same messages; null: any
    number."""
    max_invented_values: int | None = Field(default=0, ge=0)
    """Maximum number of identifiers in calls that the assistant was never told; null: any number."""
    may_invent: Names = ()
    """Arguments, written as tool.argument, whose values the assistant may make up."""


@register_filter("coherence", options=CoherenceOptions)
class Coherence(TrajectoryFilter):
    def __init__(self, options: CoherenceOptions) -> None:
        self._options = options

    def judge(self, trajectory: Trajectory) -> Finding | None:
        messages, options = trajectory.messages, self._options
        if options.order and (finding := _bad_order(messages)):
            return finding
        if trajectory.expert_turns != "last" and (finding := self._bad_end(messages)):
            return finding
        repeated = _repeated_turns(messages)
        if options.max_repeated_turns is not None and len(repeated) > options.max_repeated_turns:
            turn, message = repeated[0]
            detail = f"{len(repeated)} repeated turns, the first is turn {turn}: {message.as_dict()!r}"
            return Finding(reason="repeated_turn", detail=shortened(detail))
        return self._invented(trajectory)

    def _bad_end(self, messages: Sequence[Message]) -> Finding | None:
        at = max((at for at, message in enumerate(messages) if message.role is Role.ASSISTANT), default=None)
        if at is None or self._options.last_turn == "any":
            return None
        names = [call.name for call in messages[at].tool_calls if call.name not in self._options.final_tools]
        has_results = len(messages) > at + 1
        if not names or (has_results and self._options.last_turn == "result"):
            return None
        what = "and no answer follows" if has_results else "and no result follows"
        return Finding(reason="ends_in_call", detail=shortened(f"the last turn calls {', '.join(names)}, {what}"))

    def _invented(self, trajectory: Trajectory) -> Finding | None:
        limit = self._options.max_invented_values
        if limit is None:
            return None
        invented = invented_values(trajectory, self._options.may_invent)
        if len(invented) <= limit:
            return None
        named = ", ".join(f"turn {value.turn}, {value.path}: {value.value!r}" for value in invented)
        return Finding(reason="invented_value", detail=shortened(named))


def _bad_order(messages: Sequence[Message]) -> Finding | None:
    try:
        check_conversation(messages)
    except BadRowError as error:
        return Finding(reason=error.reason, detail=shortened(str(error)))
    roles = [message.role for message in messages]
    for number in range(1, len(roles)):
        if roles[number - 1] is roles[number] is Role.USER:
            return Finding(reason="consecutive_user", detail=f"messages {number - 1} and {number} are both the user's")
        if roles[number] is Role.SYSTEM and roles[number - 1] is not Role.SYSTEM:
            return Finding(reason="late_system", detail=f"message {number} is the system's, after messages of others")
    return None


def _repeated_turns(messages: Sequence[Message]) -> list[tuple[int, Message]]:
    """[num_repeated] (turn, message) of assistant turns that repeat the turn before, after the same messages."""
    positions = [position for position, message in enumerate(messages) if message.role is Role.ASSISTANT]
    repeated = []
    previous: tuple[Json, Json] | None = None
    for turn, position in enumerate(positions):
        read: Json = [message.content for message in messages[positions[turn - 1] + 1 if turn else 0 : position]]
        said: Json = [messages[position].content, *_calls(messages[position])]
        if previous == (read, said):
            repeated.append((turn, messages[position]))
        previous = (read, said)
    return repeated


def _calls(message: Message) -> list[Json]:
    return [[call.name, call.arguments] for call in message.tool_calls]
