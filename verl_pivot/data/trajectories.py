"""Lines of trajectories.jsonl <-> Trajectory: `verl-pivot import` writes them, every later stage reads them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from verl_pivot.data.files import RawRow, read_rows
from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.errors import DataError
from verl_pivot.types import ExpertTurns, Json, JsonObject, Trajectory


def trajectory_as_dict(trajectory: Trajectory) -> JsonObject:
    """The trajectory as the object of a line in trajectories.jsonl."""
    return {
        "id": trajectory.id,
        "messages": [message.as_dict() for message in trajectory.messages],
        "tools": list(trajectory.tools),
        "passed": trajectory.passed,
        "verifier": trajectory.verifier,
        "verifier_options": trajectory.verifier_options,
        "metadata": trajectory.metadata,
        "expert_turns": chosen if isinstance(chosen := trajectory.expert_turns, str) else list(chosen),
    }


def parse_trajectory(obj: Json) -> Trajectory:
    """The trajectory in the object of a line; the inverse of `trajectory_as_dict`.

    Raises:
        BadRowError: If the value is not such an object.
    """
    row = as_object(obj, "a trajectory")
    identity, verifier, passed = row.get("id"), row.get("verifier"), row.get("passed")
    if not isinstance(identity, str) or not isinstance(verifier, str) or not isinstance(passed, bool | None):
        raise BadRowError(
            "bad_trajectory", "a trajectory needs id (text), verifier (text) and passed (true, false or null)"
        )
    trajectory = Trajectory(
        id=identity,
        messages=tuple(parse_message(message) for message in as_list(row.get("messages"), "messages")),
        tools=parse_tools(row.get("tools")),
        passed=passed,
        verifier=verifier,
        verifier_options=as_object(row.get("verifier_options"), "verifier_options"),
        metadata=as_object(row.get("metadata"), "metadata"),
    )
    return with_expert_turns(trajectory, parse_expert_turns(row.get("expert_turns")))


def with_expert_turns(trajectory: Trajectory, chosen: ExpertTurns) -> Trajectory:
    """The trajectory with these turns as the expert's.

    Raises:
        BadRowError: If a position is not one of its assistant turns, or the positions do not ascend.
    """
    try:
        return replace(trajectory, expert_turns=chosen)
    except ValueError as error:
        raise BadRowError("bad_expert_turns", str(error)) from error


def parse_expert_turns(value: Json) -> ExpertTurns:
    """The value of `expert_turns` in a row: "all", "last", or a list of positions among the assistant turns, from 0.

    The list may be a JSON string, as parquet holds it.

    Raises:
        BadRowError: If it is none of these.
    """
    if value == "all" or value == "last":
        return "last" if value == "last" else "all"
    if isinstance(value, str) and value.startswith("["):
        value = decode_json(value, what="expert_turns")
    if isinstance(value, list) and all(type(position) is int for position in value):
        return tuple(value)  # type: ignore[arg-type]  # whole numbers, as the line above checks
    raise BadRowError(
        "bad_expert_turns", f"expert_turns must be 'all', 'last' or a list of positions of turns, got {value!r:.80}"
    )


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that `verl-pivot import` wrote.

    Raises:
        DataError: If the file is missing or a line is not a trajectory.
    """
    yield from map(read_trajectory, read_rows(path))


def read_trajectory(row: RawRow) -> Trajectory:
    """The trajectory in one line of a file that `verl-pivot import` wrote.

    Raises:
        DataError: If the line is not a trajectory, naming its place.
    """
    try:
        return parse_trajectory(row.decoded())
    except DataError as error:
        raise DataError(f"{row.place} is not a trajectory ({error}); write it with `verl-pivot import`") from error
