"""Programs that take all the time, processes and memory they can get (H-1 to H-15)."""

import time
from dataclasses import replace

import pytest

from tests.support.sandbox_services import assert_no_survivors, marked, service
from verl_pivot.sandbox.execution import MIB, Limits, Program, Status

pytestmark = pytest.mark.heavy

FEW = Limits(wall_seconds=2.0, memory_bytes=256 * MIB, num_processes=32)


def test_h01_an_endless_loop_is_a_timeout() -> None:
    result = service().run("print('begun', flush=True)\nwhile True: pass", limits=Limits(wall_seconds=0.5))

    assert (result.status, result.exit_code, result.signal, result.stdout) == (Status.TIMEOUT, None, None, "begun\n")


def test_h01_an_endless_loop_ends_at_its_cpu_limit_if_that_comes_first() -> None:
    result = service().run("while True: pass", limits=Limits(wall_seconds=20.0, cpu_seconds=1))

    assert (result.status, result.exit_code) == (Status.CPU_LIMIT, None)
    assert 0.8 < (result.timing.cpu_seconds or 0.0) < 1.2  # the kernel checks at each tick of its clock


def test_h01_ignoring_the_signal_of_the_cpu_limit_gains_one_second() -> None:
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"

    result = service().run(code, limits=Limits(wall_seconds=20.0, cpu_seconds=1))

    assert result.status == Status.CPU_LIMIT
    assert (result.timing.cpu_seconds or 0.0) < 2.3


def test_h02_sleepers_end_at_their_limit() -> None:
    program = Program(code="import time; time.sleep(100)", limits=Limits(wall_seconds=0.5))

    results = service().run_many([program] * 5)

    assert {result.status for result in results} == {Status.TIMEOUT}
    assert all(result.timing.wall_seconds >= 0.5 for result in results)


def test_h03_a_program_that_ignores_every_signal_ends_at_its_limit() -> None:
    marker, code = marked("""
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.alarm(0)  # would cancel a limit that the sandbox set by an alarm inside the process
time.sleep(100)
""")

    assert service().run(code, limits=Limits(wall_seconds=0.5)).status == Status.TIMEOUT
    assert_no_survivors(marker)


def test_h04_a_fork_bomb_is_bounded_and_leaves_nobody() -> None:
    marker, code = marked("""
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""")

    result = service().run(code, limits=FEW)

    assert result.status == Status.TIMEOUT
    assert (
        result.timing.wall_seconds < 5.0
    )  # the wait for cores that the program's own processes use must not extend its limit
    assert_no_survivors(marker)


@pytest.mark.finding("processes of neighbours")
def test_h05_forks_end_at_the_limit_of_processes_and_sleepers_do_not_delay_the_result() -> None:
    marker, code = marked("""
import os, time
num_children = 0
while True:
    try:
        pid = os.fork()
    except BlockingIOError:
        print(num_children)
        break
    if pid == 0:
        time.sleep(100)
        os._exit(0)
    num_children += 1
""")

    result = service().run(code, limits=FEW)

    assert (result.status, result.stdout) == (Status.OK, "31\n")  # 32 with the program itself
    assert result.timing.wall_seconds < 1.0
    assert_no_survivors(marker)


def test_h06_a_fork_bomb_in_bash_is_bounded_and_leaves_nobody() -> None:
    marker, _ = marked("")
    code = f"cp /bin/bash /tmp/{marker}\nexec /tmp/{marker} -c 'bomb() {{ bomb | bomb & }}; bomb'\n"

    result = service().run(code, language="bash", limits=FEW)

    # The first process starts the bomb and ends; if the bomb leaves it no process, bash waits and tries to fork again.
    assert result.status in (Status.OK, Status.TIMEOUT)
    assert_no_survivors(marker)


def test_h07_a_thread_bomb_meets_an_exception() -> None:
    code = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
"""

    result = service().run(code, limits=FEW)

    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    assert result.stderr.endswith("RuntimeError: can't start new thread\n")


def test_h08_25_threads_are_no_attack() -> None:
    code = """
