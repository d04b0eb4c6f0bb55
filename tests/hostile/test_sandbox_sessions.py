"""Cells that hang, die, lie or break their interpreter: a loss of variables is always reported (H-49, H-50, H-59)."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.support.sandbox_services import SMALL, Kind, assert_no_survivors, marked, service, start_service
from verl_pivot.errors import SandboxRequestError, SessionLostError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Status
from verl_pivot.sandbox.session import Session

pytestmark = pytest.mark.heavy

LIMITS = Limits(wall_seconds=2.0, memory_bytes=256 * MIB)


def in_session(body: Callable[[Session], Awaitable[None]], limits: Limits = LIMITS) -> None:
    """Run `body` with a fresh session."""

    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=limits) as session:
            await body(session)

    asyncio.run(main())


def test_variables_stay_and_the_last_expression_is_the_value() -> None:
    async def body(session: Session) -> None:
        assert (await session.run("x = 20")).value is None
        result = await session.run("print('out'); x + 1")
        assert (result.status, result.stdout, result.value, result.error) == (Status.OK, "out\n", "21", None)
        assert result.session is not None
        assert (result.session.epoch, result.session.num_cells) == (1, 2)

    in_session(body)


def test_cells_run_once_and_are_not_replayed() -> None:
    """A notebook that replays earlier cells would repeat their side effects and take their time again."""

    async def body(session: Session) -> None:
        await session.run("import time; n = 0")
        for _ in range(4):
            await session.run("n += 1; open('log', 'a').write('x'); time.sleep(0.3)", wall_seconds=0.6)
        result = await session.run("n, open('log').read()", wall_seconds=0.2)
        assert result.value == "(4, 'xxxx')"

    in_session(body)


def test_a_cells_own_time_limit_counts() -> None:
    async def body(session: Session) -> None:
        start = time.monotonic()
        assert (await session.run("while True: pass", wall_seconds=0.2)).status == Status.TIMEOUT
        assert time.monotonic() - start < 1.5

    in_session(body, Limits(wall_seconds=60.0))


def test_output_of_subprocesses_and_of_c_belongs_to_the_cell() -> None:
    async def body(session: Session) -> None:
        code = "import os, ctypes, subprocess; os.system('echo shell'); ctypes.CDLL(None).puts(b'c'); "
        code += "ctypes.CDLL(None).fflush(None); subprocess.run(['echo', 'child']); print('python')"
        result = await session.run(code)
        assert sorted(result.stdout.splitlines()) == ["c", "child", "python", "shell"]

    in_session(body)


def test_h50_a_value_whose_repr_raises_is_the_cells_error() -> None:
    async def body(session: Session) -> None:
        result = await session.run("class A:\n    def __repr__(self): raise KeyError('no')\nA()")
        assert (result.status, result.value) == (Status.ERROR, None)
        assert (result.error or "").endswith("KeyError: 'no'\n")
        assert (await session.run("1 + 1")).value == "2"

    in_session(body)


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        "class A:\n    def __del__(self):\n        while True: pass\na = A()\ndel a",
        "import time; time.sleep(100)",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "import threading; threading.Event().wait()",
    ],
)
def test_h50_a_cell_that_hangs_is_interrupted_and_keeps_its_variables(code: str) -> None:
    async def body(session: Session) -> None:
        await session.run("kept = 7")
        result = await session.run(code, wall_seconds=0.3)
        assert result.status == Status.TIMEOUT
        after = await session.run("kept")
        assert (after.value, session.epoch) == ("7", 1)

    in_session(body)


@pytest.mark.parametrize(
    "code",
    [
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nwhile True: pass",
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except BaseException: pass",
        "import time\nclass A:\n    def __repr__(self):\n        while True:\n            try: time.sleep(1)\n"
        "            except BaseException: pass\nA()",
    ],
)
def test_h59_a_cell_that_will_not_be_interrupted_loses_the_interpreter_and_says_so(code: str) -> None:
    async def body(session: Session) -> None:
        await session.run("kept = 7")
        result = await session.run(code, wall_seconds=0.2)
        assert result.status == Status.SESSION_KILLED
        assert (session.epoch, result.session.epoch if result.session else 0) == (2, 2)
        after = await session.run("kept")
        assert (after.error or "").endswith("NameError: name 'kept' is not defined\n")

    in_session(body)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import os; os.abort()",
        "import os; os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.closerange(3, 100)",
        "import os; os.killpg(0, 9)",
    ],
)
def test_h59_a_cell_that_ends_its_interpreter_starts_a_new_epoch(code: str) -> None:
    async def body(session: Session) -> None:
        await session.run("kept = 7")
        assert (await session.run(code)).status == Status.SESSION_KILLED
        assert session.epoch == 2
        assert (await session.run("'kept' in globals()")).value == "False"

    in_session(body)


def test_h59_whoever_asks_for_a_lost_epoch_is_told() -> None:
    async def body(session: Session) -> None:
        await session.run("import os; os._exit(0)")
        session.epoch = 1  # as a client that has not seen the answer believes
        with pytest.raises(SessionLostError, match="gone"):
            await session.run("1")

    in_session(body)


@pytest.mark.parametrize(
    "code", ["raise SystemExit(3)", "exit()", "raise KeyboardInterrupt", "raise GeneratorExit", "quit()"]
)
def test_h50_exit_in_a_cell_is_an_error_of_the_cell(code: str) -> None:
    async def body(session: Session) -> None:
        await session.run("kept = 7")
        assert (await session.run(code)).status == Status.ERROR
        assert (await session.run("kept")).value == "7"

    in_session(body)


def test_h50_pickles_that_run_code_run_it_in_the_session_and_nowhere_else() -> None:
    async def body(session: Session) -> None:
        code = "class Bomb:\n    def __reduce__(self): return (eval, (\"__import__('os').getpid()\",))\nBomb()"
        assert "Bomb object" in ((await session.run(code)).value or "")
        assert (
            await session.run("import pickle, os; pickle.loads(pickle.dumps(Bomb())) == os.getpid()")
        ).value == "True"

    in_session(body)


FORGED = """
import array, json, os, socket
def say(fd, data):
    try:
        return socket.socket(fileno=os.dup(fd)).send(data)
    except OSError:
        return None
