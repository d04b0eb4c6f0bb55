"""Many calls at once, sleeping programs, and sessions, over HTTP -> correctness, times and memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.harness import BenchHarness
from verl_pivot.sandbox.bench.machine import round_trip_seconds
from verl_pivot.sandbox.bench.processes import available_bytes, lane_bytes, status_bytes
from verl_pivot.sandbox.bench.report import BenchRow, at_least, at_most, median, number, percentile
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Result
from verl_pivot.sandbox.session import Session

MAX_SERVICE_MIB = 512.0
"""Most memory of the service: 256 MiB of requests and answers, 64 MiB of kept results, and Python itself."""
SECONDS_PER_CALL = 0.05
"""Seconds that each submitted call adds to the deadline, since the last call waits for all others."""
NUM_QUEUED = 1500
"""Calls of one client that fit into its first window."""
MIN_REPORTED_SHARE = 0.8
"""Target: at least this share of a caller's waiting time is in the result's own timing; the rest is transport."""
SAMPLE_SECONDS = 2.0
"""Seconds between two samples of the memory."""
_SLEEP = "import time\ntime.sleep(1)\nprint({number})"
_MS = 1000.0
_ROUND_TRIP = "round trip, p50: the time that this machine takes to wake a process; a cell has three of them"


@dataclass(slots=True, kw_only=True)
class MeasuredCalls:
    """Outcomes of calls that were submitted together."""

    results: list[Result] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Seconds from each call to its result, by this process's clock."""
    num_wrong: int = 0
    """Results that are not the output of the program that was submitted."""
    failures: list[str] = field(default_factory=list)
    """Messages of the calls without a result."""

    async def call(self, client: Sandbox, code: str, expected: str, deadline_seconds: float) -> None:
        begin = time.perf_counter()
        try:
            result = await client.run(code, deadline_seconds=deadline_seconds)
        except SandboxError as error:
            self.failures.append(str(error))
            return
        self.seconds.append(time.perf_counter() - begin)
        self.results.append(result)
        self.num_wrong += result.stdout != expected

    @property
    def num_correct(self) -> int:
        return len(self.results) - self.num_wrong

    def reported_and_waited(self) -> Iterator[tuple[float, float]]:
        """Yield (seconds that a result reports, seconds that its caller waited)."""
        for result, waited in zip(self.results, self.seconds, strict=True):
            timing = result.timing
            yield timing.queue_seconds + timing.setup_seconds + timing.wall_seconds, waited


@dataclass(slots=True, kw_only=True)
class Peak:
    """Largest memory that was observed, in MiB."""

    service: float = 0.0
    lanes: float = 0.0
    machine: float = 0.0
    """Memory in use on the whole machine, beyond that at the beginning."""


@asynccontextmanager
async def watch_memory(service_pid: int) -> AsyncIterator[Peak]:
    """Sample the memory of a service until the end of the `with` block."""
    peak, available = Peak(), available_bytes()

    def sample() -> None:
        peak.service = status_bytes(service_pid, "VmHWM") / MIB
        peak.lanes = max(peak.lanes, lane_bytes(service_pid) / MIB)
        peak.machine = max(peak.machine, (available - available_bytes()) / MIB)

    async def keep_sampling() -> None:
        while True:
            await asyncio.to_thread(sample)
            await asyncio.sleep(SAMPLE_SECONDS)

    watching = asyncio.create_task(keep_sampling())
    try:
        yield peak
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        sample()


async def measure_calls(harness: BenchHarness) -> list[BenchRow]:
    """Measure calls of many clients that are submitted at once; each program prints its own number."""
    sizes, service = harness.sizes, await harness.service()
    deadline = max(120.0, sizes.num_calls * SECONDS_PER_CALL)
    answers, num_before = MeasuredCalls(), await harness.num_executions()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(harness.client()) for _ in range(sizes.num_clients)]
        advance = stack.enter_context(harness.steps("calls", sizes.num_calls))

        async def call(index: int) -> None:
            client = clients[index % sizes.num_clients]
            await answers.call(client, f"print({index})", f"{index}\n", deadline)
            advance(1)

        assert service.pid is not None
        async with watch_memory(service.pid) as peak:
            begin = time.perf_counter()
            await asyncio.gather(*(call(index) for index in range(sizes.num_calls)))
            seconds = time.perf_counter() - begin
    num_executions = await harness.num_executions() - num_before
    queued = await _queued(harness)
    return [
        *_answer_rows(answers, sizes.num_calls, sizes.num_clients, seconds, num_executions),
        *_memory_rows(peak),
        *_time_rows(answers),
        *_honesty_rows([answers, queued]),
    ]


def _answer_rows(
    answers: MeasuredCalls, num_calls: int, num_clients: int, seconds: float, num_executions: int
) -> list[BenchRow]:
    rate = f"{num_calls} calls of {num_clients} clients, {number(num_calls / seconds)} calls/s"
    failures = f"{answers.num_wrong} wrong, {len(answers.failures)} failed"
    failures += f", the first: {answers.failures[0]}" if answers.failures else ""
    surplus = num_executions - num_calls
    return [
        BenchRow(part="calls", name="time until the last answer", value=seconds, unit="s", note=rate),
        BenchRow(
            part="calls", name="correct answers", value=answers.num_correct, target=at_least(num_calls), note=failures
        ),
        BenchRow(
            part="calls",
            name="calls lost or run twice",
            value=abs(surplus),
            target=at_most(0),
            note=f"the service counted {num_executions} executions",
        ),
    ]


