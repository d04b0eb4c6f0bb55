"""trajectories.jsonl -> Survey: counts of its turns, and of what the policy and the verifiers would lack."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.turns import turns
from verl_pivot.types import JsonObject, Trajectory
from verl_pivot.validation import ToolArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Counts over all trajectories of a file."""

    num_trajectories: int
    """Distinct trajectories; several rows may each hold one turn of the same trajectory."""
    num_turns: int
    message_turns: Counter[tuple[str, str]]
    """{(verifier, its options as JSON): number of turns at which the expert writes a message and calls no tool}."""
    num_without_schemas: int
    """Rows whose expert calls tools although the row has no tool schemas."""
    num_rows: int
    verifiers: Counter[tuple[str, str]]
    """{(verifier, its options as JSON): number of rows that name them}."""
    arguments: frozenset[ToolArgument]
    """Arguments of all tools in the rows' schemas."""
    trajectory_ids: tuple[str, ...]

    @property
    def num_message_turns(self) -> int:
        return self.message_turns.total()


def survey(trajectories: Iterable[Trajectory], on_row: Callable[[int], object]) -> Survey:
    """Read every trajectory once.

    Args:
        trajectories: Trajectories of the file.
        on_row: Called with 1 after each of them.
    """
    ids: dict[str, None] = {}
    verifiers: Counter[tuple[str, str]] = Counter()
    message_turns: Counter[tuple[str, str]] = Counter()
    arguments: set[ToolArgument] = set()
    known_tools: set[str] = set()
    num_rows = num_turns = num_without = 0
    for trajectory in trajectories:
        num_rows += 1
        ids[trajectory.id] = None
        found = turns(trajectory)
        num_turns += len(found)
        num_without += not trajectory.tools and any(turn.expert.tool_calls for turn in found)
        verifier = trajectory.verifier, encode_json(trajectory.verifier_options, sort_keys=True)
        verifiers[verifier] += 1
        message_turns[verifier] += sum(not turn.expert.tool_calls for turn in found)
        for tool in trajectory.tools:
            if (text := encode_json(tool)) not in known_tools:
                known_tools.add(text)
                arguments |= set(_arguments(tool))
        on_row(1)
    return Survey(
        num_trajectories=len(ids),
        num_turns=num_turns,
        message_turns=message_turns,
        num_without_schemas=num_without,
        num_rows=num_rows,
        verifiers=verifiers,
        arguments=frozenset(arguments),
        trajectory_ids=tuple(ids),
    )


def named_arguments(options: object) -> Iterator[ToolArgument]:
    """Every argument of a tool that the options of a verifier name."""
    if isinstance(options, ToolArgument):
        yield options
    elif isinstance(options, BaseModel):
        for name in type(options).model_fields:
            yield from named_arguments(getattr(options, name))
    elif isinstance(options, list | tuple | set | frozenset):
        for value in options:
            yield from named_arguments(value)
    elif isinstance(options, dict):
        for name, value in options.items():
            yield from named_arguments(name)
            yield from named_arguments(value)


def _arguments(tool: JsonObject) -> Iterator[ToolArgument]:
    """Arguments in one tool schema of OpenAI's form."""
    match tool:
        case {"function": {"name": str(name), "parameters": {"properties": {**properties}}}}:
            yield from (ToolArgument(tool=name, argument=str(argument)) for argument in properties)
