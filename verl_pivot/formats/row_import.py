"""One row of a foreign format -> Trajectory with its id, its verifier and its provenance."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError, as_object, encode_json, type_in_words
from verl_pivot.data.messages import check_conversation
from verl_pivot.data.tool_schemas import parse_tools, refuse_foreign_nulls, refuse_nulls
from verl_pivot.data.trajectories import with_expert_turns
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.formats.columns import decoded, join_pair
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import Format, detected_format, format_named
from verl_pivot.types import Json, JsonObject, Message, MessageError, Role, Trajectory

DEFAULT_VERIFIER = "tool_call"
_VERIFIER_COLUMNS = frozenset({"verifier", "verifier_options"})
_VERIFIER_KEYS = {"name", "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import; some apply only to rows that do not give the value themselves."""

    format: str | None = None
    """Registered name of the format of all rows; None detects the format of each row."""
    format_modules: tuple[str, ...] = ()
    """Modules that register the user's own formats: dotted names, or paths of Python files."""
    thinking: Literal["keep", "strip"] = "keep"
    """Whether the expert's thinking stays in the trajectories or is dropped."""
    verifier: str = DEFAULT_VERIFIER
    """Name of the verifier for rows that name none."""
    verifier_options: JsonObject = field(default_factory=dict)
    """Options of that verifier."""
    tools: tuple[JsonObject, ...] = ()
    """Tool schemas for rows that have none."""
    outcome: Literal["passed", "all"] = "passed"
    """Which trajectories are kept: those whose outcome is right or unknown, or all."""
    allow_no_tools: bool = True
    """Whether to keep trajectories that call tools but have no tool schemas, which the policy then does not see."""
    verifier_modules: tuple[str, ...] = ()
    """Modules that register the user's own verifiers: dotted names, or paths of Python files."""


class ParsedRow(NamedTuple):
    """A trajectory with the numbers that the import reports about its row."""

    trajectory: Trajectory
    format: str
    """Name of the format that the row was read as."""
    scores: tuple[float, ...]
    """[num_samples] published scores of samples at the last turn; empty if there are none."""
    num_merged: int
    """Messages that were joined to another one, since both were pieces of one assistant turn."""
    ignored_columns: frozenset[str]
    """Columns that were not read."""


def parse_row(row: RawRow, options: ImportOptions) -> ParsedRow:
    """One row of a registered format as a trajectory.

    Raises:
        BadRowError: If the row breaks its format.
        ConfigError: If the options name an unknown format.
    """
    try:
        columns = row.decoded()
        found = detected_format(columns) if options.format is None else format_named(options.format)
        if row.place.unit == "row":
            _refuse_nulls_in_arguments(columns)
        parsed = _as_trajectory(found, columns, row.place, options)
        check_conversation(parsed.trajectory.messages)
        refuse_foreign_nulls(parsed.trajectory.messages, parsed.trajectory.tools)
    except RecursionError as error:
        raise BadRowError("not_json", "the row is nested too deeply") from error
    except MessageError as error:
        raise BadRowError("unknown_role", str(error)) from error
    return parsed


def _as_trajectory(format: Format, row: JsonObject, place: Place, options: ImportOptions) -> ParsedRow:
    found = format.read(row)
    messages = _merge_split_turns([_with_thinking(message, options) for message in found.messages])
    tools = parse_tools(found.tools) or options.tools
    identity = _identity(found, place, messages, tools)
    verifier = _verifier(row, found, options)
    provenance = found.metadata.get(PROVENANCE) or {**_provenance(place, identity), **found.notes}
    trajectory = Trajectory(
        id=identity.id,
        messages=messages,
        tools=tools,
        passed=found.passed,
        verifier=verifier.name,
        verifier_options=verifier.options,
        metadata={**found.metadata, PROVENANCE: provenance},
    )
    if len(messages) < len(found.messages) and isinstance(found.expert_turns, tuple):
        raise BadRowError(
            "bad_expert_turns",
            "expert_turns are positions of turns, but here the text and the calls of one turn are two messages: join "
            "them",
        )
    ignored = frozenset(row.keys() - found.columns - _VERIFIER_COLUMNS)
    trajectory = with_expert_turns(trajectory, found.expert_turns)
    return ParsedRow(trajectory, format.name, found.scores, len(found.messages) - len(messages), ignored)


