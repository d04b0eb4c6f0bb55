"""One program, many times -> calls/s and latency of zygotes, bubblewrap per call, a bare fork, and HTTP."""

import asyncio
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.fork import ForkServer
from verl_pivot.sandbox.bench.harness import Advance, BenchHarness
from verl_pivot.sandbox.bench.report import BenchRow, BenchTarget, at_least, at_most, median, median_ratio, number
from verl_pivot.sandbox.bubblewrap.command_line import (
    DataFile,
    exec_command,
    find_bwrap,
    parse_version,
    standard_environment,
    with_limits,
)
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import Limits, Program, Result
from verl_pivot.sandbox.lane.seccomp import filter_bytes
from verl_pivot.sandbox.service.backend import Backend, BackendSettings
from verl_pivot.sandbox.service.zygotes import SESSION_MODULES, STANDARD_MODULES

BARE = "print(1)"
SCIENCE = "import numpy, sympy\nprint(1)"
NUM_AT_ONCE = 16
"""Calls in flight when the backend's rate is measured."""
THREADS = (2, 3, 4)
"""Numbers of threads that start bubblewrap; zygotes are compared with the fastest."""
_CALL_SECONDS = 120.0
_MAIN = "/tmp/main.py"
_OUTPUT = "1\n"
_MS = 1000.0


class BwrapPerCall:
    """Baseline: each call starts a hardened bubblewrap with a cold Python, from a pool of threads."""

    def __init__(self, code: str) -> None:
        self._python = PythonView.of()
        self._bwrap = find_bwrap()
        answer = subprocess.run([self._bwrap, "--version"], capture_output=True, text=True, check=True).stdout
        self._version = parse_version(answer)
        self._seccomp = filter_bytes()
        self._main = DataFile(destination=_MAIN, content=code.encode())

    def rate(self, num_calls: int, num_threads: int) -> float:
        """Calls per second. Blocks."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(num_threads) as threads:
            for outcome in [threads.submit(self._call) for _ in range(num_calls)]:
                outcome.result()
        return num_calls / (time.perf_counter() - begin)

    def _call(self) -> None:
        limits = Limits()
        command = exec_command(
            self._python,
            with_limits(limits, [self._python.executable, _MAIN]),
            bwrap=self._bwrap,
            version=self._version,
            tmp_bytes=limits.tmp_bytes,
            seccomp=self._seccomp,
            files=[self._main],
        )
        try:
            process = subprocess.Popen(
                command.argv, env={}, pass_fds=command.pass_fds, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        finally:
            command.close()
        try:
            stdout, stderr = process.communicate(timeout=_CALL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if stdout != _OUTPUT.encode():
            raise SandboxError(f"bubblewrap's own run of the program failed: {stderr.decode(errors='replace')[-500:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One program, and the targets for it."""

    part: str
    code: str
    modules: Sequence[str]
    """Modules that the program's zygote has imported."""
    num_bwrap_calls: int
    ratio: BenchTarget
    """Target for the rate of zygotes divided by that of bubblewrap."""
    latency: BenchTarget | None
    """Target for the milliseconds of a call."""
    overhead: BenchTarget | None
    """Target for the time of a call divided by that of a bare fork."""


@dataclass(slots=True, kw_only=True)
class _Rounds:
    """Measurements, each list [num_rounds]."""

    bwrap_rates: list[float] = field(default_factory=list)
    backend_rates: list[float] = field(default_factory=list)
    fork_seconds: list[float] = field(default_factory=list)
    backend_seconds: list[float] = field(default_factory=list)


async def measure_science(harness: BenchHarness) -> list[BenchRow]:
    """Measure `import numpy, sympy; print(1)`."""
    comparison = Comparison(
        part="science",
        code=SCIENCE,
        modules=(*STANDARD_MODULES, *SESSION_MODULES, *BackendSettings().preload),
        num_bwrap_calls=harness.sizes.num_bwrap_science,
        ratio=at_least(60.0),
        latency=at_most(6.0),
        overhead=at_most(3.0),
    )
    return await _compare(harness, comparison)


async def measure_bare(harness: BenchHarness) -> list[BenchRow]:
    """Measure `print(1)`."""
    comparison = Comparison(
        part="bare",
        code=BARE,
        modules=(),
        num_bwrap_calls=harness.sizes.num_bwrap_bare,
        ratio=at_least(5.0),
        latency=None,
        overhead=None,
    )
    return await _compare(harness, comparison)


async def _compare(harness: BenchHarness, comparison: Comparison) -> list[BenchRow]:
    sizes, backend = harness.sizes, await harness.backend()
    program, bwrap = Program(code=comparison.code), BwrapPerCall(comparison.code)
    rounds = _Rounds()
    num_steps = 1 + len(THREADS) + 4 * sizes.num_rounds
    with (
        harness.steps(comparison.part, num_steps) as advance,
        ForkServer(comparison.modules, comparison.code, standard_environment(PythonView.of())) as forks,
    ):
        await backend_rate(backend, program, NUM_AT_ONCE * 4)  # warm-up
        await asyncio.to_thread(forks.measure, NUM_AT_ONCE)
        advance(1)
        num_threads = await _fastest(bwrap, comparison.num_bwrap_calls, advance)
        for _ in range(sizes.num_rounds):
            rounds.bwrap_rates.append(await asyncio.to_thread(bwrap.rate, comparison.num_bwrap_calls, num_threads))
            advance(1)
            rounds.backend_rates.append(await backend_rate(backend, program, sizes.num_backend_calls))
            advance(1)
            rounds.fork_seconds.append(median(await asyncio.to_thread(forks.measure, sizes.num_alone)))
            advance(1)
            rounds.backend_seconds.append(median(await _alone(backend, program, sizes.num_alone)))
            advance(1)
    return _rows(comparison, rounds, num_threads)


