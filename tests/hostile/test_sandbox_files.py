"""Programs that fill or leave their file system, and files written and fetched (H-16 to H-20, H-47, H-48)."""

import asyncio
import os
import uuid
from pathlib import Path

import pytest

from tests.support.sandbox_services import SMALL, Kind, on_every_kind, on_every_kind_and_tier, service
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status

pytestmark = pytest.mark.heavy

DISK = Limits(wall_seconds=5.0, memory_bytes=256 * MIB, tmp_bytes=32 * MIB, num_tmp_files=1024)


def test_h16_one_huge_file_ends_at_the_size_of_tmp() -> None:
    code = """
import errno
with open("huge", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno], file.tell() >> 20)
"""

    assert service().output(code, limits=DISK) == "ENOSPC 31\n"  # MiB: /tmp of 32 MiB also holds main.py


def test_h16_a_file_cannot_be_longer_than_tmp_even_if_it_is_all_hole() -> None:
    code = "open('hole', 'wb').truncate(1 << 40)"

    assert service().run(code, limits=DISK).stderr.endswith("OSError: [Errno 27] File too large\n")


def test_h17_many_files_end_at_the_size_of_tmp_together() -> None:
    code = """
import errno
for number in range(100):
    try:
        with open(str(number), "wb", buffering=0) as file:
            assert file.write(bytes(1 << 20)) == 1 << 20
    except (OSError, AssertionError):
        print(number)
        break
"""

    assert service().output(code, limits=DISK) == "31\n"


MANY_FILES = """
import errno
for number in range(1_000_000):
    try:
        open(f"file{number}", "w").close()
    except OSError as error:
        print(errno.errorcode[error.errno], number)
        break
"""


def test_h18_a_million_empty_files_end_at_the_limit_of_files() -> None:
    assert service().output(MANY_FILES, limits=DISK) == "ENOSPC 1022\n"  # 1024 with the folder itself and main.py


def test_h18_bwrap_exec_which_cannot_bound_files_ends_the_program() -> None:
    assert service(Kind.BWRAP_EXEC).run(MANY_FILES, limits=DISK).status == Status.MEMORY_LIMIT


@on_every_kind_and_tier
@pytest.mark.finding("memory that limits of a process do not see")
def test_h19_shared_memory_ends_at_16_mib(kind: Kind) -> None:
    code = """
import errno
with open("/dev/shm/huge", "wb", buffering=0) as file:
    try:
        while True:
            assert file.write(bytes(1 << 20)) == 1 << 20
    except OSError as error:
        print(errno.errorcode[error.errno], file.tell() >> 20)
"""

    assert service(kind).output(code, limits=DISK) == "ENOSPC 16\n"


WRITE_EVERYWHERE = """
import os
def attempt(path, action):
    try:
        action(path)
    except OSError:
        return
    print("changed", path)
for folder in ["/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", "/proc/sys/kernel", "/venv", "/venv/bin", "/sandbox",
               "/home", "/root", "/var", "/run", "/run/lock", "/sys", "/bin", "/lib", "/oldroot", "/newroot",
               "/dev/pts", "/dev/mqueue"]:
    attempt(folder + "/intruder", lambda path: open(path, "w").close())
    attempt(folder + "/folder", os.mkdir)
for path in ["/usr/bin/env", "/etc/passwd", "/etc/hosts", "/dev/null", "/proc/sys/kernel/hostname", "/venv/pyvenv.cfg"]:
    attempt(path, os.unlink)
    attempt(path, lambda path: os.rename(path, path + "2"))
    attempt(path, lambda path: os.chmod(path, 0o777))
    attempt(path, lambda path: os.symlink("/tmp", path + "3"))
for path in ["/usr/bin/env", "/etc/passwd", "/etc/hosts", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
             "/proc/self/oom_adj", "/proc/1/oom_score_adj", "/proc/sys/vm/overcommit_memory", "/venv/pyvenv.cfg"]:
    attempt(path, lambda path: open(path, "r+").close())
"""


@on_every_kind
def test_h20_only_tmp_and_shared_memory_can_be_written(kind: Kind) -> None:
    assert service(kind).output(WRITE_EVERYWHERE) == ""


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "", "a/", ".", "..", "a\0b", "x" * 256]
)
@pytest.mark.parametrize("way", ["files", "fetch"])
def test_h47_names_that_lead_elsewhere_are_refused(name: str, way: str) -> None:
    files = {"files": {name: b""}} if way == "files" else {"fetch": (name,)}

    with pytest.raises(SandboxRequestError, match=r"file name .* must be relative"):
        service().run("pass", **files)