for fd in (3, 4, 5):
    for number in range(-5, 10):
        for text in {texts!r}:
            say(fd, text.replace(b"NUMBER", str(number).encode()))
"""
FORGERIES = {
    "answers": [b'{"id": NUMBER}', b'{"id": NUMBER, "refused": "x"}', b'{"id": NUMBER, "pid": 1}'],
    "garbage": [b"\xff\xfe", b"[]", b"1", b"null", b'"x"'],
    "deep": [b"[" * 5000],
    "long": [b'{"id": "' + b"x" * 60_000 + b'"}'],
    "wrong_types": [b'{"id": [1]}', b'{"id": {"a": 1}}', b'{"id": null}', b"{}"],
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.finding("answers that hold up the lane")
def test_h49_a_forged_frame_hurts_only_its_own_session(name: str) -> None:
    async def main() -> None:
        async with service().client() as sandbox:
            honest = await sandbox.open(limits=LIMITS)
            await honest.run("x = 1")
            hostile = await sandbox.open(limits=LIMITS)
            result = await hostile.run(FORGED.format(texts=FORGERIES[name]) + "\n'done'")
            assert (result.status, hostile.epoch) == (Status.SESSION_KILLED, 2)
            assert (await hostile.run("2 + 2")).value == "4"
            assert (await honest.run("x")).value == "1"
            await honest.close()
            await hostile.close()

    asyncio.run(main())


def test_h49_no_descriptor_of_a_cell_is_a_file_that_it_could_write() -> None:
    code = """
import gc, os
for fd in range(3, 20):
    for body in (b"x" * 100, b'{"value": 1}', b'{"value": "forged", "error": null, "interrupted": false}'):
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, body, 0)
        except OSError:
            pass
