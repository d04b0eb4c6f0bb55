"""Cells that forge answers or fork: only the process that was asked can answer."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile.test_sandbox_sessions import LIMITS, in_session
from tests.support.sandbox_services import KINDS, Kind, service
from verl_pivot.sandbox.execution import Status
from verl_pivot.sandbox.lane.answers import AnswerError, decode_answer
from verl_pivot.sandbox.session import Session

SESSIONS = [*(kind for kind in KINDS if kind is not Kind.BWRAP_EXEC), Kind.WITHOUT_PROC]
FIND = """
import os, struct, sys
frame = sys._getframe()
while "answer" not in frame.f_locals:
    frame = frame.f_back
fd = frame.f_locals["answer"]
def pack(*fields):
    return b"".join(struct.pack(">q", -1 if field is None else len(field)) for field in fields) + b"".join(
        field or b"" for field in fields)
def say(data):
    while data:
        data = data[os.write(fd, data):]
"""
"""Beginning of a cell that can write its own answer, before the interpreter does."""
REFUSED = {
    "a value of 60 MiB": "say(struct.pack('>qq', 62_914_560, -1)); say(b'x' * 62_914_560)",
    "one byte more than the limit": "say(struct.pack('>qq', 65_537, -1))",
    "a negative length": "say(struct.pack('>qq', -2, -1))",
    "a length that is no number of bytes": "say(b'\\xff' * 7 + b'\\x00' + b'\\xff' * 8)",
    "nested lists in JSON": "say(b'{\"value\": [' + b'[]' * 100_000 + b']}')",
    "the answer of a child": "os.fork() or (say(pack(b'child', None)), os._exit(0))\nos.wait()",
    "the answer of a grandchild": (
        "os.fork() or (os.fork() or (say(pack(b'child', None)), os._exit(0)), os.wait(), os._exit(0))\nos.wait()"
    ),
    "half an answer of a child": "os.fork() or (say(b'\\0'), os._exit(0))\nos.wait()",
}
"""{forged answer: code of the cell}: each costs the cell its interpreter at once, and the result says why."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.finding("answers that hold up the lane")
def test_h49_a_forged_answer_costs_its_own_interpreter_in_its_own_cell_and_no_other(name: str, kind: Kind) -> None:
    async def main() -> None:
        async with service(kind).client() as sandbox:
            honest = await sandbox.open(limits=LIMITS)
            await honest.run("x = 1")
            async with await sandbox.open(limits=LIMITS) as hostile:
                await hostile.run("kept = 1")
                result = await hostile.run(FIND + REFUSED[name])
                assert (result.status, result.value) == (Status.SESSION_KILLED, None)
                assert (result.error or "").startswith("the interpreter's answer was refused: it ")
                assert ("another process" in (result.error or "")) == ("child" in name)
                assert (await hostile.run("'kept' in globals()")).value == "False"
            assert ((await honest.run("x")).value, honest.epoch) == ("1", 1)
            await honest.close()

    asyncio.run(main())


def test_h49_a_cell_that_answers_for_itself_is_believed_once_and_the_next_cell_is_its_own() -> None:
    async def body(session: Session) -> None:
        await session.run("kept = 1")
        forged = await session.run(FIND + "say(pack(b'forged \\xff', None)); late = 2; 'true'")
        assert (forged.status, forged.value) == (Status.OK, "forged \\xff")
        assert (await session.run("kept, late")).value == "(1, 2)"
        twice = await session.run(FIND + "say(pack(b'first', None) + pack(b'second', None) + b'x' * 100_000)")
        assert (twice.status, twice.value) == (Status.OK, "first")
        assert (await session.run(FIND + "say(pack(None, b'an error'))")).status == Status.ERROR
        assert ((await session.run("2 + 2")).value, session.epoch) == ("4", 1)

    in_session(body)


def test_h49_half_an_answer_is_a_cell_that_does_not_end() -> None:
    async def body(session: Session) -> None:
        result = await session.run(FIND + "say(struct.pack('>qq', 60_000, -1))", wall_seconds=0.3)
        assert (result.status, result.value) == (Status.SESSION_KILLED, None)
        assert (await session.run("2 + 2")).value == "4"

    in_session(body)


def test_h49_a_cell_that_keeps_the_socket_of_its_answer_reaches_no_later_cell() -> None:
    async def body(session: Session) -> None:
        await session.run(FIND + "kept_fd = os.dup(fd)")
        later = (
            "import os\ntry:\n    os.write(kept_fd, bytes(16))\nexcept OSError as error:\n    print(error.strerror)\n7"
        )
        result = await session.run(later)
        assert (result.stdout, result.value) == ("Broken pipe\n", "7")

    in_session(body)


def test_h49_nothing_can_be_said_on_the_channel_of_requests() -> None:
    code = (
        "import os\ntry:\n    print(os.write(3, b'{\"id\": 1}'))\nexcept OSError as error:\n    print(error.strerror)"
    )

    async def body(session: Session) -> None:
        assert (await session.run(code)).stdout == "Broken pipe\n"
        assert (await session.run("2 + 2")).value == "4"

    in_session(body)


