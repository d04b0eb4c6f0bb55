"""Thousands of mixed executions -> what the service and its lanes hold afterwards, against before."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from verl_pivot.benchmarks.bench_processes import Footprint, footprint
from verl_pivot.benchmarks.bench_report import Row, Target, at_least, at_most, number
from verl_pivot.benchmarks.bench_stage import Advance, Stage
from verl_pivot.bubblewrap.python_view import PythonView
from verl_pivot.errors import SandboxError
from verl_pivot.node.languages import load_languages
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status

NUM_AT_ONCE = 32
SETTLE_SECONDS = 15.0
"""At most, for ended pods to go and spare ones to come."""
MAX_GROWTH = 1.1
_LOOK_SECONDS = 0.5
_DEADLINE_SECONDS = 120.0
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
"""One execution; says how it ended."""


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
class Kind:
    """One sort of execution."""

    weight: int
    run: Case
    expected: str


def _kind(weight: int, expected: Status, program: Program) -> Kind:
    return Kind(weight=weight, run=program_case(program), expected=expected)


KINDS: Mapping[str, Kind] = {
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
    "session": Kind(weight=40, run=session_case, expected="2 1 1"),
    "killed session": Kind(weight=10, run=killed_session_case, expected=Status.SESSION_KILLED),
    "cancelled": Kind(weight=20, run=cancelled_case, expected="cancelled"),
}
_LANGUAGE_OF = {"javascript": "javascript", "c": "c", "cpp": "cpp", "c that does not compile": "c"}
"""Kinds that need more than every machine has."""


@dataclass(slots=True, kw_only=True)
class _Ends:
    """How executions ended."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Those that ended otherwise than they must."""


async def measure_soak(stage: Stage) -> list[Row]:
    """What is held before and after, once everything that was started has ended."""
    sizes, service = stage.sizes, await stage.service()
    missing = load_languages(None, python=PythonView.of()).missing
    kinds = {name: kind for name, kind in KINDS.items() if _LANGUAGE_OF.get(name) not in missing}
    ends = _Ends()
    assert service.pid is not None
    with stage.steps("soak", sizes.num_soak_warm_up + sizes.num_soak) as advance:
        await _run(stage, draw(kinds, sizes.num_soak_warm_up, stage.rng), _Ends(), advance)
        before = await _settled(stage, service.pid, None)
        await _run(stage, draw(kinds, sizes.num_soak, stage.rng), ends, advance)
        after = await _settled(stage, service.pid, before)
    return _rows(before, after, ends, sizes.num_soak, sorted(set(KINDS) - set(kinds)))


def draw(kinds: Mapping[str, Kind], num_executions: int, rng: random.Random) -> Iterator[tuple[str, Kind]]:
    """Each kind once, as far as they go, then by weight."""
    names = list(kinds)
    weighted = rng.choices(names, [kinds[name].weight for name in names], k=num_executions)
    for name in (*names, *weighted)[:num_executions]:
        yield name, kinds[name]


async def _run(stage: Stage, cases: Iterator[tuple[str, Kind]], ends: _Ends, advance: Advance) -> None:
    """With a client of its own, whose connections end with it."""

    async def keep_one(client: Sandbox) -> None:
        for name, kind in cases:
            try:
                ended = await kind.run(client)
            except SandboxError as error:
                ended = f"{type(error).__name__}: {error}"
            ends.counts[name] += 1
            if ended != kind.expected:
                ends.problems.append(f"{name}: {ended}")
            advance(1)

    async with stage.client() as client:
        await asyncio.gather(*(keep_one(client) for _ in range(NUM_AT_ONCE)))


async def _settled(stage: Stage, service_pid: int, wanted: Footprint | None) -> Footprint:
    """When two looks in a row agree, and with what is wanted if that comes about in time."""
    await stage.wait_quiet()
    last = await asyncio.to_thread(footprint, service_pid)
    end = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        current = await asyncio.to_thread(footprint, service_pid)
        if current.counts == last.counts and (wanted is None or current.counts == wanted.counts):
            return current
        last = current
    return last


def _rows(before: Footprint, after: Footprint, ends: _Ends, num_executions: int, left_out: list[str]) -> list[Row]:
    kinds = f"{len(ends.counts)} kinds" + (f"; not installed: {', '.join(left_out)}" if left_out else "")
    wrong = f"the first: {ends.problems[0]}" if ends.problems else ""
    return [
        Row(part="soak", name="executions", value=ends.counts.total(), target=at_least(num_executions), note=kinds),
        Row(
            part="soak",
            name="that ended otherwise than they must",
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


def _growth(name: str, before: int, after: int) -> Row:
    target: Target = at_most(0)
    return Row(part="soak", name=f"more {name}", value=after - before, target=target, note=f"{before} -> {after}")


def _memory(name: str, before: int, after: int) -> Row:
    note = f"{number(before / MIB)} -> {number(after / MIB)} MiB"
    return Row(part="soak", name=name, value=after / before, unit="x before", target=at_most(MAX_GROWTH), note=note)