def _rows(comparison: Comparison, rounds: _Rounds, num_threads: int) -> list[BenchRow]:
    part, num_rounds = comparison.part, len(rounds.bwrap_rates)
    ratios = [above / below for above, below in zip(rounds.backend_rates, rounds.bwrap_rates, strict=True)]
    spread = f"median of {num_rounds} rounds, from {number(min(ratios))} to {number(max(ratios))}"
    latency, fork = median(rounds.backend_seconds), median(rounds.fork_seconds)
    overhead = median_ratio(rounds.backend_seconds, rounds.fork_seconds)
    threads = f"{num_threads} at once, the fastest of {', '.join(map(str, THREADS))}"
    return [
        BenchRow(part=part, name="bubblewrap per call", value=median(rounds.bwrap_rates), unit="calls/s", note=threads),
        BenchRow(
            part=part,
            name="zygote backend",
            value=median(rounds.backend_rates),
            unit="calls/s",
            note=f"in process, {NUM_AT_ONCE} in flight",
        ),
        BenchRow(
            part=part, name="zygote / bubblewrap", value=median(ratios), unit="x", target=comparison.ratio, note=spread
        ),
        BenchRow(
            part=part,
            name="p50 of a call",
            value=latency * _MS,
            unit="ms",
            target=comparison.latency,
            note="one in flight",
        ),
        BenchRow(
            part=part,
            name="p50 of a bare fork",
            value=fork * _MS,
            unit="ms",
            note="same imports, same code, no isolation",
        ),
        BenchRow(part=part, name="call / bare fork", value=overhead, unit="x", target=comparison.overhead),
    ]


async def _fastest(bwrap: BwrapPerCall, num_calls: int, advance: Advance) -> int:
    """Number of threads with which most bubblewraps are started per second."""
    rates: dict[int, float] = {}
    for num_threads in THREADS:
        rates[num_threads] = await asyncio.to_thread(bwrap.rate, num_calls, num_threads)
        advance(1)
    return max(rates, key=lambda num_threads: rates[num_threads])


async def backend_rate(backend: Backend, program: Program, num_calls: int) -> float:
    """Calls per second of a backend in this process."""
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def call() -> None:
        async with slots:
            _check(await backend.run(program))

    begin = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(num_calls)))
    return num_calls / (time.perf_counter() - begin)


async def http_rate(client: Sandbox, program: Program, num_calls: int) -> float:
    """Calls per second over HTTP, submitted at once."""
    begin = time.perf_counter()
    for result in await client.run_many([program] * num_calls):
        _check(result)
    return num_calls / (time.perf_counter() - begin)


async def _alone(backend: Backend, program: Program, num_calls: int) -> list[float]:
    """Seconds of each call, one after the other."""
    seconds = []
    for _ in range(num_calls):
        begin = time.perf_counter()
        _check(await backend.run(program))
        seconds.append(time.perf_counter() - begin)
    return seconds


def _check(result: Result) -> None:
    if result.stdout != _OUTPUT:
        raise SandboxError(
            f"a program that prints 1 gave {result.status}: {result.stdout[:200]!r} {result.stderr[-300:]!r}"
        )


async def measure_http(harness: BenchHarness) -> list[BenchRow]:
    """Measure the service over HTTP, and in turn the backend in this process."""
    rows = []
    backend = await harness.backend()
    await harness.service_and_backend()
    async with harness.client() as client:
        for name, code in (("bare", BARE), ("science", SCIENCE)):
            rows += await _compare_http(harness, backend, client, name, Program(code=code))
    return rows


async def _compare_http(
    harness: BenchHarness, backend: Backend, client: Sandbox, name: str, program: Program
) -> list[BenchRow]:
    num_calls, num_rounds = harness.sizes.num_http_calls, harness.sizes.num_rounds
    own: list[float] = []
    served: list[float] = []
    with harness.steps(f"http, {name}", 1 + 2 * num_rounds) as advance:
        await backend_rate(backend, program, NUM_AT_ONCE * 4)
        await http_rate(client, program, NUM_AT_ONCE * 4)
        advance(1)
        for _ in range(num_rounds):
            own.append(await backend_rate(backend, program, num_calls))
            advance(1)
            served.append(await http_rate(client, program, num_calls))
            advance(1)
    share = median_ratio(served, own)
    return [
        BenchRow(part="http", name=f"{name}: backend in process", value=median(own), unit="calls/s"),
        BenchRow(
            part="http", name=f"{name}: over HTTP", value=median(served), unit="calls/s", note=f"{num_calls} at once"
        ),
        BenchRow(part="http", name=f"{name}: HTTP / in process", value=share, unit="x", target=at_least(0.8)),
    ]
