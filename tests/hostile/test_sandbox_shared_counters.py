"""Programs that use up what the kernel counts for all programs together, or memory that no process is charged for."""

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.sandbox_services import (
    SMALL,
    Kind,
    on_every_kind,
    on_every_kind_and_tier,
    on_zygotes,
    service,
    start_service,
)
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status
from verl_pivot.sandbox.lane.confinement import NUM_SIGNALS

pytestmark = pytest.mark.heavy

CALL = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    outcome = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    print(outcome if outcome >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@on_every_kind_and_tier
@pytest.mark.parametrize("call", ["206, 1, 0", "253", "294, 0"], ids=["io_setup", "inotify_init", "inotify_init1"])
@pytest.mark.finding("counters that programs share")
def test_counters_of_the_whole_machine_are_out_of_reach(kind: Kind, call: str) -> None:
    assert service(kind).output(f"{CALL}call({call})") == "ENOSYS\n"


@on_every_kind_and_tier
@pytest.mark.finding("counters that programs share")
def test_queued_signals_are_bounded_for_each_program(kind: Kind) -> None:
    code = f"""{CALL}
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
num_queued = 0
while num_queued < 100_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0:
    num_queued += 1
print(num_queued)
"""

    assert int(service(kind).output(code)) <= NUM_SIGNALS


@on_every_kind_and_tier
@pytest.mark.finding("counters that programs share")
def test_one_program_that_queues_all_its_signals_leaves_others_their_timers(kind: Kind) -> None:
    greedy = f"""{CALL}
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
while libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0:
    pass
time.sleep(2.0)
"""
    honest = f"{CALL}\nimport time\ntime.sleep(1.0)\ntimer = ctypes.c_int()\n"
    honest += "print(libc.timer_create(1, None, ctypes.byref(timer)))"
    limits = Limits(wall_seconds=20.0)

    results = service(kind).run_many([Program(code=code, limits=limits) for code in [greedy] * 2 + [honest] * 2])

    assert [result.stdout for result in results] == ["", "", "0\n", "0\n"]


@on_every_kind_and_tier
@pytest.mark.finding("memory that limits of a process do not see")
def test_sizes_of_socket_buffers_stay_as_they_are(kind: Kind) -> None:
    code = """
import socket
for ours in (*socket.socketpair(), socket.socket()):
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
        before = [ours.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        ours.setsockopt(socket.SOL_SOCKET, option, 1 << 28)
        after = [ours.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        print(before == after)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    print(ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
"""

    assert service(kind).output(code) == "True\nTrue\nTrue\nTrue\n1\n" * 3


@on_every_kind_and_tier
@pytest.mark.parametrize("family", [16, 17, 29, 38, 40], ids=["netlink", "packet", "can", "alg", "vsock"])
@pytest.mark.finding("system calls outside the list")
def test_pairs_of_sockets_are_local_ones(kind: Kind, family: int) -> None:
    assert service(kind).output(f"{CALL}call(53, {family}, 3, 0, 0)") == "EAFNOSUPPORT\n"


PAGE_TABLES = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
PRIVATE, ANONYMOUS, NORESERVE = 2, 32, 0x4000
def fill(gibibytes):
    size = gibibytes << 30
    start = libc.mmap(None, ctypes.c_size_t(size), 1, PRIVATE | ANONYMOUS | NORESERVE, -1, ctypes.c_long(0))
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 15)  # no huge pages
    for offset in range(0, size, 2 << 20):
        ctypes.c_char.from_address(start + offset).value
"""
TABLES = {
    "of one map": "fill(80)",
    "of many maps": "for _ in range(40): fill(2)",
    "of several processes": "for _ in range(3): os.fork() or (fill(30), time.sleep(30))\nfill(10)",
}


@on_every_kind
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.finding("memory that limits of a process do not see")
def test_h09_page_tables_are_memory(kind: Kind, name: str) -> None:
    limits = Limits(wall_seconds=30.0, cpu_seconds=30, memory_bytes=64 * MIB)

    result = service(kind).run(f"{PAGE_TABLES}{TABLES[name]}\ntime.sleep(30)", limits=limits)

    assert result.status == Status.MEMORY_LIMIT


@on_every_kind
def test_h09_a_large_address_space_alone_is_no_attack(kind: Kind) -> None:
    code = f"{PAGE_TABLES}libc.mmap(None, ctypes.c_size_t(200 << 30), 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0)\n"

    assert service(kind).output(f"{code}time.sleep(0.5)\nprint('well')", limits=SMALL) == "well\n"


TREE = """
import os, socket, time
for _ in range(8):
    if os.fork() == 0:
        break
