"""Parts of the sandbox die, hang or are overloaded: calls get right answers, and nothing is left (H-55 to H-61)."""

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.sandbox_machine import FORKS
from tests.support.sandbox_services import (
    DEADLINE_SECONDS,
    MASKED,
    ROOT,
    SMALL,
    Kind,
    Service,
    assert_no_survivors,
    marked,
    on_every_kind,
    parts,
    processes_named,
    service,
    start_service,
    until,
)
from verl_pivot.errors import SandboxError, SessionLostError
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.execution import MIB, Limits, Program, Status
from verl_pivot.sandbox.lane.networks import MAX_RESTING

pytestmark = pytest.mark.heavy


@contextmanager
def own_service(kind: Kind = Kind.ZYGOTE, *arguments: str, lanes: int = 2) -> Iterator[Service]:
    """A service that a test may break; the test fails if a process of the service is left at the end."""
    running = start_service(kind, *arguments, lanes=lanes)
    left: list[int] = []
    try:
        yield running
        left = [running.pid, *descendants(running.pid)]
    finally:
        running.stop()
    assert until(lambda: not any(map(_lives, left))), f"left over: {[pid for pid in left if _lives(pid)]}"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def numbered(count: int, seconds: float = 0.5) -> list[Program]:
    """Programs that each print their own number."""
    return [
        Program(code=f"import time; time.sleep({seconds}); print({number})", limits=SMALL) for number in range(count)
    ]


def assert_each_its_own(outputs: list[str]) -> None:
    assert outputs == [f"{number}\n" for number in range(len(outputs))]


async def outputs_while(running: Service, attack: object, count: int = 60) -> list[str]:
    """Output of `count` programs, while `attack` is called in the middle of them."""
    async with running.client() as sandbox:
        programs = asyncio.create_task(sandbox.run_many(numbered(count), deadline_seconds=DEADLINE_SECONDS))
        await asyncio.sleep(0.25)
        await asyncio.to_thread(attack)  # type: ignore[arg-type]
        return [result.stdout for result in await programs]


@pytest.mark.parametrize("victim", ["bwraps", "supervisors", "zygotes"])
def test_h56_kill_9_of_a_part_loses_no_call_and_leaves_nobody(victim: str) -> None:
    with own_service() as running:
        running.run("pass")
        before = parts(running)
        target = getattr(before, victim)[0]

        outputs = asyncio.run(outputs_while(running, lambda: os.kill(target, signal.SIGKILL)))

        assert_each_its_own(outputs)
        assert not _lives(target)
        assert until(lambda: len(parts(running).zygotes) == len(before.zygotes), seconds=15.0)
        assert len(parts(running).supervisors) == len(before.supervisors) == 2
        running.output("print('well')")


def test_h56_kill_9_of_every_lane_at_once_loses_no_call() -> None:
    with own_service() as running:
        running.run("pass")
        before = parts(running)

        def attack() -> None:
            for pid in before.supervisors:
                os.kill(pid, signal.SIGKILL)

        assert_each_its_own(asyncio.run(outputs_while(running, attack)))
        assert until(lambda: not any(map(_lives, (*before.bwraps, *before.zygotes, *before.shims))))


def test_h56_kill_9_of_shims_loses_no_call() -> None:
    with own_service() as running:
        running.run("pass")

        def attack() -> None:
            assert until(lambda: len(parts(running).shims) >= 10)
            for pid in parts(running).shims[::3]:
                os.kill(pid, signal.SIGKILL)

        assert_each_its_own(asyncio.run(outputs_while(running, attack)))
        running.output("print('well')")


def test_h56_a_stopped_zygote_is_replaced() -> None:
    with own_service(lanes=1) as running:
        running.run("pass")

        def attack() -> None:
            for pid in parts(running).zygotes:
                os.kill(pid, signal.SIGSTOP)

        async def main() -> list[str]:
            await asyncio.to_thread(attack)
            async with running.client() as sandbox:
                results = await sandbox.run_many(numbered(10, 0.01), deadline_seconds=DEADLINE_SECONDS)
                return [result.stdout for result in results]

        assert_each_its_own(asyncio.run(main()))


def test_h56_a_stopped_lane_is_replaced() -> None:
    with own_service(lanes=2) as running:
        running.run("pass")
        target = parts(running).supervisors[0]

        assert_each_its_own(asyncio.run(outputs_while(running, lambda: os.kill(target, signal.SIGSTOP), count=20)))
        assert until(lambda: not _lives(target), seconds=30.0)


