"""Selected turns <-> rows of pivots.parquet, in which nested values are JSON strings, since parquet alters structs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
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


class PivotColumn(NamedTuple):
    """Column of pivots.parquet; docs/api.md lists them."""

    type: pyarrow.DataType
    about: str
    is_optional: bool = False
    """Whether a row may have no value in it."""


COLUMNS = {
    "data_source": PivotColumn(
        pyarrow.string(), "`verl_pivot/<verifier>`, by which verl groups its validation metrics"
    ),
    "prompt": PivotColumn(
        pyarrow.string(), "the state: JSON list of messages in OpenAI's form, every one before the action"
    ),
    "tools": PivotColumn(pyarrow.string(), "JSON list of tool schemas in OpenAI's form"),
    "expert": PivotColumn(pyarrow.string(), "the expert's action: JSON of one assistant message"),
    "verifier": PivotColumn(pyarrow.string(), "name of the verifier that compares actions with the expert's"),
    "verifier_options": PivotColumn(pyarrow.string(), "JSON object of the verifier's options"),
    "metadata": PivotColumn(pyarrow.string(), "JSON object that the verifier, tools and environments may read"),
    "recording": PivotColumn(
        pyarrow.string(),
        'JSON list of `{"name", "arguments", "result"}`, the recorded calls; with `verl-pivot select --recordings`',
        is_optional=True,
    ),
    "trajectory_id": PivotColumn(pyarrow.string(), "id of the trajectory"),
    "turn_index": PivotColumn(pyarrow.int64(), "position among the trajectory's assistant turns, from 0"),
    "pass_rate": PivotColumn(
        pyarrow.float64(), "share of the profile's decided samples with full score", is_optional=True
    ),
    "reward_mean": PivotColumn(pyarrow.float64(), "mean score of the profile's decided samples", is_optional=True),
    "reward_std": PivotColumn(pyarrow.float64(), "square root of `reward_var`", is_optional=True),
    "reward_var": PivotColumn(
        pyarrow.float64(), "population variance of these scores; above 0 at a pivot", is_optional=True
    ),
    "num_prompt_tokens": PivotColumn(pyarrow.int64(), "tokens of the rendered prompt", is_optional=True),
    "agent_name": PivotColumn(
        pyarrow.string(), "agent loop that verl runs for the row; PivotDataset puts the real name"
    ),
    "split": PivotColumn(pyarrow.string(), "`train` or `validation`"),
    "sampling": PivotColumn(
        pyarrow.string(),
        "JSON object that says how the profile was sampled, which a launch compares with its own settings",
        is_optional=True,
    ),
    "ability": PivotColumn(pyarrow.string(), "`agent`; verl's own files have the column"),
}
SCHEMA = pyarrow.schema(
    [pyarrow.field(name, column.type, nullable=column.is_optional) for name, column in COLUMNS.items()]
)
_TURN_COLUMNS = ("trajectory_id", "turn_index", "prompt", "expert", "tools", "verifier", "verifier_options", "metadata")
_NEEDED_COLUMNS = (*_TURN_COLUMNS, "num_prompt_tokens")
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
    trajectory: Trajectory,
    numbers: Mapping[int, PivotNumbers],
    *,
    with_recording: bool = False,
    sampling: str | None = None,
) -> Iterator[JsonObject]:
    """Rows of pivots.parquet for the turns of a trajectory that have numbers, in the order of the turns.

    Args:
        trajectory: Trajectory of the turns.
        numbers: {index of a selected turn: its numbers}.
        with_recording: Whether each row carries the calls and results of the trajectory, for tools that replay them.
        sampling: SamplingRecord of the profile, encoded; None without a profile that `verl-pivot profile` measured.
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
                "sampling": sampling,
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


def problem_of_columns(names: Collection[str]) -> str | None:
    """Why rows with these columns are neither pivots nor tasks, as the rest of a sentence; None if they are one.

    The column `expert` is what makes a row a pivot.
    """
    lacking = [name for name in _NEEDED_COLUMNS if name not in names]
    if "expert" not in names or not lacking:
        return None
    return (
        f"has the column expert, which makes its rows pivots, but no {', '.join(lacking)}: rename the column, or write "
        "pivots with `verl-pivot select`"
    )


def row_to_turn(row: Mapping[str, Any]) -> Turn:
    """The turn in a row of pivots.parquet as parquet or verl reads it; the inverse of `pivot_rows`.

    Raises:
        DataError: If the row is not a pivot.
    """
    if missing := [name for name in _TURN_COLUMNS if row.get(name) is None]:
        raise DataError(f"a row without {', '.join(missing)} is not a pivot; write the file with `verl-pivot select`")
    try:
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
    except DataError:
        raise
    except ValueError as error:  # no number as the index, or no turn of the assistant behind the prompt
        raise DataError(f"a row is not a pivot: {error}; write the file with `verl-pivot select`") from error


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
