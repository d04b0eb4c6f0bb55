"""Turns of a dumped rollout -> a conversation that can be continued after them, with its tools in the same state."""

import re
from collections.abc import Sequence
from enum import StrEnum

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.rollout_dumps import DumpedRollout, DumpedTurn
from verl_pivot.data.rollout_records import CallRecord, RolloutRecord
from verl_pivot.playing.conversation import BegunConversation, in_characters
from verl_pivot.playing.player import PlayerTurn
from verl_pivot.playing.turn_form import MessageForm, SameMessageForm, with_text
from verl_pivot.rollout.observations import without_closing_tags
from verl_pivot.rollout.observed_turn import ObservedTurn
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.tool_response import without_told_seconds
from verl_pivot.types import ErrorKind, Message, Role, ToolCall

_LEFT_OUT = re.compile(r"\n\.\.\. \[(\d{1,12}) characters left out\] \.\.\.\n")


class NotReplayed(StrEnum):
    """Reason why a conversation cannot be continued after a turn, or the state of its tools cannot be restored."""

    OTHER_RECORD = "a turn does not have one observation for each recorded call"
    OTHER_FORM = "observations do not have the format of --tool-format"
    HALF_CHARACTERS = "invalid Unicode in a text (half of a surrogate pair)"
    OTHER_OPENING = "the environment does not begin with the recorded observation"
    OTHER_ANSWER = "an earlier call now gives another result than recorded"


def begun_conversation(
    rollout: DumpedRollout, number: int, form: MessageForm | SameMessageForm
) -> BegunConversation | NotReplayed:
    """The rollout up to and including turn `number` and its observations.

    Args:
        rollout: A rollout with tools, whose last turn is after turn `number`.
        number: Index of the turn, counted from 0.
        form: How turns and observations were written into the rollout's messages.
    """
    assert rollout.record is not None, rollout.uid
    messages: list[Message] = []
    turns: list[PlayerTurn] = []
    observed: list[ObservedTurn] = []
    for index, turn in enumerate(rollout.turns[: number + 1]):
        calls = [call for call in rollout.record.calls if call.turn == index]
        if len(calls) != len(turn.observations):
            return NotReplayed.OTHER_RECORD
        if not all(_is_whole(text) for text in (turn.recorded_text, *turn.observations)):
            return NotReplayed.HALF_CHARACTERS
        turns.append(_player_turn(turn, _tokens_before(rollout.record, index)))
        observed.append(ObservedTurn(texts=list(turn.observations), calls=[in_characters(call) for call in calls]))
        messages = _with_turn(messages, turn, calls, form)
    return BegunConversation(messages=tuple(messages), turns=tuple(turns), observed=tuple(observed))


def _is_whole(text: str) -> bool:
    return text.encode(errors="replace").decode() == text


def _player_turn(turn: DumpedTurn, num_prompt_tokens: int) -> PlayerTurn:
    """The turn as text, exactly as the policy wrote it."""
    return PlayerTurn(
        content=turn.recorded_text,
        raw_text=turn.recorded_text,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=turn.num_tokens,
    )


def _tokens_before(record: RolloutRecord, index: int) -> int:
    observed = sum(call.num_tokens for call in record.calls if call.turn < index)
    return record.prompt_tokens + sum(record.turn_tokens[:index]) + observed


def _with_turn(
    messages: list[Message], turn: DumpedTurn, calls: Sequence[CallRecord], form: MessageForm | SameMessageForm
) -> list[Message]:
    """The messages of the agent loop with a turn added; the turn's calls are part of its text."""
    if isinstance(form, SameMessageForm):
        return with_text(messages, turn.recorded_text + "".join(turn.observations))
    added = [Message(role=Role.ASSISTANT, content=turn.recorded_text)]
    shown = list(map(without_chat_tokens, turn.observations))
    if form.are_users or any(call.error_kind is ErrorKind.NO_ACTION for call in calls):
        added.append(Message(role=Role.USER, content="\n".join(shown)))
    else:
        added += [
            Message(role=Role.TOOL, content=text, name=call.name or None)
            for text, call in zip(shown, calls, strict=True)
        ]
    return [*messages, *added]


def begins_as_recorded(prompt: Sequence[Message], opening: str) -> bool:
    """Whether a recorded prompt ends with the first observations of its environments.

    Args:
        prompt: The prompt of a dumped rollout.
        opening: First observations of fresh environments of the same row; "" if they show nothing.
    """
    shown = prompt[-1].content
    return shown.endswith(opening) or _ends_with_cut(shown, opening)


async def replay(rollout: DumpedRollout, number: int, toolbox: Toolbox, template: str) -> NotReplayed | str | None:
    """Run the calls of all turns up to turn `number` again, to restore the state of the tools.

    Args:
        rollout: The dumped rollout.
        number: Index of the last turn whose calls are run.
        toolbox: Fresh tools of the same row.
        template: Text around each observation in the rollout.

    Returns:
        None if each call got its recorded answer; otherwise the reason, or the text of a failure of the system.
    """
    assert rollout.record is not None, rollout.uid
    for index, turn in enumerate(rollout.turns[: number + 1]):
        calls = [call for call in rollout.record.calls if call.turn == index]
        for position, (call, shown) in enumerate(zip(calls, turn.observations, strict=True)):
            if call.arguments is None:  # the call could not be read, so no tool was called
                continue
            text = _without_template(shown, template)
            if text is None:
                return NotReplayed.OTHER_FORM
            outcome = await toolbox.run_one(ToolCall(name=call.name, arguments=call.arguments), position)
            if outcome.observation is None:
                return outcome.failure
            answered = without_told_seconds(without_closing_tags(outcome.observation.text, template))
            if not _is_same(answered, without_told_seconds(text), is_cut=call.truncated):
                return NotReplayed.OTHER_ANSWER
    return None


def _without_template(shown: str, template: str) -> str | None:
    """The observation without the template's text around it; None if the observation does not fit the template."""
    before, _, behind = template.partition("{text}")
    if not (shown.startswith(before) and shown.endswith(behind) and len(shown) >= len(before) + len(behind)):
        return None
    return shown[len(before) : len(shown) - len(behind)]


def _is_same(text: str, shown: str, *, is_cut: bool) -> bool:
    """Whether a tool's answer equals the shown observation, in which a note may replace the middle."""
    if not is_cut:
        return text == shown
    notes = _LEFT_OUT.finditer(shown)
    return any(
        text.startswith(shown[: note.start()])
        and text.endswith(shown[note.end() :])
        and len(text) == note.start() + int(note[1]) + len(shown) - note.end()
        for note in notes
    )


def _ends_with_cut(shown: str, text: str) -> bool:
    """Whether the shown text ends with a text in which a note replaces the middle."""
    for note in _LEFT_OUT.finditer(shown):
        end = shown[note.end() :]
        num_before = len(text) - int(note[1]) - len(end)
        if num_before >= 0 and text.endswith(end) and shown[: note.start()].endswith(text[:num_before]):
            return True
    return False