def test_h56_kill_9_of_the_service_leaves_nobody() -> None:
    marker, code = marked("import time; time.sleep(100)")
    running = start_service()

    async def main() -> list[int]:
        async with running.client() as sandbox:
            calls = asyncio.create_task(
                sandbox.run_many(
                    [Program(code=code, limits=Limits(wall_seconds=60.0))] * 10,
                    deadline_seconds=3.0,
                )
            )
            assert await asyncio.to_thread(until, lambda: len(processes_named(marker)) == 10)
            family = [running.pid, *descendants(running.pid)]
            os.kill(running.pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await calls
            return family

    try:
        family = asyncio.run(main())
        assert_no_survivors(marker)
        assert until(lambda: not any(map(_lives, family)))
    finally:
        running.stop()


def test_h56_a_local_service_that_is_killed_comes_back_and_the_call_is_answered() -> None:
    """Run the client in a process of its own, as an ordinary user, with the service as its child."""
    script = """
import asyncio, os, signal
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.local_service import acquire, release
async def main():
    async with Sandbox(serve_arguments=("--lanes", "1")) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\\n"
        service = acquire(("--lanes", "1"))
        call = asyncio.create_task(sandbox.run("import time; time.sleep(1); print(2)", deadline_seconds=60))
        await asyncio.sleep(0.5)
        os.kill(service.pid, signal.SIGKILL)
        print((await call).stdout, end="")
        release(service)
asyncio.run(main())
"""
    from verl_pivot.sandbox.bubblewrap.privileges import DEFAULT_USER, command_as

    command = command_as(DEFAULT_USER, [sys.executable, "-c", script])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/tmp"}
    environment = {name: value for name, value in environment.items() if not name.startswith("VERL_PIVOT_SANDBOX")}

    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd="/tmp")

    assert (run.returncode, run.stdout) == (0, "2\n"), run.stderr


def test_h56_a_session_that_dies_with_its_lane_is_lost_and_not_silently_new() -> None:
    with own_service(lanes=1) as running:

        async def main() -> None:
            async with running.client() as sandbox:
                session = await sandbox.open(limits=SMALL)
                await session.run("x = 1")
                os.kill(parts(running).supervisors[0], signal.SIGKILL)
                with pytest.raises(SessionLostError):
                    await session.run("x")
                async with await sandbox.open(limits=SMALL) as another:
                    assert (await another.run("2 + 2")).value == "4"

        asyncio.run(main())


def test_h56_a_session_lives_on_when_its_zygote_dies() -> None:
    with own_service(lanes=1) as running:

        async def main() -> None:
            async with running.client() as sandbox, await sandbox.open(limits=SMALL) as session:
                await session.run("x = 1")
                for pid in parts(running).zygotes:
                    os.kill(pid, signal.SIGKILL)
                assert (await session.run("x")).value == "1"

        asyncio.run(main())


@on_every_kind
def test_h55_a_client_that_hangs_up_ends_its_programs(kind: Kind) -> None:
    marker, code = marked("import time; time.sleep(100)")
    count = 2 if kind is Kind.BWRAP_EXEC else 20

    async def main() -> None:
        async with service(kind).client() as sandbox:
            calls = asyncio.create_task(
                sandbox.run_many([Program(code=code, limits=Limits(wall_seconds=60.0))] * count)
            )
            assert await asyncio.to_thread(until, lambda: len(processes_named(marker)) == count)
            calls.cancel()

    asyncio.run(main())
    assert_no_survivors(marker)


@on_every_kind
def test_h55_a_burst_is_answered_in_full_and_in_order(kind: Kind) -> None:
    count = 40 if kind is Kind.BWRAP_EXEC else 600

    results = service(kind).run_many(numbered(count, 0.0))

    assert_each_its_own([result.stdout for result in results])


def test_fast_programs_do_not_wait_for_the_slow_one_of_their_batch() -> None:
    async def main() -> float:
        async with service().client() as sandbox:
            await sandbox.run("pass")
            slow = asyncio.create_task(sandbox.run("import time; time.sleep(1.5)", limits=SMALL))
            start = time.monotonic()
            await asyncio.gather(*(sandbox.run("pass") for _ in range(10)))
            passed = time.monotonic() - start
            await slow
            return passed

    assert asyncio.run(main()) < 1.0


