"""Milliseconds that our client adds to an MCP tool call, first calls with servers started ahead, and leaks.

Run by `make bench-mcp`, or with other sizes by `python -m benchmarks.bench_mcp --help`. The servers are real. The
first two parts use a server written with the SDK. The last part, with many trajectories, uses a small one that starts
faster.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import psutil
import typer
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.support.paths import ROOT
from verl_pivot.commands.tables import table_console
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import Json, ToolCall

SHOP = str(ROOT / "tests/support/mcp_shop.py")
SMALL = str(ROOT / "tests/support/mcp_hostile.py")


def main(
    calls: Annotated[int, typer.Option(min=1, help="Calls of each client in a round.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
    warm: Annotated[int, typer.Option(min=1, help="Trajectories that begin at once with servers started ahead.")] = 64,
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories, each with its own server.")] = 2000,
) -> None:
    """Print times of a call and of trajectories' first calls, and what many trajectories leave behind."""
    console = table_console()
    console.print(asyncio.run(call_costs(calls, rounds)))
    console.print(asyncio.run(first_calls(warm)))
    console.print(asyncio.run(leftovers(trajectories, console)))


async def call_costs(num_calls: int, num_rounds: int) -> Table:
    """Milliseconds of one call by the SDK's client and by ours, one after the other in each round."""
    made = toolset(SHOP)
    parameters = StdioServerParameters(command=sys.executable, args=[SHOP])
    ours, bare = [], []
    async with Client(stdio_client(parameters)) as client, made.open({}) as tools:
        for _ in range(num_rounds + 1):
            bare.append(await median_ms(num_calls, lambda: client.call_tool("left", {"item": "tea"})))
            ours.append(await median_ms(num_calls, lambda: answered(tools, "left", item="tea")))
    table = Table(title=f"one call, ms: medians of {num_rounds} rounds of {num_calls} calls")
    for column in ("SDK's client", "our client", "difference"):
        table.add_column(column, justify="right")
    alone, whole = statistics.median(bare[1:]), statistics.median(ours[1:])  # the first round warms both up
    table.add_row(f"{alone:.2f}", f"{whole:.2f}", f"{whole - alone:.2f}")
    return table


async def median_ms(number: int, ask: Callable[[], Awaitable[object]]) -> float:
    spent = []
    for _ in range(number):
        began = time.perf_counter()
        await ask()
        spent.append(1000 * (time.perf_counter() - began))
    return statistics.median(spent)


async def answered(tools: RolloutTools, name: str, **arguments: Json) -> None:
    (outcome,) = await tools.toolbox.run([ToolCall(name=name, arguments=arguments)])
    assert outcome.observation is not None, outcome.failure


async def first_calls(number: int) -> Table:
    """Milliseconds from the start of a trajectory to the answer of its first call, all starting at once."""
    made = toolset(SHOP, max_sessions=number, started_ahead=number)
    sessions = await made.servers[0]._of_loop.get()
    async with made.open({}):  # the first trajectory makes the servers of the others start
        pass
    assert sessions.ahead._filling is not None
    await sessions.ahead._filling

    async def play() -> float:
        began = time.perf_counter()
        async with made.open({}) as tools:
            await answered(tools, "left", item="tea")
            spent = 1000 * (time.perf_counter() - began)
            await everyone.wait()  # no trajectory ends before all have started
            return spent

    everyone = asyncio.Barrier(number)
    spent = sorted(await asyncio.gather(*(play() for _ in range(number))))
    await sessions.ahead.close()
    table = Table(title=f"first call of {number} trajectories that begin at once, servers started ahead, ms")
    for column in ("median", "95 %", "longest"):
        table.add_column(column, justify="right")
    table.add_row(*(f"{spent[at]:.0f}" for at in (number // 2, int(0.95 * number), number - 1)))
    return table


async def leftovers(number: int, console: Console) -> Table:
    """Child processes, open files, sockets and folders of this process, before and after many trajectories."""
    made = toolset(SMALL, "prints")

    async def play() -> None:
        async with made.open({}) as tools:
            await answered(tools, "t")

    await play()
    before = counts()
    began = time.monotonic()
    with Progress(console=console) as progress:
        task = progress.add_task("trajectories", total=number)
        for at in range(0, number, 16):
            wave = min(16, number - at)
            await asyncio.gather(*(play() for _ in range(wave)))
            progress.advance(task, wave)
    seconds = time.monotonic() - began
    table = Table(title=f"{number} trajectories, 16 at a time, each with its own server: {seconds:.0f} s")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right")
    for (name, first), last in zip(before.items(), counts().values(), strict=True):
        table.add_row(name, str(first), str(last))
    return table


def counts() -> dict[str, int]:
    own = psutil.Process()
    folders = [name for name in os.listdir("/tmp") if name.startswith("verl-pivot-mcp-")]
    return {
        "processes": len(own.children(recursive=True)),
        "open files": own.num_fds(),
        "sockets": len(own.net_connections("all")),
        "folders in /tmp": len(folders),
    }


def toolset(*words: str, **options: Json) -> Toolset:
    made = Toolset("tools.yaml")
    made.add_entry({"mcp": {"command": [sys.executable, *words]}, **options})
    return made


if __name__ == "__main__":
    typer.run(main)
