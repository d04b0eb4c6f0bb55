"""Episodes of MiniWoB++ per second, start time and memory of a browser, and what many episodes leave behind.

Run by `make bench-browser`, or with other sizes by `python -m benchmarks.bench_browser --help`. An episode runs as in
training: it opens a page, reads the task, clicks or fills in fields, reads the reward and closes the page. A fixed
rule replaces the policy.
"""

import asyncio
import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from verl_pivot.browser.shared import shared_browser
from verl_pivot.commands.tables import table_console
from verl_pivot.environments.web_environment import WebEnvironment
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import ToolCall

TASKS = ("click-test", "click-button", "click-test-2", "enter-text", "focus-text")
_TICKS = os.sysconf("SC_CLK_TCK")


def main(
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 2000,
    contexts: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    starts: Annotated[int, typer.Option(min=1, help="Browsers to start, one after the other, for the start time.")] = 5,
) -> None:
    """Print the figures; exit with code 1 if processes, browser folders or file descriptors are left behind."""
    seconds = sorted(asyncio.run(start_seconds()) for _ in range(starts))
    before = left_behind()
    table = Table(title=f"{episodes} episodes of MiniWoB++, {contexts} at once")
    for column in ("measure", "value"):
        table.add_column(column)
    table.add_row(
        "start of a browser", f"{statistics.median(seconds):.2f} s (median of {starts}, worst {seconds[-1]:.2f} s)"
    )
    for name, figure in asyncio.run(played(episodes, contexts)):
        table.add_row(name, figure)
    after = left_behind()
    table.add_row("before: processes, browser folders in /tmp, file descriptors", str(before))
    table.add_row("after: the same", str(after))
    table_console().print(table)
    raise typer.Exit(0 if after[:2] == before[:2] and after[2] <= before[2] else 1)


async def start_seconds() -> float:
    """Seconds to start a browser and to open the first page."""
    began = time.perf_counter()
    async with toolset().open({"metadata": json.dumps({"task": TASKS[0], "seed": 0})}):
        return time.perf_counter() - began


def toolset() -> Toolset:
    made = Toolset("miniwob.yaml")
    made.add_entry({"environment": "miniwob"})
    return made


async def played(episodes: int, contexts: int) -> list[tuple[str, str]]:
    """Play all episodes; returns rows of the table as (name, value)."""
    tools, numbers, solved = toolset(), iter(range(episodes)), list[float]()
    async with tools.open({"metadata": json.dumps({"task": TASKS[0], "seed": 0})}) as first:
        browser = await shared_browser(environment_of(first)._browser)
    took, memory = list[float](), list[float]()

    async def player() -> None:
        for number in numbers:
            began = time.perf_counter()
            solved.append(await episode(tools, number))
            took.append(time.perf_counter() - began)
            if number % 100 == 0:
                memory.append(tree_mib(os.getpid()))

    began, cpu = time.perf_counter(), tree_cpu_seconds(os.getpid())
    await asyncio.gather(*(player() for _ in range(contexts)))
    seconds, cpu = time.perf_counter() - began, tree_cpu_seconds(os.getpid()) - cpu
    open_contexts = browser.current.num_open if browser.current is not None else 0
    return [
        ("episodes per second", f"{episodes / seconds:.1f}"),
        ("CPU seconds per episode", f"{cpu / episodes:.3f} (of processes that still run at the end)"),
        (
            "seconds per episode",
            f"{statistics.median(took):.2f} (median), {sorted(took)[int(0.95 * len(took))]:.2f} (p95)",
        ),
        ("solved by the rule", f"{sum(reward > 0 for reward in solved)} of {episodes}"),
        ("memory of worker, driver and browser", f"{memory[0]:.0f} MiB at the start, {memory[-1]:.0f} MiB at the end"),
        ("browsers started, contexts open at the end", f"{browser.num_started}, {open_contexts}"),
    ]


def environment_of(tools: RolloutTools) -> WebEnvironment:
    (environment,) = tools._environments
    assert isinstance(environment, WebEnvironment)
    return environment


async def episode(tools: Toolset, number: int) -> float:
    """Play one episode by the rule; returns its reward."""
    row = {"metadata": json.dumps({"task": TASKS[number % len(TASKS)], "seed": number})}
    async with tools.open(row) as opened:
        for call in rule(TASKS[number % len(TASKS)], opened.opening):
            await called(opened.toolbox, call)
        verdict = await opened.score(None)
    assert verdict is not None
    assert verdict.score is not None, verdict
    return verdict.score


def rule(task: str, page: str) -> list[ToolCall]:
    """Calls of tools that solve the task on a page."""
    told = re.search(r'"([^"]*)"', page.splitlines()[0])
    if task == "enter-text":
        assert told is not None
        field = ToolCall(name="fill", arguments={"number": number_of(page, "textbox"), "text": told[1]})
        return [field, ToolCall(name="click", arguments={"number": number_of(page, "button")})]
    if task == "focus-text":
        return [ToolCall(name="click", arguments={"number": number_of(page, "textbox")})]
    wanted = {"click-test": "button", "click-test-2": 'button "ONE"'}.get(task) or f'button "{told and told[1]}"'
    return [ToolCall(name="click", arguments={"number": number_of(page, wanted)})]


def number_of(page: str, element: str) -> int:
    found = re.search(rf"\[(\d+)\] {re.escape(element)}", page)
    assert found is not None, f"no {element} in {page}"
    return int(found[1])


async def called(toolbox: Toolbox, call: ToolCall) -> None:
    (outcome,) = await toolbox.run([call])
    assert outcome.observation is not None, outcome.failure


def left_behind() -> tuple[int, int, int]:
    """Numbers of descendant processes, of browser folders in /tmp, and of open file descriptors."""
    folders = sum(name.startswith(("verl-pivot-browser-", "playwright")) for name in os.listdir("/tmp"))
    return len(tree(os.getpid())) - 1, folders, len(os.listdir("/proc/self/fd"))


def tree(root: int) -> list[int]:
    """Ids of a process and of all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def tree_mib(root: int) -> float:
    """MiB of memory of a process and its descendants; a shared page is divided among the processes that map it."""
    kib = 0
    for pid in tree(root):
        try:
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        except OSError:
            continue
        kib += int(found[1]) if found else 0
    return kib / 1024


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of a process and its descendants, and of ended children for which they have waited."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return ticks / _TICKS


if __name__ == "__main__":
    typer.run(main)
