"""Honest programs on a machine that others keep busy: time without a core does not count for a program's limit."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.test_sandbox_sessions import in_session
from tests.support.sandbox_services import Kind, assert_no_survivors, marked, on_every_kind_and_tier, service
from verl_pivot.sandbox.execution import Limits, Program, Result, Status
from verl_pivot.sandbox.lane.core_time import CoreTime, Waiting, core_times, family, lacked_core
from verl_pivot.sandbox.lane.procfs import read_process
from verl_pivot.sandbox.session import Session

pytestmark = pytest.mark.heavy

NUM_RIVALS = 4
RIVAL = "import os, time\nos.nice(19)\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
WALL_SECONDS = 0.6
BUSY = "import time\nwhile time.process_time() < 0.2: pass"
COMPUTES = {
    "in a subprocess": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}], check=True)",
    "in a thread": "import threading, time\ndef work():\n    while time.thread_time() < 0.2: pass\n"
    "t = threading.Thread(target=work)\nt.start()\nt.join()",
    "in a forked child": f"import os\npid = os.fork()\nif pid == 0: exec({BUSY!r})\nelse: os.waitpid(pid, 0)",
    "in a shell's pipeline": f"import subprocess, sys\nopen('w.py', 'w').write({BUSY!r})\n"
    "subprocess.run(f'{sys.executable} w.py | cat', shell=True, check=True)",
}


@contextmanager
def rivals() -> Iterator[None]:
    """Processes outside of the sandbox that compute all the time, each in a session of its own."""
    started = [subprocess.Popen([sys.executable, "-c", RIVAL], start_new_session=True) for _ in range(NUM_RIVALS)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def assert_not_ended_early(result: Result) -> None:
    """Check that a program ended by itself, or at its limit only after it used up a second one, granted for waiting."""
    assert result.status in (Status.OK, Status.TIMEOUT), result
    assert result.status == Status.OK or result.timing.wall_seconds >= 2 * WALL_SECONDS, result.timing


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
@pytest.mark.parametrize("name", COMPUTES)
@pytest.mark.finding("time without a core")
def test_h60_a_program_is_not_ended_for_time_in_which_it_had_no_core(name: str, kind: Kind) -> None:
    limits = Limits(wall_seconds=WALL_SECONDS)

    with rivals():
        results = service(kind).run_many([Program(code=COMPUTES[name], limits=limits)] * 2)

    for result in results:
        assert_not_ended_early(result)


@pytest.mark.parametrize("name", COMPUTES)
@pytest.mark.finding("time without a core")
def test_h60_a_cell_is_not_ended_for_time_in_which_it_had_no_core(name: str) -> None:
    async def body(session: Session) -> None:
        with rivals():
            result = await session.run(COMPUTES[name])
        assert_not_ended_early(result)

    in_session(body, Limits(wall_seconds=WALL_SECONDS))


DAEMONS = """
import os, threading
def spin():
    while True: pass
for _ in range(5):
    if os.fork() == 0:
        if os.fork(): os._exit(0)
        for _ in range(3): threading.Thread(target=spin, daemon=True).start()
        spin()
    os.wait()
"""
"""Program that starts daemons of a few threads each, which then keep it from a core."""


@pytest.mark.finding("time without a core")
def test_h60_a_program_that_starves_itself_by_daemons_had_a_core() -> None:
    result = service(Kind.ZYGOTE).run(f"{DAEMONS}spin()", limits=Limits(wall_seconds=WALL_SECONDS))

    assert (result.status, result.had_no_core) == (Status.TIMEOUT, False), result.timing


@pytest.mark.finding("time without a core")
def test_h60_a_cell_that_starves_itself_by_daemons_had_a_core() -> None:
    async def body(session: Session) -> None:
        assert (await session.run(DAEMONS)).status == Status.OK
        result = await session.run("spin()")

        # An interpreter that its own daemons keep from a core may not end its cell in time.
        assert result.status in (Status.TIMEOUT, Status.SESSION_KILLED)
        assert not result.had_no_core, result.timing

    in_session(body, Limits(wall_seconds=WALL_SECONDS))


SIBLINGS = """
import ctypes
libc = ctypes.CDLL(None)
def spin():
    while True: pass
for _ in range(12):
    if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0: spin()  # clone with CLONE_PARENT and SIGCHLD
