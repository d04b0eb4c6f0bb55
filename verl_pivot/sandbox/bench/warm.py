"""Programs that use a library for the first time, each different -> calls/s, and the time that warm-ups save."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.harness import BenchHarness
from verl_pivot.sandbox.bench.rates import NUM_AT_ONCE
from verl_pivot.sandbox.bench.report import BenchRow, at_least, median, number
from verl_pivot.sandbox.execution import Program, Result
from verl_pivot.sandbox.service.backend import Backend, BackendSettings
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend

MakeProgram = Callable[[int], str]
_SYMPY = "from sympy import *\nx, y = symbols('x y')\n"
_PRELOAD = ("numpy", "sympy", "pandas")
_MS = 1000.0


def factor(k: int) -> str:
    return f"{_SYMPY}print(factor(x**3 - {k}*x**2 - 4*x + {4 * k}))"


def solve(k: int) -> str:
    return f"{_SYMPY}print(solve(x**2 - {2 * k + 1}*x + {k * (k + 1)}, x))"


def simplify(k: int) -> str:
    return f"{_SYMPY}print(simplify((x**2 - {k * k})/(x - {k}) + y))"


def all_three(k: int) -> str:
    return "\n".join((factor(k), solve(k), simplify(k)))


def numpy(k: int) -> str:
    return (
        f"import numpy\na = numpy.random.default_rng({k}).normal(size=(3, 3))\n"
        "print(numpy.linalg.solve(a, a[0]), numpy.median(a), numpy.fft.fft(a[0]), numpy.roots([1, -3, 2]))"
    )


def pandas(k: int) -> str:
    return (
        f"import pandas\nd = pandas.DataFrame({{'a': [1, 2, 2], 'b': ['x', 'y', 'y'], 'c': [{k}, 2.5, 3.5]}})\n"
        "print(d.groupby('b')['c'].sum(), d.sort_values('c'), d.merge(d, on='a').to_csv(), d.describe())"
    )


def datetime(k: int) -> str:
    return f"import datetime\nprint(datetime.datetime.strptime('{1000 + k}-01-02', '%Y-%m-%d'))"


LIBRARIES: Mapping[str, MakeProgram] = {"sympy": all_three, "numpy": numpy, "pandas": pandas, "datetime": datetime}
"""{library with a warm-up: function that makes programs which use it}."""


async def measure_warm(harness: BenchHarness) -> list[BenchRow]:
    """Measure the rate of programs that use sympy, then each library with and without its warm-up."""
    backend = await harness.backend()
    rows = [
        await _rate(harness, backend, "sympy: factor, solve or simplify", (factor, solve, simplify)),
        await _rate(harness, backend, "sympy: all three in each program", (all_three,)),
    ]
    with _file_without_warm_ups() as cold_file:
        cold = await _cpu_seconds(harness, BackendSettings(num_lanes=1, preload=_PRELOAD, languages_file=cold_file))
    warm = await _cpu_seconds(harness, BackendSettings(num_lanes=1, preload=_PRELOAD))
    return [*rows, *(_saved(name, cold[name], warm[name]) for name in LIBRARIES)]


@contextmanager
def _file_without_warm_ups() -> Iterator[Path]:
    with TemporaryDirectory(dir="/var/tmp") as folder:
        file = Path(folder, "languages.yaml")
        file.write_text("python: {warm: null}\n")
        yield file


async def _rate(harness: BenchHarness, backend: Backend, name: str, kinds: Sequence[MakeProgram]) -> BenchRow:
    """Calls per second of programs of these kinds in turn, no two alike."""
    num_calls, num_rounds = harness.sizes.num_warm_calls, harness.sizes.num_rounds
    slots = asyncio.Semaphore(NUM_AT_ONCE)
    rates: list[float] = []
    seconds: list[float] = []

    async def call(k: int) -> float:
        async with slots:
            return _cpu_of(await backend.run(Program(code=kinds[k % len(kinds)](k))))

    with harness.steps(name, num_rounds) as advance:
        await asyncio.gather(*(call(k) for k in range(3, 3 + NUM_AT_ONCE)))
        for index in range(num_rounds):
            first = 100 + index * num_calls
            begin = time.perf_counter()
            seconds += await asyncio.gather(*(call(k) for k in range(first, first + num_calls)))
            rates.append(num_calls / (time.perf_counter() - begin))
            advance(1)
    note = f"{NUM_AT_ONCE} in flight, {number(median(seconds) * _MS)} CPU ms inside the program"
    return BenchRow(part="warm", name=name, value=median(rates), unit="calls/s", target=at_least(100.0), note=note)


async def _cpu_seconds(harness: BenchHarness, settings: BackendSettings) -> dict[str, float]:
    """{library: CPU seconds of a program that uses it}, the median of several."""
    backend = ZygoteBackend(settings)
    await backend.start()
    try:
        with harness.steps("first uses of libraries", len(LIBRARIES)) as advance:
            found = {}
            for name, make in LIBRARIES.items():
                results = [await backend.run(Program(code=make(k))) for k in range(3, 3 + harness.sizes.num_first_uses)]
                found[name] = median([_cpu_of(result) for result in results])
                advance(1)
            return found
    finally:
        await backend.stop()


def _cpu_of(result: Result) -> float:
    if result.status != "ok" or result.timing.cpu_seconds is None:
        raise SandboxError(f"a program that uses a library gave {result.status}: {result.stderr[-300:]!r}")
    return result.timing.cpu_seconds


def _saved(name: str, cold: float, warm: float) -> BenchRow:
    note = f"CPU ms of a program that uses it: {number(cold * _MS)} without its warm-up, {number(warm * _MS)} with it"
    return BenchRow(part="warm", name=f"{name}: without / with warm-up", value=cold / warm, unit="x", note=note)
