"""RowKind -> a small parquet file of such rows."""

from pathlib import Path

import pyarrow
import pyarrow.parquet

from verl_pivot.data.pivots import SCHEMA, PivotNumbers, pivot_rows, writing_pivots
from verl_pivot.data.turns import Split
from verl_pivot.smoke.methods import QUESTION, RowKind
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory

_ADD: JsonObject = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
_TRUTHS: dict[RowKind, tuple[str, Json]] = {
    RowKind.SUMS: ("openai/gsm8k", "3"),
    RowKind.TRUTHS: ("smoke", "3"),
    RowKind.TARGETS: ("smoke", {"target": ["three", "3"]}),
    RowKind.BARE: ("smoke", ""),
    RowKind.CRITERIA: ("smoke", ""),
}
"""{kind: (data source, ground truth)}"""


def write_rows(path: Path, kind: RowKind, number: int) -> Path:
    """Write a number of rows of one kind; for pivots, also as many rows for validation."""
    if kind is RowKind.PIVOTS:
        _write_pivots(path, number)
        return path
    source, truth = _TRUTHS[kind]
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": index},
            **({"criteria": [{"text": "It gives the sum.", "weight": 1.0}]} if kind is RowKind.CRITERIA else {}),
        }
        for index in range(number)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def _write_pivots(path: Path, number: int) -> None:
    """Write the training split, and beside it the validation split, as `verl-pivot select` does."""
    question = Message(role=Role.USER, content=QUESTION)
    action = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="add", arguments={"a": 1, "b": 2}),))
    splits: tuple[tuple[Split, Path], ...] = (("train", path), ("validation", path.with_suffix(".validation.parquet")))
    for split, out in splits:
        with writing_pivots(out) as writer:
            for index in range(number):
                trajectory = Trajectory(id=f"{split}-{index}", messages=(question, action), tools=(_ADD,))
                rows = pivot_rows(trajectory, {0: PivotNumbers(split)})
                writer.append(pyarrow.Table.from_pylist(list(rows), schema=SCHEMA))
