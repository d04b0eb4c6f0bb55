"""Lines of a dump -> RolloutRow: the few values of each rollout by which rollouts are listed, without its texts."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from verl_pivot.runs.growing_lines import PlacedLine
from verl_pivot.types import Json

_MAX_DETAIL = 200
"""Characters of an explanation that the list has; the whole one is shown with its rollout."""


class RolloutRow(NamedTuple):
    """A rollout as the list has it; the names are those of the columns that a condition may use."""

    line: int
    """First line of the rollout in its dump, from 1."""
    byte_offset: int
    num_bytes: int
    """Bytes from the beginning of its first line to the end of its last."""
    uid: str | None
    group_name: str | None
    """Name of the group in verl, which the rollouts of one prompt in one step share."""
    step: int | None
    prompt_id: str | None
    trajectory_id: str | None
    turn_index: int | None
    data_source: str | None
    verifier: str | None
    score: float | None
    reason: str | None
    detail: str | None
    kept: bool | None
    left_out: str | None
    stop_reason: str | None
    failure: str | None
    tools: str
    """Names of the tools that were called, each once, with commas."""
    error_kinds: str
    """Kinds of the policy's mistakes in calls, each once, with commas."""
    num_turns: int | None
    num_calls: int
    num_errors: int
    """Calls that the policy got wrong."""
    sampled_tokens: int | None
    prompt_tokens: int | None
    response_tokens: int | None
    generate_seconds: float | None
    tool_seconds: float | None


class BadLine(NamedTuple):
    """A line that is no rollout."""

    number: int
    why: str


class _ListedTurn(msgspec.Struct, gc=False):
    num_tokens: int | None = None


class _ListedCall(msgspec.Struct, gc=False):
    name: str = ""
    status: str = ""
    error_kind: str | None = None


class _ListedLine(msgspec.Struct, gc=False):
    """What is read of a line of ours, or of verl's own dumps."""

    uid: str | None = None
    step: int | None = None
    score: float | None = None
    verifier: str | None = None
    reason: str | None = None
    detail: str | None = None
    kept: bool | None = None
    left_out: str | None = None
    trajectory_id: str | None = None
    turn_index: int | None = None
    data_source: str | None = None
    prompt_id: str | None = None
    stop_reason: str | None = None
    failure: str | None = None
    calls: list[_ListedCall] = []
    turns: list[_ListedTurn] | None = None
    turn_tokens: list[int] | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    generate_seconds: float | None = None
    tool_seconds: float | None = None


_DECODER = msgspec.json.Decoder(_ListedLine)
_FIELDS = msgspec.structs.fields(_ListedLine)


class RowReader:
    """Reader of one dump, whose rollouts may have several neighbouring lines each."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        """Lines of the last rollout, which the next line may belong to."""

    def read(self, lines: Iterable[PlacedLine], *, is_all: bool) -> Iterator[RolloutRow | BadLine]:
        """A row for each rollout.

        Args:
            lines: The next lines of the dump.
            is_all: Whether they are the last ones at present, so that the last rollout is whole.
        """
        for line in lines:
            try:
                part = _Part(line, _decoded(line.text))
            except (ValueError, RecursionError) as error:
                yield BadLine(line.number, str(error))
                continue
            if self._parts and not part.continues(self._parts[0]):
                yield _row(self._parts)
                self._parts = []
            self._parts.append(part)
        if is_all and self._parts:
            yield _row(self._parts)
            self._parts = []


class _Part(NamedTuple):
    line: PlacedLine
    found: _ListedLine

    def continues(self, first: "_Part") -> bool:
        """Whether both are parts of one rollout, by `<group>_<session>_<part>`."""
        uid, other = self.found.uid, first.found.uid
        return bool(uid and other and uid.count("_") > 1 and uid.rsplit("_", 1)[0] == other.rsplit("_", 1)[0])


def _decoded(text: bytes) -> _ListedLine:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # What Python's json writes and msgspec refuses, such as NaN, and fields of other types than ours.
        fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the line is no JSON object")  # noqa: TRY004  what is wrong is the text
    return _ListedLine(**dict(_usable(fields)))


def _usable(fields: dict[str, Json]) -> Iterator[tuple[str, Any]]:
    """The fields that have a type of ours."""
    for field in _FIELDS:
        if (value := _plain(fields.get(field.name))) is not None:
            try:
                yield field.name, msgspec.convert(value, field.type)
            except msgspec.ValidationError:
                continue


def _plain(value: Json) -> Json:
    """The value with escapes for lone surrogates, which no column can hold, and None for NaN and infinity."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(parts: list[_Part]) -> RolloutRow:
    """The row of a rollout, whose values are those of the part that has its record."""
    lines, found = zip(*parts, strict=True)
    last = next((part for part in reversed(found) if part.stop_reason is not None), found[-1])
    turns = [turn for part in found for turn in part.turns or ()]
    tokens = last.turn_tokens or [turn.num_tokens for turn in turns if turn.num_tokens is not None]
    return RolloutRow(
        line=lines[0].number,
        byte_offset=lines[0].offset,
        num_bytes=lines[-1].offset + len(lines[-1].text) - lines[0].offset,
        uid=last.uid,
        group_name=None if last.uid is None else last.uid.split("_")[0],
        step=_in_range(last.step),
        prompt_id=last.prompt_id,
        trajectory_id=last.trajectory_id,
        turn_index=_in_range(last.turn_index),
        data_source=last.data_source,
        verifier=last.verifier,
        score=last.score,
        reason=last.reason or None,
        detail=last.detail[:_MAX_DETAIL] if last.detail else None,
        kept=last.kept,
        left_out=last.left_out,
        stop_reason=last.stop_reason,
        failure=last.failure[:_MAX_DETAIL] if last.failure else None,
        tools=_names(call.name for call in last.calls),
        error_kinds=_names(call.error_kind for call in last.calls),
        num_turns=len(turns) if any(part.turns is not None for part in found) else None,
        num_calls=len(last.calls),
        num_errors=sum(call.status == "tool_error" for call in last.calls),
        sampled_tokens=_in_range(sum(tokens)) if tokens else None,
        prompt_tokens=_in_range(last.prompt_tokens),
        response_tokens=_in_range(last.response_tokens),
        generate_seconds=last.generate_seconds,
        tool_seconds=last.tool_seconds,
    )


def _names(names: Iterable[str | None]) -> str:
    return ",".join(dict.fromkeys(name[:_MAX_DETAIL] for name in names if name))


def _in_range(number: int | None) -> int | None:
    return number if number is not None and abs(number) < 1 << 62 else None
