"""Selected turns <-> rows of pivots.parquet, in which nested values are JSON strings, since parquet alters structs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from verl_pivot.data.answered_calls import AnsweredCall, answered_calls
from verl_pivot.data.json_values import as_list, as_object, decode_json, encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.data.turns import Split, turns
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject, Trajectory, Turn

AGENT_NAME = "pivot_turn"
"""Name under which verl finds the agent loop of `rollout.pivot_turn`, which samples one turn."""
AGENT_NAME_IN_FILE = f"{AGENT_NAME} (rows of verl-pivot: install verl-pivot and add +method=pivotrl to the command)"
"""Agent name in the file. Stock verl does not know it and prints it with this remedy; PivotDataset replaces it."""

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("data_source", pyarrow.string(), nullable=False),
        pyarrow.field("prompt", pyarrow.string(), nullable=False),
        pyarrow.field("tools", pyarrow.string(), nullable=False),
        pyarrow.field("expert", pyarrow.string(), nullable=False),
        pyarrow.field("verifier", pyarrow.string(), nullable=False),
        pyarrow.field("verifier_options", pyarrow.string(), nullable=False),
        pyarrow.field("metadata", pyarrow.string(), nullable=False),
        pyarrow.field("recording", pyarrow.string()),
        pyarrow.field("trajectory_id", pyarrow.string(), nullable=False),
        pyarrow.field("turn_index", pyarrow.int64(), nullable=False),
        pyarrow.field("pass_rate", pyarrow.float64()),
        pyarrow.field("reward_mean", pyarrow.float64()),
        pyarrow.field("reward_std", pyarrow.float64()),
        pyarrow.field("reward_var", pyarrow.float64()),
        pyarrow.field("num_prompt_tokens", pyarrow.int64()),
        pyarrow.field("agent_name", pyarrow.string(), nullable=False),
        pyarrow.field("split", pyarrow.string(), nullable=False),
        pyarrow.field("ability", pyarrow.string(), nullable=False),
    ]
)
_TURN_COLUMNS = ("trajectory_id", "turn_index", "prompt", "expert", "tools", "verifier", "verifier_options", "metadata")
_ROWS_PER_GROUP = 512


class PivotNumbers(NamedTuple):
    """Numbers that a selection adds to a turn; those of the profile are None if it has no decided sample."""

    split: Split
    pass_rate: float | None = None
    reward_mean: float | None = None
    reward_std: float | None = None
    reward_var: float | None = None
    num_prompt_tokens: int | None = None


def pivot_rows(
    trajectory: Trajectory, numbers: Mapping[int, PivotNumbers], *, with_recording: bool = False
) -> Iterator[JsonObject]:
    """Rows of pivots.parquet for the turns of a trajectory that have numbers, in the order of the turns.

    Args:
        trajectory: Trajectory of the turns.
        numbers: {index of a selected turn: its numbers}.
        with_recording: Whether each row carries the calls and results of the trajectory, for tools that replay them.
    """
    # Each state begins with the state before it, so every message is encoded only once.
    encoded = [encode_json(message.as_dict()) for message in trajectory.messages]
    shared = _shared_columns(trajectory)
    calls = answered_calls(trajectory.messages) if with_recording else []
    for turn in turns(trajectory):
        if turn.index in numbers:
            position = len(turn.state)
            yield {
                **shared,
                "prompt": f"[{', '.join(encoded[:position])}]",
                "expert": encoded[position],
                "turn_index": turn.index,
                "recording": _recording(calls, position) if with_recording else None,
                **numbers[turn.index]._asdict(),
            }


def _recording(calls: Sequence[AnsweredCall], position: int) -> str:
    """Calls with their results for `tools.replay` as JSON: first those from the turn on, then those before it."""
    later = [each for each in calls if each.position >= position]
    recorded: list[Json] = [
        {"name": each.call.name, "arguments": each.call.arguments, "result": each.result.content}
        for each in (*later, *(each for each in calls if each.position < position))
        if each.result is not None
    ]
    return encode_json(recorded)


def _shared_columns(trajectory: Trajectory) -> JsonObject:
    return {
        "data_source": f"verl_pivot/{trajectory.verifier}",
        "tools": encode_json(list(trajectory.tools)),
        "verifier": trajectory.verifier,
        "verifier_options": encode_json(trajectory.verifier_options),
        "metadata": encode_json(trajectory.metadata),
        "trajectory_id": trajectory.id,
        "agent_name": AGENT_NAME_IN_FILE,
        "ability": "agent",
    }


def row_to_turn(row: Mapping[str, Any]) -> Turn:
    """The turn in a row of pivots.parquet as parquet or verl reads it; the inverse of `pivot_rows`.

    Raises:
        DataError: If the row is not a pivot.
    """
    if missing := [name for name in _TURN_COLUMNS if row.get(name) is None]:
        raise DataError(f"a row without {', '.join(missing)} is not a pivot; write the file with `verl-pivot select`")
    return Turn(
        trajectory_id=str(row["trajectory_id"]),
        index=int(row["turn_index"]),
        state=tuple(parse_message(message) for message in as_list(decode_json(row["prompt"]), "prompt")),
        expert=parse_message(decode_json(row["expert"])),
        tools=parse_tools(str(row["tools"])),
        verifier=str(row["verifier"]),
        verifier_options=as_object(decode_json(row["verifier_options"]), "verifier_options"),
        metadata=as_object(decode_json(row["metadata"]), "metadata"),
    )


class PivotWriter:
    """Appends tables to a parquet file, one row group at a time."""

    def __init__(self, writer: pyarrow.parquet.ParquetWriter) -> None:
        self._waiting = SCHEMA.empty_table()
        self._writer = writer

    def append(self, table: pyarrow.Table) -> None:
        self._waiting = pyarrow.concat_tables([self._waiting, table])
        if self._waiting.num_rows >= _ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        if self._waiting.num_rows:
            self._writer.write_table(self._waiting)
            self._waiting = SCHEMA.empty_table()


@contextmanager
def writing_pivots(path: Path) -> Iterator[PivotWriter]:
    """Writer of a parquet file, which is complete if the block succeeds and unreadable if it fails.

    Raises:
        OSError: If it cannot be written.
    """
    parquet = pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd")
    writer = PivotWriter(parquet)
    try:
        yield writer
        writer.flush()
        parquet.close()
    except (
        BaseException
    ):  # Ctrl-C too; the error of the block is raised again, not one that closing adds on a full disk
        with suppress(OSError, pyarrow.ArrowException):
            parquet.close()
        parquet.is_open = False
        raise
