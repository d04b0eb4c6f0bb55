"""Selected turns <-> rows of pivots.parquet; nested data are JSON strings, which parquet cannot mangle."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from verl_pivot.data.messages import parse_message
from verl_pivot.data.storage import as_list, as_object, decode_json, encode_json
from verl_pivot.data.tools import parse_tools
from verl_pivot.data.turns import Split
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject, Turn, TurnProfile

AGENT_NAME = "pivot_turn"
"""The agent loop that samples one turn: `rollout.pivot_turn`."""
AGENT_NAME_IN_FILE = f"{AGENT_NAME} (rows of verl-pivot: install verl-pivot and add +method=pivotrl to the command)"
"""Stock verl refuses a row whose agent loop it does not know and prints the name; our dataset puts the true one."""

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("data_source", pyarrow.string(), nullable=False),
        pyarrow.field("prompt", pyarrow.string(), nullable=False),
        pyarrow.field("tools", pyarrow.string(), nullable=False),
        pyarrow.field("expert", pyarrow.string(), nullable=False),
        pyarrow.field("verifier", pyarrow.string(), nullable=False),
        pyarrow.field("verifier_options", pyarrow.string(), nullable=False),
        pyarrow.field("metadata", pyarrow.string(), nullable=False),
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


def turn_to_row(turn: Turn, *, split: Split, profile: TurnProfile | None, num_prompt_tokens: int | None) -> JsonObject:
    """One row of pivots.parquet; the profile's numbers are null for a turn without a decided sample."""
    if profile is not None and not profile.scores:
        profile = None
    return {
        "data_source": f"verl_pivot/{turn.verifier}",
        "prompt": encode_json([message.as_dict() for message in turn.state]),
        "tools": encode_json(list(turn.tools)),
        "expert": encode_json(turn.expert.as_dict()),
        "verifier": turn.verifier,
        "verifier_options": encode_json(turn.verifier_options),
        "metadata": encode_json(turn.metadata),
        "trajectory_id": turn.trajectory_id,
        "turn_index": turn.index,
        "pass_rate": profile.pass_rate if profile else None,
        "reward_mean": profile.reward_mean if profile else None,
        "reward_std": profile.reward_std if profile else None,
        "reward_var": profile.reward_var if profile else None,
        "num_prompt_tokens": num_prompt_tokens,
        "agent_name": AGENT_NAME_IN_FILE,
        "split": split,
        "ability": "agent",
    }


def row_to_turn(row: Mapping[str, Any]) -> Turn:
    """The turn in a row of pivots.parquet, as parquet or verl hands it over; the inverse of `turn_to_row`.

    Raises:
        DataError: If the row is none.
    """
    if missing := [name for name in _TURN_COLUMNS if row.get(name) is None]:
        raise DataError(f"a row without {', '.join(missing)} is no pivot; write the file with `verl-pivot select`")
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
    """Appends rows to a parquet file, a row group at a time."""

    def __init__(self, writer: pyarrow.parquet.ParquetWriter) -> None:
        self._rows: list[JsonObject] = []
        self._writer = writer

    def append(self, row: JsonObject) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=SCHEMA))
            self._rows = []


@contextmanager
def writing_pivots(path: Path) -> Iterator[PivotWriter]:
    """A parquet file that is complete when the block succeeds; after a failure it is of no use.

    Raises:
        OSError: If it cannot be written.
    """
    parquet = pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd")
    writer = PivotWriter(parquet)
    try:
        yield writer
        writer.flush()
        parquet.close()
    except BaseException:
        # What failed is what matters: closing would try to write the footer, and fail on a full disk too.
        with suppress(OSError, pyarrow.ArrowException):
            parquet.close()
        parquet.is_open = False
        raise
