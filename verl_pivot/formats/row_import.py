"""One row of a foreign format -> Trajectory, with its id, its verifier and where it came from."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError, as_object, encode_json, type_in_words
from verl_pivot.data.messages import check_conversation
from verl_pivot.data.tool_schemas import parse_tools, refuse_foreign_nulls, refuse_nulls
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.formats.columns import decoded, join_pieces
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import Format, detected_format, format_named
from verl_pivot.types import Json, JsonObject, Message, Role, Trajectory

_VERIFIER_COLUMNS = frozenset({"verifier", "verifier_options"})
_VERIFIER = {"name", "options"}
# The opening tag is optional: some templates put it into the prompt, as `rollout.actions` reads it too.
_THINKING = re.compile(r"^\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How to read rows that do not say it themselves."""

    format: str | None = None
    """Registered name; None: told by each row."""
    format_modules: tuple[str, ...] = ()
    """Modules that register formats of one's own."""
    thinking: Literal["keep", "strip"] = "keep"
    verifier: str = "tool_call"
    verifier_options: JsonObject = field(default_factory=dict)
    tools: tuple[JsonObject, ...] = ()
    outcome: Literal["passed", "all"] = "passed"


class ParsedRow(NamedTuple):
    trajectory: Trajectory
    format: str
    scores: tuple[float, ...]
    """Scores of published samples at the last turn; empty where there are none."""
    num_merged: int
    ignored_columns: frozenset[str]


def parse_row(row: RawRow, options: ImportOptions) -> ParsedRow:
    """One row of a registered format as a trajectory.

    Raises:
        BadRowError: If it breaks its format.
        ConfigError: If the options name no format.
    """
    try:
        columns = row.decoded()
        found = detected_format(columns) if options.format is None else format_named(options.format)
        if row.place.unit == "row":
            _refuse_mangled(columns)
        parsed = _as_trajectory(found, columns, row.place, options)
        check_conversation(parsed.trajectory.messages)
        refuse_foreign_nulls(parsed.trajectory.messages, parsed.trajectory.tools)
    except RecursionError as error:
        raise BadRowError("not_json", "the row is nested too deeply") from error
    return parsed


def _as_trajectory(format: Format, row: JsonObject, place: Place, options: ImportOptions) -> ParsedRow:
    found = format.read(row)
    messages = _merge_split_turns([_with_thinking(message, options) for message in found.messages])
    tools = parse_tools(found.tools) or options.tools
    identity = _identity(found, place, messages, tools)
    verifier = _verifier(row, options)
    provenance = found.metadata.get(PROVENANCE) or {**_provenance(place, identity), **found.notes}
    trajectory = Trajectory(
        id=identity.id,
        messages=messages,
        tools=tools,
        passed=found.passed,
        verifier=verifier.name,
        verifier_options=verifier.options,
        metadata={**found.metadata, PROVENANCE: provenance},
        expert_turns=found.expert_turns,
    )
    ignored = frozenset(row.keys() - found.columns - _VERIFIER_COLUMNS)
    return ParsedRow(trajectory, format.name, found.scores, len(found.messages) - len(messages), ignored)


def _refuse_mangled(value: Json) -> None:
    """Arguments that parquet kept as structs have the keys of every row's."""
    if isinstance(value, dict):
        arguments = value.get("arguments")
        if isinstance(arguments, dict):
            refuse_nulls(arguments, f"{value.get('name')}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _refuse_mangled(child)


def _with_thinking(message: Message, options: ImportOptions) -> Message:
    """Inline thinking moved out of the content, and dropped where the policy says so."""
    if message.role is not Role.ASSISTANT:
        return message
    content = message.content
    if message.reasoning is None and "</think>" in content and (inline := _THINKING.match(content)):
        message = replace(message, content=content[inline.end() :], reasoning=inline[1].strip())
    if message.content.lstrip().startswith("<think>"):
        raise BadRowError("unclear_thinking", "<think> that is never closed, or that follows other reasoning")
    return replace(message, reasoning=None) if options.thinking == "strip" else message


def _merge_split_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join text and the calls right after it that a log wrote as two messages; others stay, and are refused."""
    merged: list[Message] = []
    for message in messages:
        before = merged[-1] if merged else None
        joined = None
        if before is not None and message.tool_calls and not before.tool_calls:
            joined = join_pieces(before, message)
        if joined is None:
            merged.append(message)
        else:
            merged[-1] = joined
    return tuple(merged)


class _Verifier(NamedTuple):
    name: str
    options: JsonObject


def _verifier(row: JsonObject, options: ImportOptions) -> _Verifier:
    """The row's own, a name (with our column of options) or {"name", "options"}; else the one of the import."""
    verifier, own = row.get("verifier"), row.get("verifier_options")
    if isinstance(verifier, str) and own is not None:
        return _Verifier(verifier, as_object(decoded(own, "verifier_options"), "verifier_options"))
    if verifier is None or verifier == options.verifier:
        return _Verifier(options.verifier, options.verifier_options)
    if isinstance(verifier, str):
        return _Verifier(verifier, {})
    if not isinstance(verifier, dict) or not isinstance(verifier.get("name"), str) or verifier.keys() - _VERIFIER:
        raise BadRowError(
            "bad_verifier", f'verifier must be a name or {{"name", "options"}}, got {type_in_words(verifier)}'
        )
    return _Verifier(str(verifier["name"]), as_object(verifier.get("options") or {}, "verifier.options"))


class _Identity(NamedTuple):
    id: str
    split_by: str


def _identity(found: Conversation, place: Place, messages: Sequence[Message], tools: Sequence[JsonObject]) -> _Identity:
    """Id of the trajectory, and what its split follows: the task where the row names one.

    A row without any name gets one from its content, and its split from its first request, which the
    other turns of the same conversation share.
    """
    if found.id is not None:
        return _Identity(found.id, found.task or found.id)
    if found.task is not None:
        # Without a number of the trial, the content tells the trajectories of a task apart.
        trial = found.trial or _digest(messages, tools)
        return _Identity("-".join([Path(place.file).stem, found.task, trial]), found.task)
    first_user = next((i for i, message in enumerate(messages) if message.role is Role.USER), 0)
    return _Identity(f"sha-{_digest(messages, tools)}", f"sha-{_digest(messages[: first_user + 1], tools)}")


def _digest(messages: Sequence[Message], tools: Sequence[JsonObject]) -> str:
    text = encode_json([[message.as_dict() for message in messages], list(tools)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _provenance(place: Place, identity: _Identity) -> JsonObject:
    return {"file": Path(place.file).name, place.unit: place.number, "split_by": identity.split_by}
