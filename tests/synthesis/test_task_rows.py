"""tasks.parquet: every column of every task is written, and what parquet cannot hold is one sentence."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from verl_pivot.errors import DataError
from verl_pivot.synthesis.task_rows import write_tasks

PROMPT = [{"role": "user", "content": "Two packs of tea."}]


def written(folder: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of tasks.parquet."""
    (folder / "tasks.jsonl").write_text("".join(json.dumps({"prompt": PROMPT, **row}) + "\n" for row in rows))
    write_tasks(folder / "tasks.jsonl", folder / "tasks.parquet")
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "tasks.parquet").to_pylist()
    return found


@pytest.mark.parametrize("num_before", [1, 600])  # in the same group of rows, and in a later one
def test_a_column_that_only_later_tasks_have_is_written(tmp_path: Path, num_before: int) -> None:
    rows = written(tmp_path, *[{}] * num_before, {"reward_model": {"ground_truth": "4"}, "data_source": "sums"})

    assert rows[0] == {"prompt": PROMPT, "reward_model": None, "data_source": None}
    assert rows[-1] == {"prompt": PROMPT, "reward_model": {"ground_truth": "4"}, "data_source": "sums"}


def test_an_empty_object_is_null_where_parquet_would_hold_a_column_without_fields(tmp_path: Path) -> None:
    rows = written(tmp_path, {"extra_info": {}}, {"extra_info": {}, "reward_model": {"options": {}, "style": "rule"}})

    assert [row["extra_info"] for row in rows] == [None, None]
    assert [row["reward_model"] for row in rows] == [None, {"options": None, "style": "rule"}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"extra_info": {"n": 2**63}}],
        [{"extra_info": {"n": 2**70}}],
        [{"extra_info": {"n": 1}}, {"extra_info": {"n": "one"}}],
        [*[{"extra_info": {"n": 1}}] * 600, {"extra_info": {"n": "one"}}],
        [{"extra_info": {"n": 2**53 + 1}}, *[{}] * 600, {"extra_info": {"n": 0.5}}],
    ],
    ids=["63 bits", "70 bits", "number and text", "number and text later", "not exact as a float"],
)
def test_what_no_column_can_hold_is_one_sentence_that_names_the_column(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(DataError, match=r"tasks\.parquet cannot be written because column '?extra_info"):
        written(tmp_path, *rows)


def test_without_tasks_the_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").touch()
    write_tasks(tmp_path / "tasks.jsonl", tmp_path / "tasks.parquet")

    assert (tmp_path / "tasks.parquet").read_bytes() == b""