held = []
def fill(sender):
    sender.setblocking(False)
    try:
        while True: sender.send(bytes(65536))
    except BlockingIOError: pass
try:
    while True:
"""
PAIR = "        held.append(socket.socketpair(socket.AF_UNIX, socket.{kind})); fill(held[-1][0])\n"
SOCKETS = {
    "streams": PAIR.format(kind="SOCK_STREAM"),
    "datagrams": PAIR.format(kind="SOCK_DGRAM"),
    "packets": PAIR.format(kind="SOCK_SEQPACKET"),
    "in flight": """
        ours, theirs = socket.socketpair(); fill(ours)
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [ours.fileno(), theirs.fileno()])
        ours.close(); theirs.close()
""",
}
TCP = """
        listener = socket.create_server(("127.0.0.1", 0))
        ours = socket.create_connection(listener.getsockname()); fill(ours)
        held.append((ours, listener.accept()))
"""
AT_END = "except OSError: pass\ntime.sleep(60)"
without_groups = pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
WITH_SOCKETS = Limits(wall_seconds=30.0, cpu_seconds=60, memory_bytes=16 * MIB, num_processes=40)


@without_groups
@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.finding("memory that limits of a process do not see")
def test_h09_buffers_of_sockets_are_memory_without_control_groups_too(kind: Kind, name: str) -> None:
    assert service(kind).run(TREE + SOCKETS[name] + AT_END, limits=WITH_SOCKETS).status == Status.MEMORY_LIMIT


@without_groups
@pytest.mark.finding("memory that limits of a process do not see")
def test_h09_buffers_of_connections_are_memory_too(kind: Kind) -> None:
    code = TREE + TCP + AT_END

    result = service(kind).run(code, limits=WITH_SOCKETS, network=Network.LOOPBACK)

    assert result.status == Status.MEMORY_LIMIT


@pytest.mark.finding("memory that limits of a process do not see")
def test_h09_the_buffers_of_a_connection_stay_small() -> None:
    code = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
ours.setblocking(False)
size = 0
try:
    while True: size += ours.send(bytes(1 << 16))
except BlockingIOError: print(0 < size < 1 << 20)
ours.setblocking(True)
received = 0
def read():
    global received
    while part := theirs.recv(1 << 20): received += len(part)
reader = threading.Thread(target=read)
reader.start()
ours.sendall(bytes(8 << 20)); ours.close(); reader.join()
print(received == size + (8 << 20))
"""

    assert service().output(code, network=Network.LOOPBACK, limits=Limits(wall_seconds=20.0)) == "True\nTrue\n"


@on_every_kind
def test_h09_many_sockets_are_no_attack(kind: Kind) -> None:
    code = """
import socket, time
held = [socket.socketpair() for _ in range(120)]
for ours, _ in held: ours.send(bytes(100_000))
time.sleep(0.5)
print(sum(len(theirs.recv(1 << 20)) for _, theirs in held))
"""

    assert service(kind).output(code, limits=Limits(wall_seconds=20.0, memory_bytes=16 * MIB)) == "12000000\n"


HOPPERS = """
import mmap, os, signal, time
held = mmap.mmap(-1, 480 << 20)
block = bytes(1 << 20)
def hop():
    while True:
        if os.fork():
            os._exit(0)
        HOP
        os.kill(-1, signal.SIGCONT)
        time.sleep(0.0007)
for _ in range(2):
    if os.fork() == 0:
        hop()
while time.process_time() < 0.1: pass
while True:
    held.seek(0)
    for _ in range(480):
        held.write(block)
"""


