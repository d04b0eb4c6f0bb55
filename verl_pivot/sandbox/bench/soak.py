"""Thousands of mixed executions -> how many more resources the service and its lanes hold afterwards than before."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.harness import Advance, BenchHarness
from verl_pivot.sandbox.bench.processes import Footprint, footprint
from verl_pivot.sandbox.bench.report import BenchRow, BenchTarget, at_least, at_most, number
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status
from verl_pivot.sandbox.lane.networks import MAX_RESTING
from verl_pivot.sandbox.service.languages import load_languages

NUM_AT_ONCE = 32
SETTLE_SECONDS = 15.0
"""Most seconds to wait until ended pods are gone and spare ones are made."""
MAX_GROWTH = 1.1
"""Target: at most this ratio of the memory after the soak to that before."""
_LOOK_SECONDS = 0.5
_DEADLINE_SECONDS = 120.0
_SLEEPERS = ("import time; time.sleep(4)", "import json", "import numpy")
"""One program for each zygote of a lane; copies of the first sleep, so that they all run at once."""
_MANY = MAX_RESTING + 8
"""Programs at once on each lane: more than the networks that a lane keeps."""
_SHORT = Limits(wall_seconds=0.1)
_CUT = Limits(output_bytes=1000)  # the service keeps results for a minute, which is no leak
_FILES = "import os\nopen('out/b', 'wb').write(open('a', 'rb').read()[::-1])"
_C = '#include <stdio.h>\nint main(){puts("1");return 0;}'
_CPP = '#include <iostream>\nint main(){std::cout<<"1\\n";}'
_TREE = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        break
held = b"x" * (48 << 20)
time.sleep(100)
"""

Case = Callable[[Sandbox], Awaitable[str]]
"""Function that runs one execution; returns how it ended."""


def program_case(program: Program) -> Case:
    async def run(client: Sandbox) -> str:
        (result,) = await client.run_many([program], deadline_seconds=_DEADLINE_SECONDS)
        return result.status

    return run


async def session_case(client: Sandbox) -> str:
    async with await client.open() as session:
        await session.run("x = [1]", files={"a": b"1"})
        async with await session.fork() as branch:
            await branch.run("x.append(2)")
            result = await session.run("len(x)", fetch=("a",))
            return f"{(await branch.run('len(x)')).value} {result.value} {result.files['a'].decode()}"


async def killed_session_case(client: Sandbox) -> str:
    async with await client.open() as session:
        await session.run("import os, subprocess\nsubprocess.Popen(['sleep', '100'])")
        return (await session.run("os._exit(3)")).status


async def cancelled_case(client: Sandbox) -> str:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.run("import time; time.sleep(100)")
    return "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakKind:
    """One kind of execution."""

    weight: int
    """Relative frequency."""
    run: Case
    expected: str
    """Return value of `run` in a correct execution."""


def _kind(weight: int, expected: Status, program: Program) -> SoakKind:
    return SoakKind(weight=weight, run=program_case(program), expected=expected)


