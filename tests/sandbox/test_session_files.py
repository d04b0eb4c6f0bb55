"""Session.read_file and write_file, on a real service."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.fake_backend import TOKEN, FakeBackend, serving
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import service
from verl_pivot.errors import SandboxFileError, SandboxRequestError, SessionLostError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, MIB, Limits, Status
from verl_pivot.sandbox.session import Session
from verl_pivot.sandbox.wire import MAX_CELL_BYTES

pytestmark = needs_sandbox

LIMITS = Limits(wall_seconds=5.0, memory_bytes=256 * MIB, tmp_bytes=16 * MIB)
EVERY_BYTE = bytes(range(256))
OUTSIDE = ("../x", "/etc/passwd", "a/../../x", "./x", "a//b", "", "nul\0")


def in_session(body: Callable[[Session], Awaitable[None]]) -> None:
    """Run `body` with a fresh session."""

    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=LIMITS) as session:
            await body(session)

    asyncio.run(main())


@pytest.mark.parametrize("content", [b"", EVERY_BYTE, EVERY_BYTE * (2 * MAX_CELL_BYTES // 256)])
def test_bytes_come_back_as_they_were_written_over_the_websocket_and_over_a_post(content: bytes) -> None:
    async def body(session: Session) -> None:
        await session.write_file("a/b/data.bin", content)
        assert await session.read_file("a/b/data.bin") == content
        assert (await session.run("len(open('a/b/data.bin', 'rb').read())")).value == str(len(content))

    in_session(body)


def test_a_file_that_a_cell_wrote_is_read_wherever_the_cell_went_since() -> None:
    async def body(session: Session) -> None:
        await session.run("import os; open('out.txt', 'w').write('42'); os.mkdir('sub'); os.chdir('sub')")
        assert await session.read_file("out.txt") == b"42"
        await session.write_file("out.txt", b"43")
        assert (await session.run("open('../out.txt').read()")).value == "'43'"

    in_session(body)


def test_files_leave_the_variables_as_they_are() -> None:
    async def body(session: Session) -> None:
        await session.run("x = 7; x")
        await session.write_file("a", b"1")
        await session.read_file("a")
        assert ((await session.run("(x, _)")).value, session.epoch) == ("(7, 7)", 1)

    in_session(body)


def test_what_is_no_regular_file_of_the_session_is_named_with_the_reason() -> None:
    async def body(session: Session) -> None:
        await session.run("import os; os.mkdir('folder'); os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'etc')")
        await session.run("os.mkfifo('pipe')")
        await session.run(f"open('large', 'wb').truncate({MAX_FILE_BYTES + 1})")
        reasons = {
            "missing": "No such file or directory",
            "folder": "Is a directory",
            "pipe": "not a regular file",
            "link": "Too many levels of symbolic links",
            "etc/passwd": "Not a directory",
            "large": f"larger than the {MAX_FILE_BYTES} bytes",
        }
        for path, reason in reasons.items():
            with pytest.raises(SandboxFileError, match=rf"file '{path}' of session .* cannot be read: {reason}"):
                await session.read_file(path)
        assert (await session.run("1 + 1")).value == "2"

    in_session(body)


def test_a_file_error_is_an_oserror() -> None:
    assert issubclass(SandboxFileError, OSError)


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leaves_the_working_directory_is_refused(path: str) -> None:
    async def body(session: Session) -> None:
        with pytest.raises(SandboxRequestError, match="must be relative"):
            await session.read_file(path)
        with pytest.raises(SandboxRequestError, match="must be relative"):
            await session.write_file(path, b"x")

    in_session(body)


def test_what_cannot_be_written_is_the_callers_error_as_with_a_cell() -> None:
    async def body(session: Session) -> None:
        with pytest.raises(SandboxRequestError, match=f"files of {MAX_FILE_BYTES + 1} bytes is larger than"):
            await session.write_file("large", bytes(MAX_FILE_BYTES + 1))
        await session.run("import os; os.symlink('/dev/shm', 'elsewhere')")
        with pytest.raises(SandboxRequestError, match=r"'elsewhere/x' could not be written: .*Not a directory"):
            await session.write_file("elsewhere/x", b"x")
        assert (await session.run("os.listdir('/dev/shm')")).value == "[]"
        await session.run("open('full', 'wb').write(bytes(15 << 20))")
        with pytest.raises(SandboxRequestError, match=r"'more' could not be written: .*No space left on device"):
            await session.write_file("more", bytes(2 * MIB))

    in_session(body)


def test_files_wait_for_no_running_cell_and_are_refused_like_a_second_one() -> None:
    async def body(session: Session) -> None:
        slow = asyncio.create_task(session.run("import time; time.sleep(0.5)"))
        await asyncio.sleep(0.1)
        with pytest.raises(SandboxRequestError, match="another cell"):
            await session.read_file("a")
        with pytest.raises(SandboxRequestError, match="another cell"):
            await session.write_file("a", b"")
        assert (await slow).status == Status.OK

    in_session(body)


def test_a_branch_and_its_origin_share_one_working_directory() -> None:
    async def body(session: Session) -> None:
        await session.write_file("before", b"1")
        async with await session.fork() as branch:
            assert await branch.read_file("before") == b"1"
            await branch.write_file("after", b"2")
            assert await session.read_file("after") == b"2"
            with pytest.raises(SandboxFileError, match="No such file or directory"):
                await branch.read_file("missing")

    in_session(body)


def test_files_that_went_with_a_killed_interpreter_are_a_lost_session_and_the_next_epoch_begins_empty() -> None:
    async def body(session: Session) -> None:
        await session.run("import ast, os; ast.parse = lambda *_: os._exit(1)")
        with pytest.raises(SessionLostError, match="lost its interpreter and files before 'a' was written"):
            await session.write_file("a", b"1")
        assert session.epoch == 2
        with pytest.raises(SandboxFileError, match="No such file or directory"):
            await session.read_file("a")

    in_session(body)


async def test_a_session_whose_node_is_gone_is_lost() -> None:
    async with serving(FakeBackend()) as node, Sandbox([node.url], TOKEN) as sandbox:
        session = await sandbox.open()
        await session.write_file("a", b"1")
        await node.stop()
        with pytest.raises(SessionLostError, match="is lost"):
            await session.read_file("a")
        with pytest.raises(SessionLostError, match="is lost"):
            await session.write_file("a", b"1")
