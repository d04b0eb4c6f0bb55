"""Lines of a dump -> RolloutRow: the few values of each rollout that the list needs, without its texts."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from verl_pivot.data.rollout_dumps import place_in_dump
from verl_pivot.runs.growing_lines import PlacedLine
from verl_pivot.types import ErrorKind, Json

_MAX_TEXT = 200
"""Maximum number of characters of a text in the list, except for ids; an opened rollout shows all of it."""
_MAX_INTEGER = (1 << 62) - 1
"""Largest number that a column of whole numbers has; a line with a larger one is listed without it."""
_Integer = Annotated[int, msgspec.Meta(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]


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
    """Fields that are read of a line, from dumps of this package or of verl."""

    uid: str | None = None
    step: _Integer | None = None
    score: float | None = None
    verifier: str | None = None
    reason: str | None = None
    detail: str | None = None
    kept: bool | None = None
    left_out: str | None = None
    trajectory_id: str | None = None
    turn_index: _Integer | None = None
    data_source: str | None = None
    prompt_id: str | None = None
    stop_reason: str | None = None
    failure: str | None = None
    calls: list[_ListedCall] = []
    turns: list[_ListedTurn] | None = None
    turn_tokens: list[int] | None = None
    prompt_tokens: _Integer | None = None
    response_tokens: _Integer | None = None
    generate_seconds: float | None = None
    tool_seconds: float | None = None


_DECODER = msgspec.json.Decoder(_ListedLine)
_FIELDS = msgspec.structs.fields(_ListedLine)


class ReadRows(NamedTuple):
    """Rollouts of some lines of a dump."""

    columns: dict[str, list[Any]]
    """{name of a value of RolloutRow: [num_rollouts] values}"""
    bad_lines: list[BadLine]


class RowReader:
    """Reader of one dump, whose rollouts may have several neighbouring lines each."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        """Lines of the last rollout, to which the next line may belong too."""
        self.num_strange = 0
        """Number of lines so far that have neither a uid nor a score, perhaps from another version of verl."""

    def read(self, lines: Iterable[PlacedLine], *, is_all: bool) -> ReadRows:
        """The rollouts that are complete with these lines.

        Args:
            lines: The next lines of the dump.
            is_all: Whether they are the last ones at present, so that the last rollout is complete.
        """
        rollouts: list[list[_Part]] = []
        bad_lines = []
        for line in lines:
            try:
                found = _decoded(line.text)
            except (ValueError, RecursionError) as error:
                bad_lines.append(BadLine(line.number, str(error)))
                continue
            self.num_strange += found.uid is None and found.score is None and b'"score"' not in line.text
            part = _Part(line, found, _rollout_id(found.uid))
            if self._parts and (part.id is None or part.id != self._parts[0].id):
                rollouts.append(self._parts)
                self._parts = []
            self._parts.append(part)
        if is_all and self._parts:
            rollouts.append(self._parts)
            self._parts = []
        return ReadRows(_columns(rollouts), bad_lines)


class _Part(NamedTuple):
    line: PlacedLine
    found: _ListedLine
    id: str | None


def _rollout_id(uid: str | None) -> str | None:
    """The part of `<group>_<session>_<part>` that all parts of a rollout share; None for a rollout of one line."""
    name = uid.rpartition("_")[0] if uid else ""
    return name if "_" in name else None


def _decoded(text: bytes) -> _ListedLine:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # msgspec refuses some lines that Python's json writes, such as those with NaN, and fields of other types.
        fields = json.loads(text.decode())  # given bytes, json.loads would guess the encoding
    if not isinstance(fields, dict):
        raise ValueError("the line is not a JSON object")  # noqa: TRY004  what is wrong is the text
    return _ListedLine(**dict(_usable(fields)))


def _usable(fields: dict[str, Json]) -> Iterator[tuple[str, Any]]:
    """The fields whose values fit the types of _ListedLine."""
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


def _columns(rollouts: Sequence[list[_Part]]) -> dict[str, list[Any]]:
    """Columns of the rollouts' values, since making a row for each rollout takes twice the time."""
    found = [parts[0].found if len(parts) == 1 else _joined([part.found for part in parts]) for parts in rollouts]
    places = [(parts[0].line, parts[-1].line) for parts in rollouts]
    return {
        "line": [first.number for first, _ in places],
        "byte_offset": [first.offset for first, _ in places],
        "num_bytes": [last.offset + len(last.text) - first.offset for first, last in places],
        **{name: list(map(_VALUES.get(name, attrgetter(name)), found)) for name in RolloutRow._fields[3:]},
    }


def _joined(parts: Sequence[_ListedLine]) -> _ListedLine:
    """The part of a rollout that has its record, with the turns of all."""
    in_order = sorted(parts, key=lambda part: place_in_dump(part.uid or ""))
    last = next((part for part in reversed(in_order) if part.stop_reason is not None), in_order[-1])
    has_turns = any(part.turns is not None for part in parts)
    turns = [turn for part in parts for turn in part.turns or ()]
    return msgspec.structs.replace(last, turns=turns if has_turns else None)


def _sampled_tokens(found: _ListedLine) -> int | None:
    tokens = found.turn_tokens or [turn.num_tokens for turn in found.turns or () if turn.num_tokens is not None]
    total = sum(tokens)
    return total if tokens and abs(total) <= _MAX_INTEGER else None


def _shortened(text: str | None) -> str | None:
    return None if text is None else text[:_MAX_TEXT]


def _names(names: Iterable[str | None]) -> str:
    return ",".join(dict.fromkeys(name[:_MAX_TEXT] for name in names if name))


_VALUES: dict[str, Callable[[_ListedLine], Any]] = {
    "group_name": lambda found: None if found.uid is None else found.uid.partition("_")[0],
    "data_source": lambda found: _shortened(found.data_source),
    "verifier": lambda found: _shortened(found.verifier),
    "reason": lambda found: _shortened(found.reason) or None,
    "detail": lambda found: _shortened(found.detail) or None,
    "left_out": lambda found: _shortened(found.left_out),
    "stop_reason": lambda found: _shortened(found.stop_reason),
    "failure": lambda found: _shortened(found.failure) or None,
    "tools": lambda found: _names(call.name for call in found.calls) if found.calls else "",
    "error_kinds": lambda found: _names(call.error_kind for call in found.calls) if found.calls else "",
    "num_turns": lambda found: None if found.turns is None else len(found.turns),
    "num_calls": lambda found: sum(call.error_kind != ErrorKind.NO_ACTION for call in found.calls),
    "num_errors": lambda found: sum(
        call.status == "tool_error" and call.error_kind != ErrorKind.NO_ACTION for call in found.calls
    ),
    "sampled_tokens": _sampled_tokens,
}
"""{field of RolloutRow: function that computes it}, for fields that are not copied from the line."""