FORKS = {
    "without a word": "os.fork()",
    "twice": "os.fork()\nos.fork()",
    "in the last expression": "os.fork() and None",
    "in a repr": "class A:\n    def __repr__(self):\n        os.fork()\n        return 'A'\nA()",
    "before an exception": "if os.fork() == 0:\n    raise KeyError('child')",
    "of a child that sleeps into the next cells": "if os.fork() == 0:\n    time.sleep(0.3)",
    "with a terminal": "import pty\npty.fork()",
    "in a thread": "import threading\nt = threading.Thread(target=os.fork)\nt.start()\nt.join()",
    "in a loop of children": "for _ in range(5):\n    if os.fork() == 0:\n        break",
    "of a child that forks at its end": "import atexit\natexit.register(os.fork)\nos.fork()",
}


@pytest.mark.parametrize("name", FORKS)
@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.finding("processes that a cell forks")
def test_h59_a_process_that_a_cell_forks_ends_with_the_cell_and_never_answers(name: str, kind: Kind) -> None:
    async def main() -> None:
        async with service(kind).client() as sandbox, await sandbox.open(limits=LIMITS) as session:
            await session.run("import os, time\npid = os.getpid()")
            assert (await session.run(FORKS[name])).status == Status.OK
            await session.run("y = 1")
            for number in range(2, 12):
                result = await session.run("time.sleep(0.05)\ny += 1\n(y, os.getpid() == pid)")
                assert (result.value, session.epoch) == (f"({number}, True)", 1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('no')", 1), ("1 / 0", 1), ("pass", 0)]
)
@pytest.mark.finding("processes that a cell forks")
def test_h59_a_forked_process_ends_as_it_would_in_a_program(ending: str, code: int) -> None:
    async def body(session: Session) -> None:
        result = await session.run(
            f"import os, sys\npid = os.fork()\nif pid == 0:\n    print('child')\n    {ending}\n"
            "pid and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        assert (result.stdout, result.value) == ("child\n", str(code))
        assert ("no" in result.stderr, "ZeroDivisionError" in result.stderr) == ("no" in ending, "/" in ending)

    in_session(body)


LOSSES: dict[str, tuple[str, str]] = {
    "os._exit(3)": ("os._exit(3)", "the interpreter ended with exit code 3"),
    "a segmentation fault": ("os.kill(os.getpid(), 11)", "the interpreter was ended by signal 11"),
    "closed channels": ("os.closerange(3, 100)", "the interpreter ended with exit code 1"),
    "an executed command": ("os.execv('/bin/false', ['false'])", "the interpreter ended with exit code 1"),
    "a flood": ("while True: print('x' * 1000)", "the cell wrote more output than is allowed"),
    "memory": (
        "import mmap\nheld = []\nwhile True:\n    held.append(mmap.mmap(-1, 1 << 24)); held[-1].write(bytes(1 << 24))",
        "the session used more memory than its limit",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_h59_a_cell_that_loses_the_variables_says_why(name: str) -> None:
    code, reason = LOSSES[name]

    async def body(session: Session) -> None:
        result = await session.run(f"import os\n{code}", wall_seconds=60.0)
        assert (result.status, result.error) == (Status.SESSION_KILLED, reason)

    in_session(body)


LATE = {
    "a thread that exits": ("threading.Timer(0.05, os._exit, (3,)).start()", "the interpreter ended with exit code 3"),
    "a signal from a child": (
        "os.fork() or (time.sleep(0.05), os.kill(os.getppid(), 9), os._exit(0))",
        "the interpreter was ended by signal 9",
    ),
    "a thread that floods": (
        "threading.Thread(target=lambda: [print('x' * 9999) for _ in range(999)], daemon=True).start()",
        "the cell wrote more output than is allowed",
    ),
    "a daemon that takes memory": (
        "os.fork() or [held.append(mmap.mmap(-1, 1 << 24)) or held[-1].write(bytes(1 << 24)) for _ in range(99)]",
        "the session used more memory than its limit",
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_h59_what_a_cell_leaves_to_end_the_interpreter_is_told_to_a_later_cell_and_masks_nothing(name: str) -> None:
    code, reason = LATE[name]

    async def body(session: Session) -> None:
        await session.run("import mmap, os, threading, time\nheld = []")
        results = [await session.run(code)]
        while results[-1].status != Status.SESSION_KILLED:
            results.append(await session.run("time.sleep(0.05)"))
            await asyncio.sleep(0.2)  # so that the interpreter mostly ends between cells
        assert (results[-1].error, session.epoch) == (reason, 2)
        assert {result.status for result in results[:-1]} <= {Status.OK}
        assert (await session.run("'held' in globals()")).value == "False"

    in_session(body)


@given(st.binary(max_size=64), st.integers(0, 3), st.integers(0, 20), st.integers(0, 40))
@example(b"\x00" * 7 + b"\x01a", 1, 1, 1)
@example(b"\xff" * 16, 2, 0, 0)
@pytest.mark.finding("answers that hold up the lane", where="no service")
def test_whatever_is_read_of_an_answer_is_bounded_fields_or_refused(
    received: bytes, num_fields: int, max_bytes: int, max_total_bytes: int
) -> None:
    try:
        fields = decode_answer(received, num_fields, max_bytes, max_total_bytes)
    except AnswerError:
        return

    if fields is not None:
        sizes = [len(field or b"") for field in fields]
        assert len(sizes) == num_fields
        assert max(sizes, default=0) <= max_bytes
        assert sum(sizes) <= min(max_total_bytes, len(received))
