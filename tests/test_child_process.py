"""Programs that an event loop runs: their pipes, their end, and that no copy of this process is made for them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from verl_pivot.child_process import ChildProcess, start_child

uvloop = pytest.importorskip("uvloop")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS = [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")]


def children() -> set[str]:
    """Ids of the processes that this process has started."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def started(code: str, **options: Any) -> ChildProcess:
    return await start_child(python(code), env=dict(os.environ), **options)


@pytest.mark.parametrize("run", LOOPS)
def test_a_program_reads_and_writes_and_gives_its_exit_code(run: Run) -> None:
    async def talk() -> tuple[bytes, bytes, int]:
        child = await started("import sys\nprint(input() * 2)\nprint('bad', file=sys.stderr)\nsys.exit(3)")
        assert child.returncode is None
        child.stdin.write(b"ab\n")
        await child.stdin.drain()
        output, errors = await child.stdout.read(), await child.stderr.read()
        code = await child.wait()
        child.close()
        return output, errors, code

    assert run(talk()) == (b"abab\n", b"bad\n", 3)


@pytest.mark.parametrize("run", LOOPS)
def test_a_killed_group_ends_with_its_descendants_and_the_signal_is_told(run: Run, tmp_path: Path) -> None:
    async def kill() -> tuple[int, int]:
        child = await started("import os, time\nos.write(1, b'%d\\n' % (os.fork() or os.getpid()))\ntime.sleep(60)")
        told = [int(await child.stdout.readline()), int(await child.stdout.readline())]
        (descendant,) = {*told} - {child.pid}
        child.kill_group()
        code = await child.wait()
        child.kill_group(signal.SIGTERM)  # no process of the group is left
        child.close()
        return code, descendant

    code, descendant = run(kill())
    assert code == -signal.SIGKILL
    end = time.monotonic() + 10
    while (Path("/proc") / str(descendant) / "exe").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not (Path("/proc") / str(descendant) / "exe").exists()


@pytest.mark.parametrize("run", LOOPS)
def test_a_descendant_that_holds_the_pipes_delays_no_end(run: Run) -> None:
    async def wait() -> int:
        child = await started("import os, time\nif os.fork() == 0: time.sleep(60)\nos._exit(0)")
        code = await asyncio.wait_for(child.wait(), 20)
        child.kill_group()
        child.close()
        return code

    assert run(wait()) == 0


@pytest.mark.parametrize("run", LOOPS)
def test_a_wait_that_is_given_up_leaves_the_others_waiting(run: Run) -> None:
    async def give_up() -> int:
        child = await started("input()")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.wait(), 0.05)
        child.stdin.write(b"\n")
        code = await child.wait()
        child.close()
        return code

    assert run(give_up()) == 0


@pytest.mark.parametrize("run", LOOPS)
def test_a_start_that_is_cancelled_leaves_no_program(run: Run) -> None:
    async def cancel() -> None:
        starting = asyncio.ensure_future(started("input()"))
        await asyncio.sleep(0)  # the program begins, and its pipes are not connected yet
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0.05)

    before = children()
    run(cancel())

    assert children() == before


@pytest.mark.parametrize("run", LOOPS)
def test_a_program_that_is_missing_is_an_error_of_the_system(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        run(start_child(["/no/such/program"], env={}))


@pytest.mark.parametrize("run", LOOPS)
def test_a_line_over_the_limit_is_refused(run: Run) -> None:
    async def read() -> None:
        child = await started("print('x' * 5000)", limit=1000)
        try:
            await child.stdout.readline()
        finally:
            child.kill_group()
            await child.wait()
            child.close()

    with pytest.raises(ValueError, match="limit"):
        run(read())


@pytest.mark.parametrize("run", LOOPS)
def test_programs_that_have_ended_leave_no_descriptor_and_no_process(run: Run) -> None:
    async def play() -> list[int]:
        ended = []
        for _ in range(10):
            child = await started("input()")
            child.kill_group()
            await child.wait()
            child.close()
            ended.append(child.pid)
        await asyncio.sleep(0.05)  # the loop closes the pipes meanwhile
        return ended

    run(play())
    before = len(os.listdir("/proc/self/fd"))
    ended = run(play())

    assert len(os.listdir("/proc/self/fd")) <= before
    for pid in ended:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


FORKS = """
import asyncio, ctypes, os, sys
import uvloop
from verl_pivot.child_process import start_child
num_forks = 0
@ctypes.CFUNCTYPE(None)
def forking():
    global num_forks
    num_forks += 1
ctypes.CDLL(None).__register_atfork(forking, None, None, None)
async def ours():
    child = await start_child(["true"], env={})
    await child.wait()
    child.close()
async def of_the_loop():
    await (await asyncio.create_subprocess_exec("true")).wait()
uvloop.run(ours())
print(num_forks)
uvloop.run(of_the_loop())
print(num_forks)
"""


def test_a_start_copies_no_process_where_that_of_uvloop_does() -> None:
    counted = subprocess.run(python(FORKS), capture_output=True, text=True, check=True)

    assert counted.stdout.split() == ["0", "1"]
