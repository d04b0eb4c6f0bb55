"""Hostile programs, many copies at a time, beside honest ones -> how much longer the honest ones take."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.harness import Advance, BenchHarness
from verl_pivot.sandbox.bench.report import BenchRow, at_most, median, number, percentile
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits
from verl_pivot.sandbox.local_service import LocalService

NUM_HONEST_AT_ONCE = 4
RAMP_SECONDS = 2.0
"""Seconds until all hostile programs are at work: as long as their limit on wall time."""
LIMITS = Limits(wall_seconds=2.0, memory_bytes=128 * MIB, num_processes=32)
"""Limits of a hostile program."""
MAX_RATIO = 3.0
"""Target: at most this ratio of the p99 time of honest calls beside hostile programs to that on an idle service."""
MAX_HONEST_SECONDS = 180.0
"""Seconds after which no further honest call is begun: by then the ratio is bad enough without them."""
SETTLE_SECONDS = 15.0
"""Most seconds that the processes of hostile programs have to end, so that they do not spoil the idle measurement."""
_HONEST_DEADLINE_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_MS = 1000.0

BOMBS = {
    "fork bomb": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "thread bomb": """
import threading
def spin():
    while True: pass
while True:
    try:
        threading.Thread(target=spin, daemon=True).start()
    except RuntimeError:
        pass
""",
    "memory bomb": """
held = []
while True:
    try:
        held.append(b"x" * (4 << 20))
    except MemoryError:
        held.clear()
""",
    "memory bomb, a tree": """
import os, time
for _ in range(8):
    if os.fork() == 0:
        break
held = [b"x" * (1 << 20) for _ in range(60)]
time.sleep(100)
""",
    "output flood": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "cpu spin": "while True: pass",
    "file bomb": """
import os
while True:
    number = 0
    try:
        while True:
            with open(f"file{number}", "wb") as file: file.write(b"x" * 4096)
            number += 1
    except OSError:
        for each in range(number): os.remove(f"file{each}")
""",
    "sleeper that ignores signals": """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
time.sleep(100)
""",
}

HONEST = (
    ("print(sum(number * number for number in range(1000)))", "332833500\n"),
    ("print(' '.join(sorted('the quick brown fox'.split())))", "brown fox quick the\n"),
    ("import math\nprint(math.comb(40, 20), math.gcd(2**40, 6**20))", "137846528820 1048576\n"),
    ("import json\nprint(json.loads('{\"a\": [1, 2, 3]}')['a'][1])", "2\n"),
    ("import numpy\nprint(int(numpy.arange(100).reshape(10, 10).trace()))", "495\n"),
    ("import sympy\nx = sympy.Symbol('x')\nprint(sympy.expand((x + 1) ** 2))", "x**2 + 2*x + 1\n"),
)
"""Honest programs, as (code, expected output)."""


@dataclass(slots=True, kw_only=True)
class HonestCalls:
    """Outcomes of honest calls."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of each call."""
    programs: Sequence[tuple[str, str]] = HONEST
    """Programs that are called in turn, as (code, expected output)."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of wrong results, and of calls without a result."""

    async def call(self, client: Sandbox, index: int) -> None:
        code, expected = self.programs[index % len(self.programs)]
        begin = time.perf_counter()
        try:
            result = await client.run(code, deadline_seconds=_HONEST_DEADLINE_SECONDS)
        except SandboxError as error:
            self.problems.append(str(error))
        else:
            if result.stdout != expected:
                self.problems.append(f"{result.status}: {result.stdout[:100]!r} {result.stderr[-200:]!r}")
        self.seconds.append(time.perf_counter() - begin)

    def p99_ms(self) -> float:
        return percentile(self.seconds, 0.99) * _MS


async def measure_hostile(harness: BenchHarness) -> list[BenchRow]:
    """Measure honest calls beside each hostile program, and alone before and after; one client makes all calls."""
    num_honest = harness.sizes.num_honest
    idle: list[HonestCalls] = []
    beside: dict[str, HonestCalls] = {}
    bombed: dict[str, Counter[str]] = {}
    service = await harness.service()
    async with harness.client() as client:
        await honest_calls(client, 10 * NUM_HONEST_AT_ONCE)  # warm-up
        num_processes = _num_processes(service)
        with harness.steps("hostile", num_honest * (2 * len(BOMBS) + 1)) as advance:
            idle.append(await honest_calls(client, num_honest, advance))
            for name, code in BOMBS.items():
                async with bombing(client, code, harness.sizes.num_hostile) as bombed[name]:
                    await asyncio.sleep(RAMP_SECONDS)
                    beside[name] = await honest_calls(client, num_honest, advance)
                await _settle(harness, service, num_processes)
                idle.append(await honest_calls(client, num_honest, advance))
    return _rows(idle, beside, bombed, harness.sizes.num_hostile)