def _refuse_nulls_in_arguments(value: Json) -> None:
    """Refuse a null in arguments that parquet stored as a struct, since a struct has the keys of all rows together."""
    if isinstance(value, dict):
        arguments = value.get("arguments")
        if isinstance(arguments, dict):
            refuse_nulls(arguments, f"{value.get('name')}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _refuse_nulls_in_arguments(child)


def _with_thinking(message: Message, options: ImportOptions) -> Message:
    """The message with thinking in its content moved to `reasoning`, or dropped if the options say "strip"."""
    if message.role is not Role.ASSISTANT:
        return message
    content = message.content
    if message.reasoning is None and "</think>" in content:
        # The opening tag is optional, as in `data.actions`: some chat templates put it into the prompt.
        thinking, _, rest = content.partition("</think>")
        reasoning = thinking.lstrip().removeprefix("<think>").strip()
        message = replace(message, content=rest.lstrip(), reasoning=reasoning)
    if message.content.lstrip().startswith("<think>"):
        raise BadRowError("unclear_thinking", "a <think> is never closed, or follows other reasoning of the message")
    return replace(message, reasoning=None) if options.thinking == "strip" else message


def _merge_split_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join text and the calls right after it, which some logs write as two messages of one assistant turn.

    Other assistant messages in a row stay as they are, and `check_conversation` refuses them.
    """
    merged: list[Message] = []
    for message in messages:
        before = merged[-1] if merged else None
        joined = None
        if before is not None and message.tool_calls and not before.tool_calls:
            joined = join_pair(before, message)
        if joined is None:
            merged.append(message)
        else:
            merged[-1] = joined
    return tuple(merged)


class _Verifier(NamedTuple):
    name: str
    options: JsonObject


def _verifier(row: JsonObject, found: Conversation, options: ImportOptions) -> _Verifier:
    """The verifier that the row names, else the one of the import; the format's own replaces the import's default.

    A row names a verifier as text, with its options in the column `verifier_options`, or as {"name", "options"}.
    Options in a row that names no verifier are those of the verifier that it gets.
    """
    verifier, given = row.get("verifier"), row.get("verifier_options")
    own = None if given is None else as_object(decoded(given, "verifier_options"), "verifier_options")
    if verifier is None:
        is_default = options.verifier == DEFAULT_VERIFIER and not options.verifier_options
        name = found.verifier if found.verifier and is_default else options.verifier
        return _Verifier(name, own or options.verifier_options)
    if isinstance(verifier, str):
        usual = options.verifier_options if verifier == options.verifier else {}
        return _Verifier(verifier, usual if own is None else own)
    if not isinstance(verifier, dict) or not isinstance(verifier.get("name"), str) or verifier.keys() - _VERIFIER_KEYS:
        raise BadRowError(
            "bad_verifier", f'verifier must be a name or {{"name", "options"}}, got {type_in_words(verifier)}'
        )
    if own:
        raise BadRowError("bad_verifier", "verifier has a place for its options; leave the column verifier_options out")
    return _Verifier(str(verifier["name"]), as_object(verifier.get("options") or {}, "verifier.options"))


class _Identity(NamedTuple):
    id: str
    split_by: str
    """Key of the split into training and validation."""


def _identity(found: Conversation, place: Place, messages: Sequence[Message], tools: Sequence[JsonObject]) -> _Identity:
    """Id of the trajectory, and the key of its split: the task if the row names one, else the id.

    A row without id and task gets both from digests: the id from all of its content, the key from the messages up to
    the first request, which rows that hold other turns of the same conversation share.
    """
    if found.id is not None:
        return _Identity(found.id, found.task or found.id)
    if found.task is not None:
        # Without the number of the trial, a digest of the content tells the trajectories of a task apart.
        trial = found.trial or _digest(messages, tools)
        return _Identity("-".join([Path(place.file).stem, found.task, trial]), found.task)
    first_user = next((i for i, message in enumerate(messages) if message.role is Role.USER), 0)
    return _Identity(f"sha-{_digest(messages, tools)}", f"sha-{_digest(messages[: first_user + 1], tools)}")


def _digest(messages: Sequence[Message], tools: Sequence[JsonObject]) -> str:
    text = encode_json([[message.as_dict() for message in messages], list(tools)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _provenance(place: Place, identity: _Identity) -> JsonObject:
    return {"file": Path(place.file).name, place.unit: place.number, "split_by": identity.split_by}