@on_zygotes
@pytest.mark.parametrize("hop", ["os.setpgid(0, 0)", "os.setsid()", "pass"], ids=["groups", "sessions", "no group"])
@pytest.mark.finding("stopped programs that go on")
def test_h09_a_program_whose_children_continue_it_is_watched_all_the_same(kind: Kind, hop: str) -> None:
    rival = "import time\nwhile time.process_time() < 0.5: pass\nprint('done')"
    limits = Limits(wall_seconds=30.0, memory_bytes=64 * MIB)

    results = service(kind).run_many(
        [Program(code=code, limits=limits) for code in (HOPPERS.replace("HOP", hop), rival, rival)]
    )

    assert [result.status for result in results] == [Status.MEMORY_LIMIT, Status.OK, Status.OK]


@on_every_kind_and_tier
@pytest.mark.parametrize(
    "attack",
    [
        "os.chmod('/tmp', 0)",
        "os.remove('a.txt'); os.mkdir('a.txt', 0)",
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
        "os.rename('/tmp/a.txt', '/tmp/b'); os.symlink('/tmp/a.txt', '/tmp/a.txt')",
    ],
)
@pytest.mark.finding("having no result")
def test_h47_a_program_cannot_choose_to_have_no_result(kind: Kind, attack: str) -> None:
    code = (
        f"import os, resource\nopen('a.txt', 'w').write('a')\ntry:\n    {attack}\nexcept OSError as error: print(error)"
    )

    result = service(kind).run(code, fetch=("a.txt",))

    assert (result.status, result.exit_code) == (Status.OK, 0)
    assert [*result.files, *result.file_errors] == ["a.txt"]
    if "prlimit" in attack:
        assert (result.stdout, result.files) == ("[Errno 1] Operation not permitted\n", {"a.txt": b"a"})


SMALL_TMP = Limits(wall_seconds=2.0, tmp_bytes=1 * MIB, num_tmp_files=16)
REFUSED = {
    "too large": ({"a": bytes(MIB)}, "take 1052672 bytes, more than limits.tmp_bytes of 1048576"),
    "too many": ({f"{number}": b"" for number in range(15)}, "more than limits.num_tmp_files of 16"),
    "too many folders": ({f"{number}/a": b"" for number in range(8)}, "more than limits.num_tmp_files of 16"),
    "a file that is a folder": ({"a": b"", "a/b": b""}, "files name 'a' both as a file and as a folder"),
    "the program's own file": ({"main.py": b""}, "the name 'main.py' is used for the code"),
}


@on_every_kind_and_tier
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.finding("files that collide or do not fit")
def test_h54_files_that_cannot_be_written_are_the_callers_error_at_once(kind: Kind, name: str) -> None:
    files, message = REFUSED[name]

    with pytest.raises(SandboxRequestError, match=message):
        service(kind).run("pass", files=files, limits=SMALL_TMP)


@on_every_kind
def test_h54_as_many_files_as_fit_are_written(kind: Kind) -> None:
    files = {f"{number}": b"a" for number in range(13)}

    found = service(kind).output("import os; print(sorted(os.listdir()))", files=files, limits=SMALL_TMP)

    assert found == f"{sorted([*files, 'main.py'])}\n"


@pytest.mark.finding("descriptors of the service")
def test_h14_300_sleepers_at_1024_descriptors_all_end_well() -> None:
    running = start_service(Kind.ZYGOTE, wrapper=("prlimit", "--nofile=1024:1024"))
    try:
        sleeper = Program(code="import time; time.sleep(0.5); print(1)", limits=Limits(wall_seconds=20.0))
        results = running.run_many([sleeper] * 300)
        assert json.dumps(sorted({(result.status, result.stdout) for result in results})) == '[["ok", "1\\n"]]'
    finally:
        running.stop()