import threading
total = []
threads = [threading.Thread(target=total.append, args=(number,)) for number in range(25)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(total))
"""

    assert service().output(code, limits=FEW) == "300\n"


MEMORY_BOMBS = {
    "h09_bytearrays": "held = []\nwhile True: held.append(bytearray(16 << 20))",
    "h10_anonymous_maps": """
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    held[-1].write(bytes(16 << 20))
""",
    "h11_shared_maps": """
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 16 << 20))
    held[-1].write(bytes(16 << 20))
""",
    "h12_ten_children": """
import os, time
for _ in range(10):
    if os.fork() == 0:
        held = b"x" * (60 << 20)
        time.sleep(100)
time.sleep(100)
""",
    "h12_children_that_share_a_map": """
import mmap, os, time
shared = mmap.mmap(-1, 512 << 20)
for number in range(8):
    if os.fork() == 0:
        for offset in range(0, 64 << 20, 4096):
            shared[(number << 26) + offset] = 1
        time.sleep(100)
time.sleep(100)
""",
    "h14_numpy": "import numpy; numpy.ones(10**9)",
}
RAISES = {"h09_bytearrays", "h10_anonymous_maps", "h14_numpy"}
"""Programs of a single process: the kernel refuses them memory, and they end with a Python exception."""


@pytest.mark.parametrize("name", MEMORY_BOMBS)
def test_memory_is_bounded_and_the_result_says_so(name: str) -> None:
    marker, code = marked(MEMORY_BOMBS[name])

    result = service().run(code, limits=Limits(wall_seconds=10.0, memory_bytes=128 * MIB))

    if name in RAISES:
        assert (result.status, result.exit_code) == (Status.ERROR, 1)
        assert "MemoryError" in result.stderr or "Cannot allocate memory" in result.stderr
    else:
        assert (result.status, result.exit_code) == (Status.MEMORY_LIMIT, None)
    assert (result.peak_memory_bytes or 0) < 1024 * MIB
    assert_no_survivors(marker)


EXECUTING = """
import subprocess, sympy, sys
held = "import sys; held = b'x' * (40 << 20); print(flush=True); sys.stdin.read()"
children = [
    subprocess.Popen([sys.executable, "-S", "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(40)
]
for child in children: child.stdout.readline()
children[0].wait()
"""
"""Program whose zygote holds some tens of MiB, which its children do not share: each executes an interpreter anew."""


@pytest.mark.finding("memory that limits of a process do not see")
def test_h12_children_that_execute_a_program_have_no_memory_of_the_zygotes_for_free() -> None:
    marker, code = marked(EXECUTING)

    result = service().run(code, limits=Limits(wall_seconds=20.0, memory_bytes=128 * MIB))

    assert (result.status, result.exit_code) == (Status.MEMORY_LIMIT, None)
    assert_no_survivors(marker)


@pytest.mark.parametrize("imports", ["", "import sympy"])
def test_h12_children_within_the_limit_together_are_no_attack(imports: str) -> None:
    code = """
import os, time
children = []
for _ in range(5):
    children.append(os.fork())
    if children[-1] == 0:
        held = b"x" * (16 << 20)
        time.sleep(0.5)
        os._exit(0)
print([os.waitpid(pid, 0)[1] for pid in children])
"""

    assert service().output(imports + code, limits=replace(FEW, wall_seconds=10.0)) == "[0, 0, 0, 0, 0]\n"


@pytest.mark.finding("memory that limits of a process do not see")
def test_h13_memory_files_which_no_limit_counts_are_refused() -> None:
    assert (
        service()
        .run("import os; os.memfd_create('x')")
        .stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
    )


@pytest.mark.finding("memory that limits of a process do not see")
def test_h15_system_v_and_posix_queues_are_refused() -> None:
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {"shmget": (0, 1 << 30, 0o1600), "msgget": (0, 0o1600), "semget": (0, 1, 0o1600)}.items():
    outcome = getattr(libc, name)(*arguments)
    print(name, outcome, errno.errorcode[ctypes.get_errno()])
print("mq_open", libc.syscall(240, b"queue", 0o102, 0o600, None), errno.errorcode[ctypes.get_errno()])
"""

    assert service().output(code) == "shmget -1 EPERM\nmsgget -1 EPERM\nsemget -1 EPERM\nmq_open -1 EPERM\n"


def test_results_do_not_wait_to_be_asked_for() -> None:
    start = time.monotonic()
    service().run("pass")

    assert time.monotonic() - start < 0.4  # looking for ended programs every half second would take longer
