"""Trajectories -> rows with messages in OpenAI's form, and a parquet file for SFT with verl."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.trajectories import parse_expert_turns, trajectory_as_dict
from verl_pivot.types import Json, JsonObject, Message, Role, Trajectory

_NESTED = ("messages", "tools", "verifier_options", "metadata")
_TEXTS = ("id", *_NESTED[:2], "verifier", *_NESTED[2:], "expert_turns")
_SCHEMA = pyarrow.schema(
    [*(pyarrow.field(name, pyarrow.string(), nullable=False) for name in _TEXTS), ("passed", pyarrow.bool_())]
)
_ROWS_PER_GROUP = 512


def openai_row(trajectory: Trajectory) -> JsonObject:
    """The object of a line in trajectories.jsonl, but with arguments as JSON strings, as in OpenAI's API."""
    messages: list[Json] = [_with_text_arguments(message) for message in trajectory.messages]
    return {**trajectory_as_dict(trajectory), "messages": messages}


def _with_text_arguments(message: Message) -> JsonObject:
    calls: list[Json] = [
        {**call.as_dict(), "function": {"name": call.name, "arguments": encode_json(call.arguments)}}
        for call in message.tool_calls
    ]
    return {**message.as_dict(), "tool_calls": calls} if calls else message.as_dict()


def write_sft(trajectories: Iterable[Trajectory], path: Path) -> None:
    """Write a parquet file with one row for each trajectory, a row group at a time.

    Raises:
        OSError: If the file cannot be written.
    """
    rows = map(sft_row, trajectories)
    with pyarrow.parquet.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=_SCHEMA))


def sft_row(trajectory: Trajectory) -> JsonObject:
    """Row of a trajectory with nested data as JSON strings, which `exports.sft_dataset` decodes for verl."""
    columns = trajectory_as_dict(trajectory)
    return {
        key: encode_json(value) if key in _NESTED or isinstance(value, list) else value
        for key, value in columns.items()
    }


def expert_positions(messages: Iterable[Json], expert_turns: str) -> frozenset[int]:
    """Positions of the messages in a row of `sft_row` that are the expert's turns.

    Args:
        messages: The column `messages`, decoded.
        expert_turns: The column `expert_turns`.
    """
    parsed = tuple(parse_message(message) for message in messages)
    trajectory = Trajectory(id="", messages=parsed, expert_turns=parse_expert_turns(expert_turns))
    turns = [position for position, message in enumerate(parsed) if message.role is Role.ASSISTANT]
    return frozenset(turns[index] for index in trajectory.expert_indices)
