"""What the kernel counts for each user, on a service whose programs have user ids of their own."""

import asyncio
from pathlib import Path

import pytest

from tests.hostile.test_sandbox_shared_counters import CALL
from tests.support.sandbox_services import KINDS, Kind, marked, processes_named, service
from verl_pivot.sandbox.bubblewrap.user_range import FIRST_ID
from verl_pivot.sandbox.execution import Limits, Program

pytestmark = pytest.mark.heavy
on_those_with_ids = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Kind.BWRAP_EXEC])


@pytest.fixture(autouse=True)
def _has_user_ids(kind: Kind) -> None:
    if "share one user id" in service(kind).log():
        pytest.skip(
            "this root has no user ids to give"
            if kind is Kind.BY_ROOT
            else "the user of this service has no subordinate ids: /etc/subuid, /etc/subgid, newuidmap and newgidmap"
        )


LIMITS = Limits(wall_seconds=30.0)
HOLD = "\nprint('held', flush=True)\ntime.sleep(4)\n"
GREEDY = {
    "descriptors in flight": """
try:
    while True:
        held.append(socket.socketpair())
        for _ in range(200): socket.send_fds(held[-1][0], [b"x"], [0])
except OSError: pass
""",
    "sockets in flight in themselves": """
ours, theirs = socket.socketpair()
try:
    for _ in range(300): socket.send_fds(ours, [b"x"], [ours.fileno(), theirs.fileno()])
except OSError: pass
""",
    "large pipes": """
try:
    while True:
        held.append(os.pipe())
        fcntl.fcntl(held[-1][1], 1031, 1 << 20)
except OSError: pass
""",
    "pipes of many processes": """
for _ in range(20):
    if os.fork() == 0: break
try:
    while True: held.append(os.pipe())
except OSError: pass
""",
}
HONEST = """
import os, socket, time
time.sleep(2)
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [0])
_, end = os.pipe()
os.set_blocking(end, False)
print(socket.recv_fds(b, 9, 9)[0], os.write(end, bytes(65536)))
"""


@on_those_with_ids
@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.finding("counters that programs share")
def test_h58_what_one_program_uses_up_of_its_user_is_there_for_others(kind: Kind, name: str) -> None:
    greedy = f"import fcntl, os, socket, time\nheld = []{GREEDY[name]}{HOLD}"

    results = service(kind).run_many([Program(code=code, limits=LIMITS) for code in (greedy, greedy, HONEST, HONEST)])

    assert [result.stdout for result in results[2:]] == ["b'x' 65536\n"] * 2
    assert all(result.stdout.startswith("held") for result in results[:2])


@on_those_with_ids
def test_programs_at_one_time_are_different_users_of_the_machine(kind: Kind) -> None:
    marker, code = marked("import time; time.sleep(1.5)")
    seen: set[int] = set()

    async def body() -> None:
        async with service(kind).client() as client:
            task = asyncio.create_task(client.run_many([Program(code=code, limits=LIMITS)] * 6))
            while not task.done():
                seen.update(_user(pid) for pid in processes_named(marker))
                await asyncio.sleep(0.02)

    asyncio.run(body())

    assert len(seen - {0}) == 6
    assert min(seen - {0}) >= FIRST_ID or kind is not Kind.BY_ROOT


def _user(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return 0


@on_those_with_ids
def test_a_program_is_the_same_user_to_itself_as_on_every_other_service(kind: Kind) -> None:
    code = """
import grp, os, pwd, subprocess
print(os.getresuid(), os.getresgid(), os.getgroups())
print(pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name)
with open("/dev/stdout", "w") as out: out.write("out\\n")
print(subprocess.run("echo err > /dev/stderr; touch a; stat -c %U a", shell=True, capture_output=True, text=True))
print(open("/proc/self/status").read().count("CapEff:\\t0000000000000000"))
"""
    ours, theirs = service(kind).output(code), service(Kind.BWRAP_EXEC).output(code)

    assert ours == theirs


@on_those_with_ids
def test_h44_a_program_cannot_become_another_user_of_the_range(kind: Kind) -> None:
    code = f"{CALL}\nimport os\nfor number in (0, 1, 2, 65534, 1001, {FIRST_ID}, {FIRST_ID + 1}):\n"
    code += "    call(117, number, number, number)\n    call(119, number, number, number)\n"

    assert set(service(kind).output(code).split()) <= {"EINVAL", "EPERM"}


@on_those_with_ids
async def test_a_session_its_branch_and_its_files_belong_to_one_user(kind: Kind) -> None:
    async with service(kind).client() as client, await client.open() as session:
        await session.write_file("in.txt", b"20")
        await session.run("open('in.txt', 'a').write('1')\nimport os\nopen('own.txt', 'w').write('x')")
        async with await session.fork() as branch:
            await branch.run("open('own.txt', 'a').write('y'); open('in.txt', 'a').write('2')")
        assert await session.read_file("own.txt") == b"xy"
        assert await session.read_file("in.txt") == b"2012"