def _memory_rows(peak: Peak) -> list[BenchRow]:
    service, lanes = "peak memory of the service", "peak memory of the lanes"
    return [
        BenchRow(
            part="calls", name=service, value=peak.service, unit="MiB", target=at_most(MAX_SERVICE_MIB), note="VmHWM"
        ),
        BenchRow(
            part="calls",
            name=lanes,
            value=peak.lanes,
            unit="MiB",
            note=f"RSS of supervisors and zygotes; the whole machine, with programs: {number(peak.machine)} MiB more",
        ),
    ]


async def _queued(harness: BenchHarness) -> MeasuredCalls:
    """Measure calls of one client that the service takes all at once, so that they wait only in the service."""
    answers, num_calls = MeasuredCalls(), min(NUM_QUEUED, harness.sizes.num_calls)
    async with harness.client() as client:
        await client.run("print(1)")
        codes = [(f"print({index})", f"{index}\n") for index in range(num_calls)]
        await asyncio.gather(*(answers.call(client, code, expected, 120.0) for code, expected in codes))
    return answers


def _time_rows(answers: MeasuredCalls) -> list[BenchRow]:
    """Rows of the times that results report and that their callers waited."""
    if not answers.results:
        return []
    timings = [result.timing for result in answers.results]
    columns = {
        "queue time, p50 of results": [timing.queue_seconds for timing in timings],
        "setup time, p50 of results": [timing.setup_seconds for timing in timings],
        "run time, p50 of results": [timing.wall_seconds for timing in timings],
        "caller's waiting time, p50": answers.seconds,
    }
    return [
        BenchRow(
            part="calls", name=name, value=median(values) * _MS, unit="ms", note=f"p99 {number(_p99_ms(values))} ms"
        )
        for name, values in columns.items()
    ]


def _honesty_rows(groups: list[MeasuredCalls]) -> list[BenchRow]:
    """Rows that compare reported times with waiting times; calls of the last group waited only in the service."""
    num_too_long = sum(reported > waited for answers in groups for reported, waited in answers.reported_and_waited())
    shares = [reported / waited for reported, waited in groups[-1].reported_and_waited()]
    note = f"queue, setup and run time, p50 of {len(shares)} calls of one client"
    return [
        BenchRow(
            part="calls",
            name="results that report more time than the caller waited",
            value=num_too_long,
            target=at_most(0),
        ),
        BenchRow(
            part="calls",
            name="share of the waiting time that results report",
            value=median(shares) if shares else None,
            target=at_least(MIN_REPORTED_SHARE),
            note=note,
        ),
    ]


def _p99_ms(seconds: list[float]) -> float:
    return percentile(seconds, 0.99) * _MS


async def measure_sleepers(harness: BenchHarness) -> list[BenchRow]:
    """Measure programs that sleep for 1 s, all in flight at once."""
    num_calls, seconds, answers = harness.sizes.num_sleepers, [], MeasuredCalls()
    await harness.service()
    async with harness.client() as client:
        await client.run("print(1)")
        with harness.steps("sleepers", harness.sizes.num_rounds) as advance:
            for _ in range(harness.sizes.num_rounds):
                begin = time.perf_counter()
                await asyncio.gather(*(_sleep(answers, client, index) for index in range(num_calls)))
                seconds.append(time.perf_counter() - begin)
                advance(1)
    num_all = num_calls * harness.sizes.num_rounds
    note = f"median of {len(seconds)} rounds, from {number(min(seconds))} to {number(max(seconds))}"
    return [
        BenchRow(
            part="sleepers",
            name=f"{num_calls} that sleep 1 s",
            value=median(seconds),
            unit="s",
            target=at_most(5),
            note=note,
        ),
        BenchRow(part="sleepers", name="correct answers", value=answers.num_correct, target=at_least(num_all)),
    ]


async def _sleep(answers: MeasuredCalls, client: Sandbox, index: int) -> None:
    await answers.call(client, _SLEEP.format(number=index), f"{index}\n", 120.0)


async def measure_sessions(harness: BenchHarness) -> list[BenchRow]:
    """Measure cells of one session, and forks of it."""
    await harness.service()
    num_cells, num_forks = harness.sizes.num_cells, harness.sizes.num_forks
    round_trip_ms = await asyncio.to_thread(round_trip_seconds) * _MS
    with harness.steps("sessions", num_cells + num_forks) as advance:
        async with harness.client() as client, await client.open() as session:
            await session.run("import numpy\ncount = 0\ntable = numpy.zeros(100_000)")
            cells = []
            for index in range(1, num_cells + 1):
                begin = time.perf_counter()
                result = await session.run("count += 1\ncount")
                cells.append(time.perf_counter() - begin)
                _require(result.value == str(index), f"cell {index} gave {result}")
                advance(1)
            forks = []
            for _ in range(num_forks):
                forks.append(await _time_fork(session, num_cells))
                advance(1)
    return [
        _p50_row("cell over the client, p50", cells, 1.0),
        _p50_row("fork over the client, p50", forks, 10.0),
        BenchRow(part="sessions", name="two processes and a pipe", value=round_trip_ms, unit="ms", note=_ROUND_TRIP),
    ]


async def _time_fork(session: Session, expected: int) -> float:
    """Seconds of a fork; checking and closing the branch does not count."""
    begin = time.perf_counter()
    branch = await session.fork()
    seconds = time.perf_counter() - begin
    async with branch:
        result = await branch.run("count")
        _require(result.value == str(expected), f"a branch gave {result}")
    return seconds


def _p50_row(name: str, seconds: list[float], most_ms: float) -> BenchRow:
    note = f"p99 {number(_p99_ms(seconds))} ms of {len(seconds)}"
    return BenchRow(
        part="sessions", name=name, value=median(seconds) * _MS, unit="ms", target=at_most(most_ms), note=note
    )


def _require(is_correct: bool, message: str) -> None:
    if not is_correct:
        raise SandboxError(message)
