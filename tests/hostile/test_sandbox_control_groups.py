"""Memory that no process is charged for, where each pod has a control group, and the reuse and removal of groups."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.support.sandbox_services import IS_ROOT, SMALL, Kind, Service, marked, service, start_service, until
from tests.support.sandbox_services import processes_named as named
from verl_pivot.sandbox.bubblewrap.group_tree import may_have_groups, own_groups
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not (IS_ROOT and may_have_groups()),
        reason="this machine gives nobody here control groups of memory and processes",
    ),
]
in_groups = pytest.mark.parametrize("kind", [Kind.BY_ROOT, Kind.BWRAP_EXEC_BY_ROOT])

LIMITS = Limits(wall_seconds=60.0, cpu_seconds=60, memory_bytes=16 * MIB, tmp_bytes=MIB, num_processes=40)
BOUND_BYTES = 128 * MIB
"""More than the group of a program under LIMITS may use, and less than each attack asks for."""

TREE = """
import ctypes, mmap, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(12):
    if os.fork() == 0:
        break
held = []
"""
SOCKETS = """
try:
    while True:
        held.append(socket.socketpair(socket.AF_UNIX, socket.{kind}))
        held[-1][0].setblocking(False)
        try:
            while True: held[-1][0].send(bytes(65536))
        except BlockingIOError: pass
except OSError: pass
time.sleep(60)
"""
ATTACKS = {
    "buffers of streams": SOCKETS.format(kind="SOCK_STREAM"),
    "buffers of datagrams": SOCKETS.format(kind="SOCK_DGRAM"),
    "buffers of packets": SOCKETS.format(kind="SOCK_SEQPACKET"),
    "pieces of address space": """
pages = 60_000
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(pages << 12), 0, 0x4022, -1, ctypes.c_long(0))
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(start + (page << 12)), ctypes.c_size_t(4096), 1)
time.sleep(60)
""",
    "shared maps, each kept by one page": """
libc.mmap.restype = ctypes.c_void_p
for _ in range(20):
    start = libc.mmap(None, ctypes.c_size_t(8 << 20), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(start, 1, 8 << 20)
    libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t((8 << 20) - 4096))
time.sleep(60)
""",
    "shared maps of /dev/zero, each kept by one page": """
zero = os.open("/dev/zero", os.O_RDWR)
for _ in range(20):
    held.append(mmap.mmap(zero, 8 << 20))
    held[-1][:] = bytes(8 << 20)
    held[-1].madvise(mmap.MADV_DONTNEED)
time.sleep(60)
""",
    "watches of epoll": """
import select
os.fork()
watched = [os.eventfd(0) for _ in range(120)]
held = [select.epoll() for _ in range(120)]
for each in held:
    for fd in watched: each.register(fd)
time.sleep(60)
""",
    "sockets in flight": """
try:
    while True:
        ours, theirs = socket.socketpair(); ours.setblocking(False)
        try:
            while True: ours.send(bytes(65536))
        except BlockingIOError: pass
        carrier = socket.socketpair(); socket.send_fds(carrier[0], [b'x'], [ours.fileno(), theirs.fileno()])
        held.append(carrier)
except OSError: pass
while True:
    try:
        pair = socket.socketpair(); pair[0].setblocking(False); held.append(pair)
        while True: pair[0].send(bytes(65536))
    except BlockingIOError: pass
    except OSError: break
time.sleep(60)
""",
}


def groups_of(running: Service) -> list[Path]:
    """Folders of control groups that a service has made."""
    own = own_groups()
    assert own is not None
    return [folder / f"verl-pivot-{running.pid}" for folder in own.folders]


def most_files(running: Service) -> set[Path]:
    """Files, one for each pod of the service, with the most memory that the pod has used, kernel memory included."""
    memory, _ = groups_of(running)
    return set(memory.rglob("pod-*/memory.max_usage_in_bytes"))


def forget_most_bytes(running: Service) -> set[Path]:
    """Reset the most memory that pods have used: programs of other tests on this service have larger limits.

    Returns the files of groups that still hold much memory, since the kernel frees some late; no program gets them.
    """
    files = most_files(running)
    for file in files:
        file.write_text("0")
    return {file for file in files if int(file.read_text()) > BOUND_BYTES // 8}


def most_bytes(running: Service, occupied: set[Path]) -> int:
    """Most bytes that any pod has used since `forget_most_bytes`, without the pods of the files in `occupied`."""
    return max(int(file.read_text()) for file in most_files(running) - occupied)


@pytest.mark.heavy
@in_groups
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.finding("memory that limits of a process do not see")
def test_h09_what_the_kernel_holds_for_a_program_is_its_memory(kind: Kind, name: str) -> None:
    occupied = forget_most_bytes(service(kind))

    result = service(kind).run(TREE + ATTACKS[name], limits=LIMITS)

    assert result.status == Status.MEMORY_LIMIT
    assert most_bytes(service(kind), occupied) < BOUND_BYTES


@pytest.mark.heavy
def test_h09_buffers_of_a_loopback_connection_are_memory() -> None:
    code = """