async def _settle(harness: BenchHarness, service: LocalService, num_processes: int) -> None:
    """Wait until the service has no more processes than before."""
    await harness.wait_quiet()
    for _ in range(int(SETTLE_SECONDS / _LOOK_SECONDS)):
        if _num_processes(service) <= num_processes:
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _num_processes(service: LocalService) -> int:
    assert service.pid is not None
    return sum(1 for _ in descendants(service.pid))


@asynccontextmanager
async def bombing(client: Sandbox, code: str, num_at_once: int) -> AsyncIterator[Counter[str]]:
    """Keep `num_at_once` copies of a program running; yields a count of how they ended."""
    ends: Counter[str] = Counter()

    async def repeat() -> None:
        while True:
            try:
                ends[(await client.run(code, limits=LIMITS)).status] += 1
            except SandboxError:
                ends["sandbox error"] += 1

    tasks = [asyncio.create_task(repeat()) for _ in range(num_at_once)]
    try:
        yield ends
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()  # raises the exception that ended it


async def honest_calls(
    client: Sandbox,
    num_calls: int,
    advance: Advance = lambda _: None,
    *,
    programs: Sequence[tuple[str, str]] = HONEST,
) -> HonestCalls:
    """Make `num_calls` calls of honest programs in turn, NUM_HONEST_AT_ONCE at a time; returns their outcomes."""
    honest, indices = HonestCalls(programs=programs), iter(range(num_calls))
    end = time.monotonic() + MAX_HONEST_SECONDS

    async def work() -> None:
        for index in indices:
            if time.monotonic() > end:
                honest.problems.append(f"{num_calls - index} calls were left after {MAX_HONEST_SECONDS:.0f} s")
                return
            await honest.call(client, index)
            advance(1)

    await asyncio.gather(*(work() for _ in range(NUM_HONEST_AT_ONCE)))
    return honest


def _rows(
    idle: list[HonestCalls], beside: dict[str, HonestCalls], bombed: dict[str, Counter[str]], num_at_once: int
) -> list[BenchRow]:
    idle_p99s = [honest.p99_ms() for honest in idle]
    idle_ms = median(idle_p99s)  # each p99 is over as many calls as each p99 beside hostile programs
    ratios = {name: honest.p99_ms() / idle_ms for name, honest in beside.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    problems = [problem for honest in (*idle, *beside.values()) for problem in honest.problems]
    note = f"median of {len(idle)} times {len(idle[0].seconds)} calls, {NUM_HONEST_AT_ONCE} in flight"
    note += (
        f", from {number(min(idle_p99s))} to {number(max(idle_p99s))}; p50 {number(median(idle[0].seconds) * _MS)} ms"
    )
    return [
        BenchRow(part="hostile", name="idle p99", value=idle_ms, unit="ms", note=note),
        *(
            BenchRow(
                part="hostile",
                name=f"p99 beside {num_at_once} x {name}",
                value=ratio,
                unit="x idle",
                target=at_most(MAX_RATIO),
                note=_note(beside[name], bombed[name]),
            )
            for name, ratio in ratios.items()
        ),
        BenchRow(
            part="hostile",
            name="worst ratio",
            value=ratios[worst],
            unit="x idle",
            target=at_most(MAX_RATIO),
            note=worst,
        ),
        BenchRow(
            part="hostile",
            name="honest calls without the right result",
            value=len(problems),
            target=at_most(0),
            note=problems[0] if problems else "",
        ),
    ]


def _note(honest: HonestCalls, ends: Counter[str]) -> str:
    ended = ", ".join(f"{count} {status}" for status, count in ends.most_common()) or "none ended"
    return f"p50 {number(median(honest.seconds) * _MS)}, p99 {number(honest.p99_ms())} ms; bombs: {ended}"
