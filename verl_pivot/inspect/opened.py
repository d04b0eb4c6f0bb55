"""ListedRollout -> OpenedRollout: its prompt and its turns with their texts, read from the dump."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verl_pivot.data.rollout_dumps import FOLDER
from verl_pivot.inspect.queries import ListedRollout, RunIndex
from verl_pivot.inspect.texts import line_with_record, read_lines
from verl_pivot.rewards.process_record import process_record
from verl_pivot.types import Json, JsonObject

_SHOWN_BESIDE = frozenset({"turns", "calls", "prompt", "input", "output", "sampled_spans", "turn_ends"})
"""Fields of a line that are shown in the conversation, not in the table of fields."""
_NOT_RECORDED = "(pivot.record left this text out)"


class OpenedTurn(msgspec.Struct, kw_only=True):
    """One turn of the policy, with its calls, observations and reward."""

    text: str
    has_text: bool = True
    """Whether its text stands in the dump, which `pivot.record` may leave out."""
    num_tokens: int | None = None
    ended: bool | None = None
    """Whether the policy ended the turn by itself."""
    observations: list[str] = []
    calls: list[JsonObject] = []
    """[num_calls] fields of each call's record."""
    seconds: float | None = None
    """Seconds of waiting for the engine; None if they are not known."""
    tool_seconds: float | None = None
    """Seconds of waiting for the tools after the turn; None if there were none, or they are not known."""
    step: JsonObject | None = None
    """Outcome of the turn in a notebook, as `DumpedStep`."""
    reward: float | None = None
    """Reward of the turn alone; None if turns have none of their own."""


class OpenedRow(msgspec.Struct, kw_only=True):
    """Tokens of one row of a rollout, as the update sees them."""

    num_turns: int
    sampled_spans: list[tuple[int, int]]
    """[num_spans] first position, and position after the last, of each stretch of the response that the policy
    sampled."""
    turn_ends: list[int]
    """[num_turns] positions in the response, each behind the last sampled token of a turn."""


class OpenedRollout(msgspec.Struct, kw_only=True):
    """One rollout with its texts."""

    prompt: list[JsonObject] = []
    """[num_messages] messages with `role` and `content`; a single one with role None if it is from verl's own dump."""
    turns: list[OpenedTurn]
    rows: list[OpenedRow] = []
    """[num_rows] tokens of its rows; none in dumps of earlier versions and of verl."""
    fields: JsonObject
    """All other fields of its line with the record."""


def open_rollout(index: RunIndex, found: ListedRollout) -> OpenedRollout:
    """A rollout of the index; its prompt may stand in an earlier one of its group, or in verl's own dump of the step.

    Raises:
        DataError: If the dump cannot be read, or was replaced since it was listed.
    """
    place = index.row_place(found)
    lines = read_lines(place)
    last = line_with_record(lines)
    fields = {name: value for name, value in last.items() if name not in _SHOWN_BESIDE}
    if "turns" not in last and isinstance(last.get("output"), str):  # a line of verl's own
        return OpenedRollout(
            prompt=_text_prompt(last.get("input")), turns=[OpenedTurn(text=str(last["output"]))], fields=fields
        )
    turns = [_turn(turn) for line in lines for turn in _objects(line.get("turns"))]
    for call in _objects(last.get("calls")):
        number = call.get("turn")
        if isinstance(number, int) and 0 <= number < len(turns):
            turns[number].calls.append(call)
    for turn, reward in zip(turns, _turn_rewards(last, turns), strict=False):
        turn.reward = reward
    prompt = _prompt_of(lines)
    if not prompt and "sampled_spans" in last:
        prompt = _first(_prompt_of(read_lines(each)) for each in index.earlier(found))
    return OpenedRollout(
        prompt=prompt or _text_prompt(_input_of_verl(place.path, found.row.group_name)),
        turns=turns,
        rows=[row for line in lines if (row := _row(line)) is not None],
        fields=fields,
    )


def _prompt_of(lines: Iterable[JsonObject]) -> list[JsonObject]:
    """The prompt's messages in the lines of a rollout; empty if they stand only in a line of another rollout."""
    return _first(list(_objects(line.get("prompt"))) for line in lines)


def _first(found: Iterable[list[JsonObject]]) -> list[JsonObject]:
    return next((each for each in found if each), [])


def _row(line: JsonObject) -> OpenedRow | None:
    try:
        return msgspec.convert({**line, "num_turns": len(list(_objects(line.get("turns"))))}, OpenedRow)
    except msgspec.ValidationError:  # a line of an earlier version, or not ours
        return None


def _turn(fields: JsonObject) -> OpenedTurn:
    tokens, step, observations = fields.get("num_tokens"), fields.get("step"), fields.get("observations")
    return OpenedTurn(
        text=_as_text(fields.get("text", _NOT_RECORDED)),
        has_text="text" in fields,
        seconds=_number(fields.get("seconds")),
        tool_seconds=_number(fields.get("tool_seconds")),
        num_tokens=tokens if isinstance(tokens, int) else None,
        ended=ended if isinstance(ended := fields.get("ended"), bool) else None,
        observations=[_as_text(each) for each in observations] if isinstance(observations, list) else [],
        step=step if isinstance(step, dict) else None,
    )


def _turn_rewards(fields: JsonObject, turns: Sequence[OpenedTurn]) -> Sequence[float | None]:
    """[num_turns] rewards of a judge of turns, else returns of steps, else sums of an environment's rewards."""
    if (judged := _judged_rewards(fields.get("reward_info"))) is not None:
        return judged
    return [_number(turn.step.get("step_return")) if turn.step else _paid(turn.calls) for turn in turns]


def _judged_rewards(reward_info: Json) -> Sequence[float] | None:
    try:
        record = process_record(reward_info) if isinstance(reward_info, dict) else None
    except (msgspec.DecodeError, TypeError):  # the user's own reward function may use the name for something else
        return None
    return None if record is None else record.rewards


def _paid(calls: Sequence[JsonObject]) -> float | None:
    rewards = [reward for call in calls if (reward := _number(call.get("reward"))) is not None]
    return sum(rewards) if rewards else None


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _objects(value: Json) -> Iterator[dict[str, Any]]:
    yield from (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


def _text_prompt(text: Json) -> list[JsonObject]:
    return [{"role": None, "content": text}] if isinstance(text, str) else []


def _input_of_verl(path: Path, group_name: str | None) -> str | None:
    """The prompt of a group as text, from verl's own dump of the step; None if it is not there."""
    folder = path.absolute().parent
    if group_name is None or folder.name != FOLDER:
        return None
    try:
        with (folder.parent / path.name).open("rb") as file:
            of_group = b'"uid": ' + json.dumps(f"{group_name}_")[:-1].encode()
            line = json.loads(next((line for line in file if of_group in line), b"null"))
    except (OSError, ValueError, RecursionError):  # the prompt is an addition, which a dump of verl's may lack
        return None
    text = line.get("input") if isinstance(line, dict) else None
    return text if isinstance(text, str) else None
