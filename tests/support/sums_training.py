"""Trainings of a policy that adds two numbers by a tool: its environment, its rows, and the policy that is taught."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet

from tests.support.paths import ROOT
from tests.support.scripted_engine import call, make_loop, row
from tests.support.tiny_model import teach, write_model
from verl_pivot.types import Json

QUESTION = "Add 1 and 2."
TOOLS = """
from verl_pivot.tools.contract import Environment, tool
from verl_pivot.types import Verdict

class Sums(Environment):
    def __init__(self, metadata):
        self.is_right = metadata["number"] % 2 == 0

    @tool
    def add(self, a: int, b: int) -> str:
        \"\"\"Add two numbers.\"\"\"
        return str(a + b)

    async def score(self, answer):
        is_right = self.is_right and answer is not None and "It is 3." in answer.content
        return Verdict(score=float(is_right), reason="seen")
"""


def write_tools(folder: Path, source: str = TOOLS) -> Path:
    """Write a tools file with the environment; returns its path."""
    (folder / "tools.py").write_text(source)
    path = folder / "tools.yaml"
    path.write_text(f"- environment: {folder}/tools.py:Sums\n")
    return path


def write_tasks(folder: Path, number: int, **columns: Json) -> Path:
    """Write rows with the question; every other row can be solved.

    Args:
        folder: Where the file is written.
        number: Number of rows.
        columns: Further columns, the same in every row.
    """
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": place},
            "metadata": json.dumps({"number": place}),
            **columns,
        }
        for place in range(number)
    ]
    path = folder / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


async def write_policy(folder: Path) -> Path:
    """A model that was taught to call the tool once and to answer with its result."""
    script = [call("add", a=1, b=2), "It is 3."]
    loop = make_loop(script, f"pivot.rollout.tools={folder}/tools.yaml")
    shown = await loop.run({}, **row(QUESTION, metadata=json.dumps({"number": 0})))
    assert shown.extra_fields["rollout"]["stop_reason"] == "answered"
    assert shown.extra_fields["rollout"]["num_tool_errors"] == 0
    mask = [0] * len(shown.prompt_ids) + shown.response_mask
    return teach(write_model(folder / "model"), shown.prompt_ids + shown.response_ids, mask)


def policy_of_own_process(folder: Path) -> Path:
    """The model of `write_policy`, trained in a new process: after many tests in one, the loss may become NaN."""
    code = "import asyncio, sys, pathlib; from tests.support.sums_training import write_policy\n"
    code += "asyncio.run(write_policy(pathlib.Path(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    return folder / "model"