"""
"""Program that asks for children of its own parent, which would keep it from a core and be none of its family."""


@on_every_kind_and_tier
@pytest.mark.finding("children that no watch sees")
def test_h60_a_program_makes_no_children_that_would_be_its_zygotes(kind: Kind) -> None:
    marker, code = marked(f"{SIBLINGS}spin()")

    result = service(kind).run(code, limits=Limits(wall_seconds=WALL_SECONDS))

    assert (result.status, result.had_no_core) == (Status.TIMEOUT, False), result.timing
    assert_no_survivors(marker)  # a child that nobody waits for would be a zombie with the marker


@pytest.mark.finding("children that no watch sees")
def test_h60_a_cell_makes_no_children_that_would_be_its_zygotes() -> None:
    async def body(session: Session) -> None:
        assert (await session.run(SIBLINGS)).status == Status.OK
        result = await session.run("spin()")

        assert (result.status, result.had_no_core) == (Status.TIMEOUT, False), result.timing

    in_session(body, Limits(wall_seconds=WALL_SECONDS))


THREADS_THAT_STAY = """
import hashlib, threading, time
block, end, stay = bytes(1 << 20), time.monotonic() + 0.4, threading.Event()
def work():
    while time.monotonic() < end: hashlib.sha256(block)  # without the interpreter's lock
    stay.wait()
for _ in range(40): threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
"""
"""Cell whose threads keep each other from a core, then live on and sleep."""


@pytest.mark.finding("time without a core")
def test_h60_waits_of_threads_that_an_earlier_cell_left_count_for_no_later_cell() -> None:
    async def body(session: Session) -> None:
        await session.run(THREADS_THAT_STAY)
        result = await session.run("time.sleep(1000)")

        assert (result.status, result.had_no_core) == (Status.TIMEOUT, False), result.timing
        assert result.timing.wall_seconds < 2 * WALL_SECONDS

    in_session(body, Limits(wall_seconds=WALL_SECONDS))


NEW_PARENT = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as the first process of a pod namespace is by itself
end, (read, write) = os.getpid(), os.pipe()
def stay():
    libc.prctl(1, 9)  # PR_SET_PDEATHSIG: SIGKILL
    time.sleep(60)
if os.fork() == 0:
    if os.fork() == 0:
        if os.fork() == 0:
            while os.getppid() != end: time.sleep(0.001)
            os.write(write, b"%d" % os.getpid())
            stay()
        os._exit(0)
    os.wait()
    print(os.getpid(), os.read(read, 20).decode(), flush=True)
    stay()
os.wait()
"""
"""Process whose child is the program; it has adopted a grandchild of the program whose own parent has ended."""
TIMES = st.builds(CoreTime, st.floats(0.0, 100.0), st.floats(0.0, 100.0))


@given(st.lists(st.tuples(st.dictionaries(st.integers(1, 5), TIMES), st.booleans())), st.floats(0.0, 100.0))
def test_a_program_never_waits_while_it_has_a_core(
    looks: list[tuple[dict[int, CoreTime], bool]], elapsed: float
) -> None:
    waiting = Waiting()
    for now, (times, is_ready) in enumerate(looks):
        waiting.look(times, is_ready=is_ready, now=float(now))
    seen = [(pid, time.used_seconds) for times, _ in looks for pid, time in times.items()]
    used = sum(max((seconds for each, seconds in seen if each == pid), default=0.0) for pid in range(1, 6))

    assert 0.0 <= waiting.seconds(elapsed) <= max(0.0, elapsed - used) + 1e-9


def test_time_of_waiting_that_the_kernel_has_not_added_up_yet_counts_from_the_second_look() -> None:
    waiting, stalled = Waiting(), {7: CoreTime(used_seconds=0.25, waited_seconds=1.0)}

    waiting.look(stalled, is_ready=True, now=10.0)
    assert (waiting.seconds(60.0), waiting.is_undecided) == (1.0, True)
    waiting.look(stalled, is_ready=True, now=10.0625)
    assert (waiting.seconds(60.0), waiting.is_undecided) == (1.0625, False)
    waiting.look({7: CoreTime(used_seconds=0.25, waited_seconds=1.5)}, is_ready=True, now=10.125)
    assert waiting.seconds(60.0) == 1.5
    waiting.look({}, is_ready=False, now=20.0)
    assert (waiting.seconds(60.0), waiting.seconds(1.0), waiting.is_undecided) == (1.5, 0.75, False)


def test_daemons_are_of_the_family_where_their_new_parent_is_given() -> None:
    with subprocess.Popen([sys.executable, "-c", NEW_PARENT], stdout=subprocess.PIPE, text=True) as new_parent:
        assert new_parent.stdout is not None
        program, daemon = map(int, new_parent.stdout.readline().split())
        found = [[each.pid for each in family(program, shim)] for shim in (None, new_parent.pid)]
        new_parent.kill()

    assert found == [[program], [program, daemon]]


def test_times_before_the_first_look_count_for_nothing_whoever_had_them() -> None:
    waiting = Waiting({7: CoreTime(used_seconds=2.0, waited_seconds=1.0), 8: CoreTime(20.0, 10.0)})

    waiting.look({7: CoreTime(used_seconds=2.5, waited_seconds=4.0)}, is_ready=False, now=10.0)  # process 8 has ended

    assert (waiting.seconds(60.0), waiting.seconds(2.0)) == (3.0, 1.5)