KINDS: Mapping[str, SoakKind] = {
    "ok": _kind(300, Status.OK, Program(code="print(1)")),
    "science": _kind(120, Status.OK, Program(code="import numpy, sympy\nprint(sympy.sqrt(4), numpy.ones(3).sum())")),
    "stdin": _kind(50, Status.OK, Program(code="print(len(input()))", stdin="x" * 100_000)),
    "files": _kind(
        60, Status.OK, Program(code=_FILES, files={"a": b"x" * 1000, "out/c": b""}, fetch=("out/b", "missing"))
    ),
    "error": _kind(120, Status.ERROR, Program(code="1 / 0")),
    "signaled": _kind(50, Status.SIGNALED, Program(code="import os; os.abort()")),
    "timeout": _kind(40, Status.TIMEOUT, Program(code="import time; time.sleep(100)", limits=_SHORT)),
    "daemon": _kind(30, Status.OK, Program(code="import subprocess; subprocess.Popen(['sleep', '100'])")),
    "cpu": _kind(
        3, Status.CPU_LIMIT, Program(code="while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=60.0))
    ),
    "memory": _kind(
        10, Status.MEMORY_LIMIT, Program(code=_TREE, limits=Limits(memory_bytes=64 * MIB, wall_seconds=60.0))
    ),
    "output": _kind(30, Status.OUTPUT_LIMIT, Program(code="while True: print('x' * 1000)", limits=_CUT)),
    "private network": _kind(30, Status.OK, Program(code="print(1)", network=Network.PRIVATE)),
    "loopback": _kind(30, Status.OK, Program(code="print(1)", network=Network.LOOPBACK)),
    "own size of /tmp": _kind(
        30, Status.OK, Program(code="print(1)", limits=Limits(tmp_bytes=8 * MIB, num_tmp_files=64))
    ),
    "bash": _kind(50, Status.OK, Program(code="echo 1 | cat", language="bash")),
    "javascript": _kind(5, Status.OK, Program(code="console.log(1)", language="javascript")),
    "c": _kind(8, Status.OK, Program(code=_C, language="c")),
    "cpp": _kind(2, Status.OK, Program(code=_CPP, language="cpp")),
    "c that does not compile": _kind(5, Status.COMPILE_ERROR, Program(code="int main({", language="c")),
    "session": SoakKind(weight=40, run=session_case, expected="2 1 1"),
    "killed session": SoakKind(weight=10, run=killed_session_case, expected=Status.SESSION_KILLED),
    "cancelled": SoakKind(weight=20, run=cancelled_case, expected="cancelled"),
}
_LANGUAGE_OF = {"javascript": "javascript", "c": "c", "cpp": "cpp", "c that does not compile": "c"}
"""{kind: language that it needs}, for languages that not every machine has."""
_WATCHED = "memory"
"""Kind that a watchdog ends; the watchdog reads the memory of processes in /proc."""


@dataclass(slots=True, kw_only=True)
class _Ends:
    """How executions ended."""

    counts: Counter[str] = field(default_factory=Counter)
    """{kind: number of executions}."""
    problems: list[str] = field(default_factory=list)
    """Executions that did not end as expected."""


async def measure_soak(harness: BenchHarness) -> list[BenchRow]:
    """Measure the service's footprint before and after the soak, when everything that was started has ended."""
    sizes, service = harness.sizes, await harness.service()
    python = PythonView.of()
    missing = load_languages(None, python=python).missing
    unwatched = (_WATCHED,) if probe(python).tier is Tier.T3 else ()
    kinds = {
        name: kind for name, kind in KINDS.items() if _LANGUAGE_OF.get(name) not in missing and name not in unwatched
    }
    ends = _Ends()
    assert service.pid is not None
    with harness.steps("soak", sizes.num_soak_warm_up + sizes.num_soak) as advance:
        await _run(harness, draw(kinds, sizes.num_soak_warm_up, harness.rng), _Ends(), advance)
        before = await _settled(harness, service.pid, None)
        await _run(harness, draw(kinds, sizes.num_soak, harness.rng), ends, advance)
        after = await _settled(harness, service.pid, before)
    return _rows(before, after, ends, sizes.num_soak, sorted(set(KINDS) - set(kinds)))


def draw(kinds: Mapping[str, SoakKind], num_executions: int, rng: random.Random) -> Iterator[tuple[str, SoakKind]]:
    """Yield (name, kind) of `num_executions` executions: first each kind once, then kinds drawn by weight."""
    names = list(kinds)
    weighted = rng.choices(names, [kinds[name].weight for name in names], k=num_executions)
    for name in (*names, *weighted)[:num_executions]:
        yield name, kinds[name]


async def _run(harness: BenchHarness, cases: Iterator[tuple[str, SoakKind]], ends: _Ends, advance: Advance) -> None:
    """Run executions, NUM_AT_ONCE at a time, with a client of their own, whose connections end with it."""

    async def work(client: Sandbox) -> None:
        for name, kind in cases:
            try:
                ended = await kind.run(client)
            except SandboxError as error:
                ended = f"{type(error).__name__}: {error}"
            ends.counts[name] += 1
            if ended != kind.expected:
                ends.problems.append(f"{name}: {ended}")
            advance(1)

    async with harness.client() as client:
        await asyncio.gather(*(work(client) for _ in range(NUM_AT_ONCE)))


async def _bring_to_rest(harness: BenchHarness) -> None:
    """Run many programs of each kind, so that each zygote has its spare, and each lane all networks that it keeps."""
    async with harness.client() as client:
        for code in _SLEEPERS:
            await client.run_many(
                [Program(code=code)] * (_MANY * harness.num_lanes), deadline_seconds=_DEADLINE_SECONDS
            )


async def _settled(harness: BenchHarness, service_pid: int, earlier: Footprint | None) -> Footprint:
    """Footprint when two measurements in a row agree, and agree with `earlier` if that happens in time."""
    await _bring_to_rest(harness)
    await harness.wait_quiet()
    last = await asyncio.to_thread(footprint, service_pid)
    end = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        current = await asyncio.to_thread(footprint, service_pid)
        if current.counts == last.counts and (earlier is None or current.counts == earlier.counts):
            return current
        last = current
    return last


def _rows(before: Footprint, after: Footprint, ends: _Ends, num_executions: int, left_out: list[str]) -> list[BenchRow]:
    kinds = f"{len(ends.counts)} kinds" + (f"; not on this machine: {', '.join(left_out)}" if left_out else "")
    wrong = f"the first: {ends.problems[0]}" if ends.problems else ""
    return [
        BenchRow(
            part="soak", name="executions", value=ends.counts.total(), target=at_least(num_executions), note=kinds
        ),
        BenchRow(
            part="soak",
            name="executions with an unexpected end",
            value=len(ends.problems),
            target=at_most(0),
            note=wrong,
        ),
        _growth("descriptors of the service", before.num_service_files, after.num_service_files),
        _growth("descriptors of the lanes", before.num_lane_files, after.num_lane_files),
        _growth("processes", before.num_processes, after.num_processes),
        _growth("mounts", before.num_mounts, after.num_mounts),
        _memory("memory of the service", before.service_bytes, after.service_bytes),
        _memory("memory of the lanes", before.lane_bytes, after.lane_bytes),
    ]


def _growth(name: str, before: int, after: int) -> BenchRow:
    target: BenchTarget = at_most(0)
    return BenchRow(part="soak", name=f"more {name}", value=after - before, target=target, note=f"{before} -> {after}")


def _memory(name: str, before: int, after: int) -> BenchRow:
    note = f"{number(before / MIB)} -> {number(after / MIB)} MiB"
    return BenchRow(
        part="soak", name=name, value=after / before, unit="x before", target=at_most(MAX_GROWTH), note=note
    )