SPARED = """
import os, subprocess, threading
def attempt(path, score):
    try:
        os.write(os.open(path, os.O_WRONLY), score)
    except OSError as error:
        return error.strerror
    return "lowered"
found = set()
for path in ("/proc/self/oom_score_adj", "/proc/self/oom_adj", f"/proc/{os.getpid()}/oom_score_adj",
             "/proc/thread-self/oom_score_adj", "/proc/self/root/proc/self/oom_score_adj",
             f"/proc/self/task/{os.getpid()}/../../oom_score_adj", "/proc/1/oom_score_adj"):
    for score in (b"-1000", b"0", b"499", b"999"):
        found.add(attempt(path, score))
        thread = threading.Thread(target=lambda: found.add(attempt(path, score)))
        thread.start()
        thread.join()
shell = "for each in self $$ thread-self; do echo 0 > /proc/$each/oom_score_adj; done"
subprocess.run(shell, shell=True, stderr=subprocess.DEVNULL)
print(*found - {"Permission denied", "No such file or directory"}, sep=", ")
print(open("/proc/self/oom_score_adj").read())
"""


@on_every_kind
@pytest.mark.finding("counters that programs share")
def test_h45_no_program_can_ask_to_be_spared_when_memory_runs_out(kind: Kind) -> None:
    assert service(kind).output(SPARED).split("\n")[:2] == ["Read-only file system", "1000"]


@on_every_kind
@pytest.mark.finding("counters that programs share")
def test_h45_no_program_can_write_proc_by_another_way(kind: Kind) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
folder = os.open("/proc/self", os.O_PATH)
remount = libc.mount(None, b"/proc", None, 0x20 | 0x1000, None)
again = libc.mount(b"proc", b"/tmp", b"proc", 0, None)
print(remount, again)
for name in ("oom_score_adj", "coredump_filter", "comm", "clear_refs", "timerslack_ns"):
    try:
        os.open(name, os.O_WRONLY, dir_fd=folder)
    except OSError as error:
        print(error.strerror)
"""

    lines = service(kind).output(code).splitlines()

    assert lines[0] == "-1 -1"
    assert set(lines[1:]) <= {"Read-only file system", "Permission denied", "No such file or directory"}
    assert len(lines) == 6


@pytest.mark.parametrize(("given", "score"), [("100", "500"), ("500", "500"), ("900", "900")])
def test_h45_a_lane_asks_to_be_ended_first_and_never_later_than_its_container_asks(given: str, score: str) -> None:
    code = "from pathlib import Path\nfrom verl_pivot.sandbox.lane.procfs import raise_oom_score\n"
    code += f"file = Path('/proc/self/oom_score_adj')\nfile.write_text({given!r})\nraise_oom_score()\n"
    code += "print(file.read_text())"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [score]


@on_every_kind_and_tier
@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.finding("output beyond its bound")
def test_h21_output_beyond_its_bound_is_never_a_success_however_fast_it_comes(kind: Kind, stream: int) -> None:
    code = f"import fcntl, os\nfcntl.fcntl({stream}, 1031, 1 << 20)\nos.write({stream}, bytes((1 << 20) + 1))"

    results = service(kind).run_many([Program(code=code, limits=Limits(wall_seconds=20.0))] * 10)

    assert {result.status for result in results} == {Status.OUTPUT_LIMIT}


ASKS_FOR_CORES = {
    "a child that aborts": (
        "python",
        """
import os, resource
for limits in ((0, 0), (0, 1), (-1, -1)):
    resource.setrlimit(resource.RLIMIT_CORE, limits)
try:
    resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
except OSError as error:
    print(error.strerror)
print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)
if os.fork() == 0: os.abort()
os.wait()
print(os.listdir())
""",
        "Operation not permitted\n(1, 1)\n['main.py']\n",
    ),
    "a shell": ("bash", "ulimit -c 0 && ulimit -c unlimited && ulimit -c", "0\n"),
    "a shell whose child aborts": (
        "bash",
        "exec 2> /dev/null; ulimit -c unlimited; bash -c 'kill -ABRT $$'; echo $?; ls",
        "134\nmain.sh\n",
    ),
}


@on_every_kind_and_tier
@pytest.mark.parametrize("name", ASKS_FOR_CORES)
@pytest.mark.finding("core files and the service's clients")
def test_h20_a_program_has_no_say_in_what_becomes_of_its_memory_when_it_crashes(kind: Kind, name: str) -> None:
    language, code, output = ASKS_FOR_CORES[name]

    assert service(kind).output(code, language=language) == output