def test_each_thread_has_times_of_its_own_and_the_first_has_the_cpu_time_of_all() -> None:
    stay, has_begun = threading.Event(), threading.Event()

    def sleep() -> None:
        has_begun.set()
        stay.wait()

    thread = threading.Thread(target=sleep)
    thread.start()
    has_begun.wait()
    process = read_process(os.getpid())
    assert process is not None
    times = core_times([process])
    stay.set()
    thread.join()

    assert times[process.pid].used_seconds == process.cpu_seconds
    assert sum(each.used_seconds for each in times.values()) == process.cpu_seconds
    assert thread.native_id in times


def test_what_is_noted_of_a_process_between_two_looks_counts_though_it_has_ended() -> None:
    waiting = Waiting()

    waiting.note({8: CoreTime(used_seconds=3.0, waited_seconds=0.0)})
    waiting.look({7: CoreTime(used_seconds=0.0, waited_seconds=4.0)}, is_ready=False, now=10.0)

    assert waiting.seconds(4.0) == 1.0


def test_time_that_a_control_group_has_counted_is_no_waiting_whoever_used_it() -> None:
    waiting = Waiting({7: CoreTime(used_seconds=1.0, waited_seconds=0.0)})

    waiting.look({7: CoreTime(used_seconds=1.5, waited_seconds=9.0)}, is_ready=False, now=10.0)
    assert (waiting.used_seconds, waiting.seconds(10.0)) == (0.5, 9.0)
    waiting.note_counted(8.0)

    assert (waiting.used_seconds, waiting.seconds(10.0)) == (8.0, 2.0)


def test_a_process_that_has_a_core_is_found_out_at_the_second_look() -> None:
    waiting = Waiting()

    waiting.look({7: CoreTime(used_seconds=1.0, waited_seconds=0.0)}, is_ready=True, now=10.0)
    waiting.look({7: CoreTime(used_seconds=1.0625, waited_seconds=0.0)}, is_ready=True, now=10.0625)

    assert (waiting.seconds(60.0), waiting.is_undecided) == (0.0, False)


@pytest.mark.parametrize(("waited", "used", "lacked"), [
    (0.0, 0.1, False),  # it slept
    (4.9, 0.1, False),
    (5.0, 0.1, True),  # the waits that are known are half of its limit, those of ended processes are not known
    (5.0, 4.9, True),
    (5.0, 5.0, False),  # it computed for as long as it waited
    (50.0, 10.0, False),  # all of its waiting was granted, and it used up its limit
    (50.1, 10.0, True),  # it waited for longer than five times its limit
])  # fmt: skip
def test_a_program_that_waited_for_half_of_its_limit_and_computed_for_less_lacked_a_core(
    waited: float, used: float, lacked: bool
) -> None:
    assert lacked_core(waited, used, wall_seconds=10.0) is lacked


CELL_BUSY = "end = time.process_time() + 0.25\nwhile time.process_time() < end: pass"


@pytest.mark.finding("CPU time of a session")
def test_h59_the_limit_on_cpu_time_counts_for_each_cell() -> None:
    """A session lives as long as a trajectory, whose cells together may take more than the limit of one cell."""

    async def body(session: Session) -> None:
        await session.run("import time\nnum_cells = 0")
        for _ in range(6):
            assert (await session.run(f"{CELL_BUSY}\nnum_cells += 1")).status == Status.OK
        assert ((await session.run("num_cells")).value, session.epoch) == ("6", 1)

    in_session(body, Limits(wall_seconds=60.0, cpu_seconds=1))


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import threading\nthread = threading.Thread(target=exec, args=('while go: pass',), daemon=True)\n"
        "thread.start()\nwhile True: pass",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    ],
)
@pytest.mark.finding("CPU time of a session")
def test_h59_a_cell_that_uses_up_its_cpu_time_is_interrupted_and_keeps_its_variables(code: str) -> None:
    async def body(session: Session) -> None:
        await session.run("go = True\nkept = 7")
        assert (await session.run(code)).status == Status.CPU_LIMIT
        assert ((await session.run("go = False\nkept")).value, session.epoch) == ("7", 1)

    in_session(body, Limits(wall_seconds=60.0, cpu_seconds=1))


@pytest.mark.finding("CPU time of a session")
def test_h59_a_daemon_of_an_earlier_cell_does_not_count() -> None:
    async def body(session: Session) -> None:
        await session.run("import subprocess, sys, time")
        daemon = "daemon = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\ntime.sleep(0.1)"
        assert (await session.run(daemon)).status == Status.OK
        used = "int(open(f'/proc/{daemon.pid}/stat').read().split()[13])"
        assert (await session.run(f"while {used} < 110: time.sleep(0.1)\n7")).value == "7"
        assert ((await session.run("time.sleep(0.6)\n8")).value, session.epoch) == ("8", 1)

    in_session(body, Limits(wall_seconds=60.0, cpu_seconds=1))
