"""Trajectories -> rows that others read: OpenAI's messages, and parquet for SFT with verl."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.types import Json, JsonObject, Message, Trajectory

_NESTED = ("messages", "tools", "verifier_options", "metadata")
_TEXTS = ("id", *_NESTED[:2], "verifier", *_NESTED[2:], "expert_turns")
_SCHEMA = pyarrow.schema(
    [*(pyarrow.field(name, pyarrow.string(), nullable=False) for name in _TEXTS), ("passed", pyarrow.bool_())]
)
_ROWS_PER_GROUP = 512


def openai_row(trajectory: Trajectory) -> JsonObject:
    """The line of a trajectories file with arguments as JSON strings, as OpenAI's API has them."""
    messages: list[Json] = [_with_text_arguments(message) for message in trajectory.messages]
    return {**trajectory_as_dict(trajectory), "messages": messages}


def _with_text_arguments(message: Message) -> JsonObject:
    calls: list[Json] = [
        {**call.as_dict(), "function": {"name": call.name, "arguments": encode_json(call.arguments)}}
        for call in message.tool_calls
    ]
    return {**message.as_dict(), "tool_calls": calls} if calls else message.as_dict()


def write_sft(trajectories: Iterable[Trajectory], path: Path) -> None:
    """Write one row for each trajectory, a row group at a time.

    Raises:
        BadRowError: If in a trajectory the last turn alone is the expert's: verl trains on all of them.
        OSError: If it cannot be written.
    """
    rows = map(sft_row, trajectories)
    with pyarrow.parquet.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=_SCHEMA))


def sft_row(trajectory: Trajectory) -> JsonObject:
    """One row, nested data as JSON strings, which parquet cannot mangle; `sft_dataset` decodes them for verl.

    Raises:
        BadRowError: As `write_sft`.
    """
    if trajectory.expert_turns == "last":
        raise BadRowError(
            "only_last_turn",
            f"of trajectory {trajectory.id} the last turn alone is the expert's, and SFT trains on every turn of the "
            "assistant's; export it to nemo-gym or jsonl",
        )
    return {
        key: encode_json(value) if key in _NESTED else value for key, value in trajectory_as_dict(trajectory).items()
    }
