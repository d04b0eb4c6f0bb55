"""Seconds that many rollouts with a slow tool take together, beside one rollout alone.

Run by `make bench-tools`, or with other sizes by `python -m benchmarks.bench_tools --help`. The engine is scripted and
answers at once, so that rollouts wait for the tool alone.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tests.support.scripted_engine import call, make_loop, row
from verl_pivot.commands.tables import table_console

TOOLS = {"sleep": "async", "block": "blocks a thread"}
"""{function of tests/support/tool_functions.py: its name in the table}."""


def main(
    trajectories: Annotated[int, typer.Option(min=1, help="Rollouts that run at the same time.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds of the one tool call in each rollout.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
) -> None:
    """Print seconds of one rollout and of many, for an asynchronous tool and for one that blocks its thread."""
    table = Table(title=f"a tool of {seconds:g} s, medians of {rounds} rounds")
    for column in ("tool", "one trajectory, s", f"{trajectories} trajectories, s", "ratio", "one by one, s"):
        table.add_column(column, justify="left" if column == "tool" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for tool, kind in TOOLS.items():
            tools = Path(folder) / f"{tool}.yaml"
            tools.write_text(f"- function: tests.support.tool_functions:{tool}\n")
            measure(tool, tools, 1, seconds)  # warms up imports and the tokenizer
            one = statistics.median(measure(tool, tools, 1, seconds) for _ in range(rounds))
            many = statistics.median(measure(tool, tools, trajectories, seconds) for _ in range(rounds))
            table.add_row(kind, f"{one:.2f}", f"{many:.2f}", f"{many / one:.2f}", f"{one * trajectories:.0f}")
    table_console().print(table)


def measure(tool: str, tools: Path, num_trajectories: int, seconds: float) -> float:
    """Seconds until all rollouts have ended, each with one call that takes `seconds`."""

    async def play() -> float:
        script = [call(tool, seconds=seconds), "Done."]
        loops = [make_loop(script, f"pivot.rollout.tools={tools}") for _ in range(num_trajectories)]
        began = time.monotonic()
        await asyncio.gather(*(loop.run({}, **row()) for loop in loops))
        return time.monotonic() - began

    return asyncio.run(play())


if __name__ == "__main__":
    typer.run(main)
