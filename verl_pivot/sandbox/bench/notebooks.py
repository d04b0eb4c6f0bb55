"""Notebooks whose cells call functions of the host -> what a call costs, and whether many at once get their answers."""

import asyncio
import json
import os
import time
from dataclasses import dataclass

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.harness import Advance, BenchHarness
from verl_pivot.sandbox.bench.processes import Footprint, footprint
from verl_pivot.sandbox.bench.report import BenchRow, at_most, median, number, percentile
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import Limits
from verl_pivot.sandbox.host_functions import CallLimits, HostFunction, HostReply
from verl_pivot.sandbox.session import Session
from verl_pivot.types import JsonObject

SEARCH = HostFunction(
    name="search",
    description="Search the documents.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
NUM_CELLS = 5
"""Cells of each notebook when many are open at once; each cell makes two calls."""
_MS = 1000.0
_TIMED = """
import time
seconds = []
for number in range({num_calls}):
    begin = time.perf_counter()
    found = search(str(number))
    seconds.append(time.perf_counter() - begin)
    assert found == str(number)
seconds
"""
_CELL = "first = search('{cell} first')\nprint(first)\nsecond = search(query='{cell} second')\nprint(second)"
_LIMITS = Limits(wall_seconds=60.0)
_SETTLE_SECONDS = 10.0


class Echo:
    """Function of the host that returns a prefix and its query, and measures its own time."""

    def __init__(self, prefix: str = "") -> None:
        self.seconds: list[float] = []
        self._prefix = prefix

    async def __call__(self, name: str, arguments: JsonObject) -> HostReply:
        begin = time.perf_counter()
        reply = HostReply(value=f"{self._prefix}{arguments['query']}")
        self.seconds.append(time.perf_counter() - begin)
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Resources that client and service hold at one moment."""

    num_sessions: int
    num_tasks: int
    num_client_files: int
    service: Footprint

    def num_more_than(self, before: "_Held") -> int:
        """Sessions, tasks, descriptors and processes beyond those of an earlier moment."""
        return (
            max(0, self.num_sessions - before.num_sessions)
            + max(0, self.num_tasks - before.num_tasks)
            + max(0, self.num_client_files - before.num_client_files)
            + max(0, self.service.num_service_files - before.service.num_service_files)
            + max(0, self.service.num_processes - before.service.num_processes)
        )


async def measure_notebooks(harness: BenchHarness) -> list[BenchRow]:
    """Measure calls of one notebook, then many notebooks at once, and the resources that these leave behind."""
    service_pid = (await harness.service()).pid
    assert service_pid is not None, "the service has started"
    num_notebooks = harness.sizes.num_notebooks
    async with harness.client() as client:
        cost = await _call_seconds(client, harness.sizes.num_host_calls)
    await _play(harness, 4 * harness.num_lanes)  # makes the spares of each lane
    before = await _held(harness, service_pid)
    with harness.steps("notebooks", num_notebooks) as advance:
        begin = time.perf_counter()
        num_wrong = await _play(harness, num_notebooks, advance)
        seconds = time.perf_counter() - begin
    num_left, after = await _left(harness, service_pid, before)
    lane_files = after.service.num_lane_files - before.service.num_lane_files
    rate = 2 * NUM_CELLS * num_notebooks / seconds
    note = (
        f"{num_notebooks} at once, {NUM_CELLS} cells with two calls each: {number(seconds)} s, {number(rate)} calls/s"
    )
    return [
        BenchRow(
            part="notebooks",
            name="call over the function's own time, p50",
            value=median(cost) * _MS,
            unit="ms",
            target=at_most(3),
            note=f"p99 {number(percentile(cost, 0.99) * _MS)} ms of {len(cost)}",
        ),
        BenchRow(part="notebooks", name="wrong answers", value=num_wrong, target=at_most(0), note=note),
        BenchRow(
            part="notebooks",
            name="sessions, tasks, descriptors and processes left",
            value=num_left,
            target=at_most(0),
            note=f"lanes hold {lane_files} more descriptors, among them those of idle networks",
        ),
    ]


async def _call_seconds(client: Sandbox, num_calls: int) -> list[float]:
    """Seconds of each call as the cell sees it, without those that the function itself took."""
    echo = Echo()
    async with await client.open(limits=_LIMITS, functions=[SEARCH]) as session:
        limits = CallLimits(max_calls=num_calls)
        code = _TIMED.format(num_calls=num_calls)
        result = await session.run(code, answer_call=echo, call_limits=limits)
    if result.value is None or len(echo.seconds) != num_calls:
        raise SandboxError(f"a cell with {num_calls} calls gave {result}")
    seen: list[float] = json.loads(result.value)
    return [around - own for around, own in zip(seen, echo.seconds, strict=True)]


async def _play(harness: BenchHarness, num_notebooks: int, advance: Advance = lambda _: None) -> int:
    """Open this many notebooks at once, and run their cells; returns how many answers were wrong."""
    async with harness.client() as client:
        opening = (client.open(limits=_LIMITS, functions=[SEARCH]) for _ in range(num_notebooks))
        sessions = await asyncio.gather(*opening)
        wrong = await asyncio.gather(*(_cells(index, session, advance) for index, session in enumerate(sessions)))
        await asyncio.gather(*(session.close() for session in sessions))
    return sum(wrong)


async def _cells(index: int, session: Session, advance: Advance) -> int:
    """Run the cells of one notebook; returns how many answers were wrong."""
    echo, num_wrong = Echo(f"{index}: "), 0
    for cell in range(NUM_CELLS):
        result = await session.run(_CELL.format(cell=cell), answer_call=echo)
        num_wrong += result.stdout != f"{index}: {cell} first\n{index}: {cell} second\n"
    advance(1)
    return num_wrong


async def _held(harness: BenchHarness, service_pid: int) -> _Held:
    await harness.wait_quiet()
    return _Held(
        num_sessions=await harness.num_sessions(),
        num_tasks=len(asyncio.all_tasks()),
        num_client_files=len(os.listdir("/proc/self/fd")),
        service=await asyncio.to_thread(footprint, service_pid),
    )


async def _left(harness: BenchHarness, service_pid: int, before: _Held) -> tuple[int, _Held]:
    """Number of resources still held beyond `before` when things have settled, and all resources held then."""
    end = time.monotonic() + _SETTLE_SECONDS
    held = await _held(harness, service_pid)
    while held.num_more_than(before) and time.monotonic() < end:
        await asyncio.sleep(0.2)
        held = await _held(harness, service_pid)
    return held.num_more_than(before), held