MIXTURE = [
    *(Program(code=f"print({number})", limits=SMALL) for number in range(20)),
    Program(code="import numpy; print(numpy.arange(5).sum())", limits=SMALL),
    Program(code="1 / 0", limits=SMALL),
    Program(code="import os; os.abort()", limits=SMALL),
    Program(code="import time; time.sleep(9)", limits=Limits(wall_seconds=0.05)),
    Program(code="import os\nfor _ in range(5): os.fork()", limits=SMALL),
    Program(code="print('x' * 3_000_000)", limits=SMALL),
    Program(code="import threading; [threading.Thread(target=print).start() for _ in range(5)]", limits=SMALL),
    Program(code="open('a', 'wb').write(bytes(1 << 20))", fetch=("a", "b"), limits=SMALL),
    Program(code="print(input())", stdin="x" * 100_000, files={"in": b"x"}, limits=SMALL),
    Program(code="echo $((6 * 7))", language="bash", limits=SMALL),
    Program(code="import os, time\nif os.fork() == 0: time.sleep(9)", limits=SMALL),
]


FILES_OF_A_NETWORK = 3
"""Descriptors of a network: its namespace, its counter of sockets, and the first process of its last pod."""


class Figures:
    """Files, processes, mounts and memory that a service holds; pooled networks are counted apart from other files."""

    def __init__(self, running: Service) -> None:
        found = parts(running)
        trusted = [running.pid, *found.supervisors, *found.zygotes]
        files = [name for pid in trusted for name in _open_files(pid)]
        self.num_networks = sum(name.startswith("net:") for name in files)
        self.num_files = len(files) - FILES_OF_A_NETWORK * self.num_networks
        self.num_processes = len(list(descendants(running.pid)))
        self.num_mounts = sum(len(Path(f"/proc/{pid}/mounts").read_text().splitlines()) for pid in trusted)
        self.memory_bytes = sum(_private_bytes(pid) for pid in trusted)


def _open_files(pid: int) -> list[str]:
    """Targets of a process's descriptors, without descriptors that are closed meanwhile."""
    names: list[str] = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return names


def _private_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss_Anon:")) * 1024


