"""Data set of an environment of verifiers -> rows that verl reads, and a row -> the environment's task."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_pivot.data.files import replacing
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject

_PROCESS = Path(__file__).with_name("verifiers_process.py")


def verifiers_command(python: str, name: str, arguments: Mapping[str, Any], *mode: str) -> list[str]:
    """Command of an environment's process.

    Args:
        python: Python in which verifiers and the environment are installed.
        name: Name of the environment, or of the task set.
        arguments: Arguments of its `load_environment`, or since verifiers 0.4 the keys of `[env]`.
        mode: `play`, or `rows` with the number of rows if that is limited.
    """
    return [python, str(_PROCESS), name, json.dumps(dict(arguments)), *mode]


def verifiers_rows(
    python: str, name: str, arguments: Mapping[str, Any], limit: int | None = None
) -> Iterator[JsonObject]:
    """Rows of an environment's data set, one at a time.

    Args:
        python: As for `verifiers_command`.
        name: As for `verifiers_command`.
        arguments: As for `verifiers_command`.
        limit: Number of rows to read, from the first; None reads all of them.

    Raises:
        ConfigError: If the process fails; the message has the last line of its standard error.
    """
    command = verifiers_command(python, name, arguments, "rows", *([] if limit is None else [str(limit)]))
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise ConfigError(
            f"{python} does not start: {error}; give the Python in which verifiers is installed"
        ) from error
    output, errors = process.communicate()
    if process.returncode:
        said = errors.strip().splitlines()[-1:] or ["nothing"]
        raise ConfigError(
            f"the environment {name} gives no rows, and its process says {said[0]!r}: give --python of an environment "
            "where verifiers and the environment's own package are installed"
        )
    for index, line in enumerate(output.splitlines()):
        yield _row(name, index, json.loads(line))


def write_rows(rows: Iterable[JsonObject], out: Path) -> int:
    """Write rows of `verifiers_rows` as a parquet file; returns their number.

    Raises:
        ConfigError: If there are no rows.
    """
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(rows))
    if not len(table):
        raise ConfigError("the environment's data set is empty: look at its arguments")
    with replacing(out) as unfinished:
        pyarrow.parquet.write_table(table, unfinished)
    return len(table)


def _row(name: str, index: int, example: JsonObject) -> JsonObject:
    extra: JsonObject = {
        "index": index,
        "example_id": example.get("example_id", index),
        "info": json.dumps(example.get("info") or {}),
    }
    if (task := example.get("task")) is not None:
        extra["task"] = str(task)
    answer = example.get("answer")
    return {
        "data_source": f"verifiers:{name}",
        "prompt": example["prompt"],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": "" if answer is None else str(answer)},
        "extra_info": extra,
    }


def verifiers_task(columns: Mapping[str, Any]) -> JsonObject:
    """The task of a row, in the form that verifiers expects.

    Args:
        columns: Columns of the dataset's row, such as those that `verifiers_rows` makes.
    """
    extra, reward = columns.get("extra_info") or {}, columns.get("reward_model") or {}
    info: Json = json.loads(extra.get("info") or "{}")
    task = extra.get("task")  # by which groups of environments, and rubrics, choose
    return {
        "prompt": list(columns["raw_prompt"]),
        "example_id": int(extra.get("example_id", 0)),
        "answer": str(reward.get("ground_truth", "")),
        "info": info,
        **({} if task is None else {"task": str(task)}),
    }
