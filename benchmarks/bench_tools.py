"""What slow tools cost: 64 trajectories with a tool of one second beside one. `make bench-tools`."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.scripted_engine import call, make_loop, row

NUM_TRAJECTORIES = 64
SECONDS = 1.0
ROUNDS = 5


def measure(tool: str, tools: Path, num_trajectories: int) -> float:
    """Seconds that so many trajectories take together, each with one call."""

    async def play() -> float:
        script = [call(tool, seconds=SECONDS), "Done."]
        loops = [make_loop(script, f"pivot.rollout.tools={tools}") for _ in range(num_trajectories)]
        began = time.monotonic()
        await asyncio.gather(*(loop.run({}, **row()) for loop in loops))
        return time.monotonic() - began

    return asyncio.run(play())


def main() -> None:
    """Measure an asynchronous tool and one that blocks its thread."""
    table = Table(title=f"a tool of {SECONDS:g} s, medians of {ROUNDS} rounds")
    for column in ("tool", "one trajectory, s", f"{NUM_TRAJECTORIES} trajectories, s", "ratio", "one by one, s"):
        table.add_column(column, justify="left" if column == "tool" else "right")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools.yaml"
        for tool, kind in (("sleep", "async"), ("block", "blocks a thread")):
            tools = Path(folder) / f"{tool}.yaml"
            tools.write_text(f"- function: tests.support.tool_functions:{tool}\n")
            measure(tool, tools, 1)  # loads what the first loads
            one = statistics.median(measure(tool, tools, 1) for _ in range(ROUNDS))
            many = statistics.median(measure(tool, tools, NUM_TRAJECTORIES) for _ in range(ROUNDS))
            table.add_row(kind, f"{one:.2f}", f"{many:.2f}", f"{many / one:.2f}", f"{one * NUM_TRAJECTORIES:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