@pytest.mark.parametrize("num_executions", [1_500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_h57_a_soak_leaves_files_processes_mounts_and_memory_where_they_were(num_executions: int) -> None:
    with own_service() as running:
        for _ in range(4):  # warm up: modules that are loaded once, and answers that are kept for retries
            running.run_many(MIXTURE * 10)
        time.sleep(0.5)
        before = Figures(running)

        for _ in range(num_executions // (len(MIXTURE) * 10) + 1):
            results = running.run_many(MIXTURE * 10)
            assert [result.stdout for result in results[:20]] == [f"{number}\n" for number in range(20)]
        time.sleep(0.5)
        after = Figures(running)

        assert until(lambda: abs(Figures(running).num_processes - before.num_processes) <= 2)
        assert until(lambda: abs(Figures(running).num_files - before.num_files) <= 8)  # 8: pods about to start
        assert after.num_networks <= len(parts(running).supervisors) * (MAX_RESTING + 8)
        assert after.num_mounts == before.num_mounts
        assert after.memory_bytes - before.memory_bytes < 32 * MIB


BOMBS = {
    "endless_loop": "while True: pass",
    "fork_bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "memory_bomb": "held = []\nwhile True: held.append(bytearray(1 << 20))",
    "output_flood": "while True: print('x' * 1000)",
    "many_files": "for number in range(10**6): open(str(number), 'w').close()",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.finding("processes of neighbours")
def test_h58_32_bombs_beside_200_honest_programs_spoil_none(name: str) -> None:
    limits = Limits(wall_seconds=1.0, memory_bytes=64 * MIB, num_processes=8)

    async def main() -> list[str]:
        async with service().client() as sandbox:
            bombs = asyncio.create_task(
                sandbox.run_many([Program(code=BOMBS[name], limits=limits)] * 32, deadline_seconds=DEADLINE_SECONDS)
            )
            await asyncio.sleep(0.1)
            results = await sandbox.run_many(numbered(200, 0.0), deadline_seconds=DEADLINE_SECONDS)
            bombed = await bombs
        assert {result.status for result in bombed} <= {
            *(Status.TIMEOUT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.ERROR, Status.CPU_LIMIT)
        }
        return [result.stdout for result in results]

    assert_each_its_own(asyncio.run(main()))


@pytest.mark.finding("time without a core")
def test_h60_waiting_for_a_core_is_not_the_programs_time() -> None:
    """Run twice as many programs as cores; each needs two thirds of its time limit on a core of its own."""
    code = "import time\nwhile time.process_time() < 0.4: pass\nprint('done')"
    count = 2 * (os.cpu_count() or 1)

    results = service().run_many([Program(code=code, limits=Limits(wall_seconds=0.6))] * count)

    ended = [result for result in results if result.status != Status.OK]
    assert all(
        result.timing.wall_seconds >= 1.2 for result in ended
    )  # the limit was granted again, for the time of waiting, and used up too
    assert {result.status for result in ended} <= {Status.TIMEOUT}


def test_h60_no_limit_follows_a_clock_that_can_be_set() -> None:
    folders = (".", "lane", "service", "bubblewrap", "cluster")
    sources = [path for folder in folders for path in (ROOT / "verl_pivot" / "sandbox" / folder).glob("*.py")]

    found = [path.name for path in sources if re.search(r"\btime\.time\(|datetime\.now\(", path.read_text())]

    assert len(sources) > 20
    assert found == []


def test_h60_a_suspended_service_ends_nobody_before_its_time() -> None:
    """Suspend the service and not its programs, which only delays their end; a sleeping machine suspends both."""
    with own_service(lanes=1) as running:
        running.run("pass")

        def attack() -> None:
            stopped = [running.pid, *parts(running).supervisors, *parts(running).zygotes]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(1.0)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

        assert_each_its_own(asyncio.run(outputs_while(running, attack, count=10)))


def test_h61_with_a_masked_proc_programs_run_without_one() -> None:
    running = start_service(wrapper=MASKED)
    try:
        assert running.tier == "T3"
        code = "import os; print(os.listdir('/proc') if os.path.exists('/proc') else 'none', os.getpid() > 1)"
        assert running.output(code) in ("[] True\n", "none True\n")
        assert running.output("import numpy; print(numpy.ones(3).sum())") == "3.0\n"
        results = running.run_many([Program(code=code, limits=Limits(wall_seconds=0.5)) for code in BOMBS.values()])
        assert Status.OK not in {result.status for result in results}
        assert running.output("print('well')") == "well\n"
    finally:
        running.stop()


COUNTED = {
    "threads": "import threading, time\nts = [threading.Thread(target=time.sleep, args=(1.0,)) for _ in range(3)]\n"
    "for t in ts: t.start()\nfor t in ts: t.join()\nprint(len(ts))",
    "children": "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n"
    "        time.sleep(1.0)\n        os._exit(0)\n"
    "print(len([os.wait() for _ in range(3)]))",
    "a pool": "import multiprocessing\nif __name__ == '__main__':\n    with multiprocessing.Pool(3) as pool:\n"
    "        print(len(pool.map(abs, range(3))))",
}


@on_every_kind
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.finding("processes of neighbours")
def test_h61_threads_and_children_of_neighbours_count_for_no_program(kind: Kind, name: str) -> None:
    program = Program(code=COUNTED[name], limits=Limits(wall_seconds=30.0, num_processes=8))

    results = service(kind).run_many([program] * 6)

    assert {(result.status, result.stdout, result.stderr) for result in results} == {(Status.OK, "3\n", "")}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.finding("processes of neighbours", where="zygote_without_proc")
def test_h61_without_proc_a_program_is_limited_to_its_own_processes_and_not_by_its_neighbours(name: str) -> None:
    limits = Limits(wall_seconds=30.0, num_processes=8)
    programs = [Program(code=COUNTED[name], limits=limits) for _ in range(12)]
    sleepers = [Program(code=f"{FORKS}\ntime.sleep(3.0)", limits=limits) for _ in range(4)]
    running = service(Kind.WITHOUT_PROC)

    results = running.run_many([*sleepers, *programs])

    assert running.tier == "T3"
    outputs = [(result.status, result.stdout, result.stderr) for result in results]
    assert outputs == [(Status.OK, "7\n", "")] * len(sleepers) + [(Status.OK, "3\n", "")] * len(programs)
    assert running.output("import os; print(os.getuid(), os.path.exists('/proc/self'))") == "1000 False\n"


def test_h61_without_user_namespaces_the_start_is_refused_with_the_remedy() -> None:
    no_namespaces = ("bwrap", "--die-with-parent", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--")

    with pytest.raises(RuntimeError, match=r"the sandbox needs tier T3, but this machine offers only T4"):
        start_service(wrapper=no_namespaces)


def test_h61_a_higher_tier_than_the_machine_has_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"the sandbox needs tier T2, but this machine offers only T3"):
        start_service(Kind.ZYGOTE, "--min-tier", "T2", wrapper=MASKED)


def test_no_process_of_the_machine_is_ended_by_its_name() -> None:
    """Some sandboxes clean up by process name, which also ends processes of the machine with that name."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        service().run("import subprocess; subprocess.Popen(['sleep', '60'])")
        service().run("import os; os.execvp('sleep', ['sleep', '60'])", limits=Limits(wall_seconds=0.2))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_overhead_of_a_call_is_small() -> None:
    seconds = []
    for _ in range(10):
        result = service().run("pass")
        seconds.append(result.timing.queue_seconds + result.timing.setup_seconds + result.timing.wall_seconds)

    assert statistics.median(seconds) < 0.05
