"""Tasks of the quickstart's shop -> rows with or without a label, and a tools file whose server starts from a row."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import yaml

from examples.quickstart.tasks import Task, make_task

ROOT = Path(__file__).parents[2]


def make_tasks(seeds: Iterable[int], *, held_out: bool = False) -> list[Task]:
    """Tasks with distinct requests, by which the judge identifies them; each task has its own shop."""
    made = {task.request: task for seed in seeds for task in [make_task(seed, held_out=held_out)]}
    return list(made.values())


def write_rows(path: Path, tasks: Sequence[Task], *, labelled: bool) -> Path:
    """Write one row per task.

    Args:
        path: The parquet file.
        tasks: The tasks.
        labelled: Whether rows have the ground truth from which `outcome` tells whether the task was done. Without it,
            they are like the rows that `verl-pivot mcp scenarios --metadata` writes.
    """
    rows = [
        {
            "data_source": "shop",
            "prompt": [{"role": message.role.value, "content": message.content} for message in task.opening],
            "metadata": json.dumps({"seed": task.seed, "held_out": task.held_out}),
            "ability": "tools",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(task.metadata) if labelled else None},
            "extra_info": {"index": number},
        }
        for number, task in enumerate(tasks)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_tools(path: Path) -> Path:
    """Write the tools file: the shop's server, which starts in the state of the trajectory's row."""
    entry = {
        "mcp": {
            "command": [
                sys.executable,
                str(Path(__file__).with_name("server.py")),
                "--seed={metadata.seed}",
                "--held-out={metadata.held_out}",
            ]
        },
        "show": [str(ROOT / "examples"), str(ROOT / "verl_pivot")],
        "variables": [f"PYTHONPATH={ROOT}"],
        "listed_with": {"seed": 0, "held_out": False},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump([entry], sort_keys=False))
    return path