@pytest.mark.parametrize("name", ["../x", "/etc/shadow", "a\0b"])
@pytest.mark.parametrize("way", ["files", "fetch"])
def test_h47_the_service_refuses_them_too(name: str, way: str) -> None:
    import httpx

    running = service()
    program = {"code": "pass", way: {name: ""} if way == "files" else [name]}
    body = {"client": "c", "requests": [{"id": uuid.uuid4().hex, "program": program, "deadline_seconds": 10}]}

    headers = {"Authorization": f"Bearer {running.token}"}
    answer = httpx.post(f"{running.url}/v1/run", json=body, headers=headers, trust_env=False)

    assert answer.json()["failure"]["kind"] == "invalid_request"


TRICKS = """
import os
os.symlink("/etc/passwd", "to_passwd")
os.symlink("/etc/shadow", "to_shadow")
os.symlink("/etc", "to_etc")
os.mkdir("folder")
os.mkfifo("fifo")
os.symlink("/dev/zero", "to_zero")
open("hole", "wb").truncate(30 << 20)
open("secret", "w").write("x")
os.chmod("secret", 0)
open("good", "wb").write(b"\\0\\xff")
os.mkdir("deep")
open("deep/good", "w").write("deep")
import socket
socket.socket(socket.AF_UNIX).bind("socket")
try:
    os.link("/etc/passwd", "hard")
except OSError:
    pass
"""
NOT_FETCHED = (
    *("to_passwd", "to_shadow", "to_etc/passwd", "folder", "fifo", "to_zero", "hole", "secret", "socket", "hard"),
    *("missing", "missing/missing"),
)


@on_every_kind
def test_h47_only_regular_files_of_the_program_come_back(kind: Kind) -> None:
    result = service(kind).run(TRICKS, limits=DISK, fetch=(*NOT_FETCHED, "good", "deep/good"))

    assert (result.status, result.stderr) == (Status.OK, "")
    assert result.files == {"good": b"\0\xff", "deep/good": b"deep"}
    assert set(result.file_errors) == set(NOT_FETCHED)


@on_every_kind
def test_h47_a_daemon_cannot_swap_a_file_while_it_is_fetched(kind: Kind) -> None:
    code = """
import os
open("real", "w").write("mine")
if os.fork() == 0:
    while True:
        for target in ("/etc/passwd", "real"):
            os.symlink(target, "new")
            os.rename("new", "raced")
import time
time.sleep(0.2)
"""

    programs = [Program(code=code, fetch=("raced", "real"), limits=SMALL)] * 5

    for result in service(kind).run_many(programs):
        assert result.files == {"real": b"mine"}
        assert set(result.file_errors) == {"raced"}


@on_every_kind
def test_files_go_in_and_come_out_below_new_folders(kind: Kind) -> None:
    code = "data = open('in/here/a.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1])"

    result = service(kind).run(code, files={"in/here/a.bin": bytes(range(256))}, fetch=("out.bin",))

    assert result.files == {"out.bin": bytes(range(256))[::-1]}


def test_h47_files_put_into_a_session_follow_no_link_that_a_cell_made() -> None:
    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=SMALL) as session:
            await session.run("import os; os.symlink('/dev/shm', 'folder'); os.symlink('/dev/shm/x', 'file')")
            with pytest.raises(SandboxRequestError, match="folder/x"):
                await session.run("1", files={"folder/x": b"in"})
            with pytest.raises(SandboxRequestError, match="file"):
                await session.run("1", files={"file": b"in"})
            assert (await session.run("os.listdir('/dev/shm')")).value == "[]"

    asyncio.run(main())


def test_h48_links_to_oldroot_create_nothing_on_the_host_over_a_restart() -> None:
    """CVE-2026-87766: bubblewrap < 0.12.0 follows such links in a folder that it mounts again."""
    outside = Path("/var/tmp", f"sandbox-test-escape-{uuid.uuid4().hex}")
    links = f"""
import os
os.mkdir("work")
for number, root in enumerate(("/oldroot", "/newroot", "/proc/1/root", "/..", "")):
    os.symlink(root + {str(outside)!r}, f"work/link{{number}}")
"""

    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=SMALL, network=Network.PRIVATE) as session:
            assert (await session.run(links)).error is None
            for number in range(5):
                with pytest.raises(SandboxRequestError):
                    await session.run("1", files={f"work/link{number}/x": b""})
            killed = await session.run("import os; os._exit(1)")
            assert killed.status == Status.SESSION_KILLED
            assert (await session.run("os.listdir('.')")).error is not None
            assert (await session.run("import os; os.listdir('.')")).value == "[]"

    asyncio.run(main())
    assert not os.path.lexists(outside)