listener = socket.create_server(("127.0.0.1", 0))
try:
    while True:
        ours = socket.create_connection(listener.getsockname())
        ours.setblocking(False)
        held.append((ours, listener.accept()))
        try:
            while True: ours.send(bytes(65536))
        except BlockingIOError: pass
except OSError: pass
"""
    occupied = forget_most_bytes(service(Kind.BY_ROOT))

    service(Kind.BY_ROOT).run(TREE + code, limits=LIMITS, network=Network.LOOPBACK)

    assert most_bytes(service(Kind.BY_ROOT), occupied) < BOUND_BYTES


@pytest.mark.heavy
@in_groups
def test_h09_a_child_that_the_kernel_ends_for_memory_ends_the_program_however_its_parent_ends(kind: Kind) -> None:
    attack = ATTACKS["buffers of streams"]
    code = f"import os\nif os.fork() == 0:\n    exec({TREE + attack!r})\nos.wait()\nprint('all is well')"

    assert service(kind).run(code, limits=LIMITS).status == Status.MEMORY_LIMIT


@in_groups
def test_a_program_sees_itself_in_the_topmost_groups_and_cannot_reach_their_files(kind: Kind) -> None:
    code = """
import os
print({line.split(":", 2)[2] for line in open("/proc/self/cgroup").read().splitlines()} if %r else {"/"})
print([path for path in ("/sys", "/sys/fs/cgroup") if os.path.exists(path)])
""" % (kind is Kind.BY_ROOT)

    assert service(kind).output(code) == "{'/'}\n[]\n"


@in_groups
def test_limits_are_those_of_each_program_though_groups_are_used_again(kind: Kind) -> None:
    fill = (
        "import mmap\nheld = mmap.mmap(-1, 150 << 20)\nfor _ in range(150): held.write(bytes(1 << 20))\nprint('full')"
    )
    large, small = Limits(wall_seconds=30.0, memory_bytes=400 * MIB), Limits(wall_seconds=30.0, memory_bytes=32 * MIB)

    results = [service(kind).run(fill, limits=limits) for limits in (large, small, large, small, large)]

    assert [result.status for result in results] == ["ok", "memory_limit", "ok", "memory_limit", "ok"]


@in_groups
def test_files_and_memory_each_to_its_own_limit_are_no_attack(kind: Kind) -> None:
    code = "open('a', 'wb').write(bytes(60 << 20))\nopen('/dev/shm/a', 'wb').write(bytes(15 << 20))\n"
    code += "held = bytes(b'x' * (50 << 20))\nprint(len(held))"

    assert service(kind).output(code, limits=Limits(wall_seconds=30.0, memory_bytes=128 * MIB)) == f"{50 << 20}\n"


async def test_h09_a_session_whose_cell_fills_buffers_says_that_it_was_memory() -> None:
    code = f"import os\nexec({TREE + ATTACKS['buffers of streams']!r})"
    async with service(Kind.BY_ROOT).client() as client, await client.open(limits=LIMITS) as session:
        answer = await session.run(code, wall_seconds=60.0)
        again = await session.run("1 + 1")

    assert (answer.status, again.value) == ("session_killed", "2")
    assert "memory" in (answer.error or "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@in_groups
def test_h57_a_service_that_ends_leaves_no_group(kind: Kind, number: signal.Signals) -> None:
    marker, code = marked("import time; time.sleep(30)")
    running = start_service(kind, lanes=1)
    folders = groups_of(running)
    asyncio.run(_begin_and_leave(running, code, marker))
    assert running.tier == "T1"
    assert all(folder.is_dir() for folder in folders)

    os.kill(running.pid, number)
    running.process.wait()
    running.stop()

    assert until(lambda: not any(folder.exists() for folder in folders), seconds=20.0)


@in_groups
def test_h57_what_stays_where_everything_is_killed_at_once_goes_at_the_next_start(kind: Kind) -> None:
    killed, living = start_service(kind, lanes=1), start_service(kind, lanes=1)
    left, kept = groups_of(killed), groups_of(living)
    os.kill(killed.pid, signal.SIGSTOP)
    for pid in [*descendants(killed.pid), killed.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed.stop()
    assert all(folder.is_dir() for folder in left)

    start_service(kind, lanes=1).stop()

    assert not any(folder.exists() for folder in left)
    assert all(folder.is_dir() for folder in kept)
    assert living.output("print(1)") == "1\n"
    living.stop()


async def _begin_and_leave(running: Service, code: str, marker: str) -> None:
    async with running.client() as client:
        task = asyncio.create_task(client.run(code, limits=Limits(wall_seconds=60.0)))
        await asyncio.to_thread(until, lambda: bool(named(marker)))
        task.cancel()
        await asyncio.wait([task])


def test_groups_are_used_again_and_do_not_pile_up() -> None:
    running = start_service(Kind.BY_ROOT, lanes=1)
    try:
        memory, _ = groups_of(running)
        for _ in range(2):
            running.run_many([Program(code="print(1)", limits=SMALL)] * 50)
            assert len([*memory.glob("lane-1/*/")]) <= 50
    finally:
        running.stop()