"""

    async def body(session: Session) -> None:
        result = await session.run(code + "\n'true'")
        assert (result.status, result.value) == (Status.OK, "'true'")
        assert (await session.run("2 + 2")).value == "4"

    in_session(body)


@pytest.mark.finding("answers that hold up the lane")
def test_h50_a_value_of_100_mb_is_cut() -> None:
    async def body(session: Session) -> None:
        result = await session.run("'x' * 100_000_000")
        assert result.status in (Status.OK, Status.ERROR, Status.SESSION_KILLED)
        assert len(result.value or "") <= LIMITS.output_bytes

    in_session(body, Limits(wall_seconds=5.0, memory_bytes=1024 * MIB))


@pytest.mark.finding("output beyond its bound")
def test_h21_a_flood_in_a_cell_ends_it_with_the_interpreter() -> None:
    async def body(session: Session) -> None:
        result = await session.run("while True: print('x' * 1000)")
        assert result.status in (Status.OUTPUT_LIMIT, Status.SESSION_KILLED)
        assert (result.stdout_truncated, session.epoch) == (True, 2)

    in_session(body)


def test_h12_memory_of_a_session_is_bounded_by_the_watchdog() -> None:
    code = (
        "import mmap\nheld = []\nwhile True:\n    held.append(mmap.mmap(-1, 16 << 20)); held[-1].write(bytes(16 << 20))"
    )

    async def body(session: Session) -> None:
        result = await session.run(code, wall_seconds=10.0)
        assert result.status in (Status.MEMORY_LIMIT, Status.SESSION_KILLED)
        assert session.epoch == 2

    in_session(body, Limits(wall_seconds=10.0, memory_bytes=128 * MIB))


def test_h59_a_fork_has_its_own_variables_from_then_on() -> None:
    async def body(session: Session) -> None:
        await session.run("x = [1]")
        async with await session.fork() as branch:
            await branch.run("x.append(2)")
            assert ((await session.run("x")).value, (await branch.run("x")).value) == ("[1]", "[1, 2]")
            assert (await branch.run("import os; os._exit(1)")).status == Status.SESSION_KILLED
            assert (await session.run("x")).value == "[1]"

    in_session(body)


def test_h59_a_branch_outlives_the_session_that_it_came_from() -> None:
    async def body(session: Session) -> None:
        await session.run("x = 5")
        async with await session.fork() as branch:
            await session.close()
            assert (await branch.run("x")).value == "5"

    in_session(body)


def test_h59_a_session_with_threads_refuses_to_fork() -> None:
    async def body(session: Session) -> None:
        await session.run("import threading, time; threading.Thread(target=time.sleep, args=(3,), daemon=True).start()")
        with pytest.raises(SandboxRequestError, match="threads"):
            await session.fork()
        assert (await session.run("1 + 1")).value == "2"

    in_session(body)


def test_h59_two_cells_at_once_are_refused() -> None:
    async def body(session: Session) -> None:
        slow = asyncio.create_task(session.run("import time; time.sleep(0.5)"))
        await asyncio.sleep(0.1)
        with pytest.raises(SandboxRequestError, match="another cell"):
            await session.run("1")
        assert (await slow).status == Status.OK

    in_session(body)


def test_h59_closing_a_session_ends_all_its_processes() -> None:
    marker, code = marked("import os, time\nif os.fork() == 0: time.sleep(100)")

    async def body(session: Session) -> None:
        await session.run(code)

    in_session(body)
    assert_no_survivors(marker)


def test_h59_a_client_that_waits_no_more_ends_its_cell() -> None:
    async def body(session: Session) -> None:
        slow = asyncio.create_task(session.run("import time\nwhile True: time.sleep(0.01)", wall_seconds=30.0))
        await asyncio.sleep(0.2)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        with pytest.raises(SessionLostError, match="cancelled"):
            await session.run("1")

    in_session(body)


def test_h59_idle_sessions_are_closed_and_their_users_told() -> None:
    running = start_service(Kind.ZYGOTE, "--session-idle-seconds", "1", lanes=1)

    async def main() -> None:
        async with running.client() as sandbox:
            session = await sandbox.open(limits=SMALL)
            await session.run("x = 1")
            await asyncio.sleep(7.0)  # the service looks for idle sessions every 5 seconds
            with pytest.raises(SessionLostError):
                await session.run("x")

    try:
        asyncio.run(main())
    finally:
        running.stop()


def test_h59_200_sessions_at_once_keep_apart() -> None:
    async def one(sandbox: Sandbox, number: int) -> str | None:
        async with await sandbox.open(limits=SMALL) as session:
            await session.run(f"x = {number}")
            return (await session.run("x")).value

    async def main() -> None:
        async with service().client() as sandbox:
            values = await asyncio.gather(*(one(sandbox, number) for number in range(200)))
        assert values == [str(number) for number in range(200)]

    asyncio.run(main())
