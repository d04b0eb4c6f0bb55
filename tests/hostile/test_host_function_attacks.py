"""Cells that forge or flood calls of the host's functions, or call where they may not: no other session is harmed."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.hostile.test_session_lies import SESSIONS
from tests.sandbox.test_host_functions import LIMITS, SEARCH, SUBMIT, Host, in_notebook, last_line
from tests.support.sandbox_services import Kind, assert_no_survivors, marked, service
from verl_pivot.errors import SessionLostError
from verl_pivot.sandbox.execution import MIB, Limits, Result, Status
from verl_pivot.sandbox.host_functions import CallLimits, HostFunction, HostReply
from verl_pivot.sandbox.session import Session
from verl_pivot.types import JsonObject

pytestmark = pytest.mark.heavy

FIND = """
import os, struct, sys, threading, time
frame = sys._getframe()
while "calls" not in frame.f_locals:
    frame = frame.f_back
fd = frame.f_locals["calls"]._fd
def pack(*fields):
    return b"".join(struct.pack(">q", -1 if field is None else len(field)) for field in fields) + b"".join(
        field or b"" for field in fields)
def say(data):
    while data:
        data = data[os.write(fd, data):]
def read(num_bytes):
    data = b""
    while len(data) < num_bytes:
        data += os.read(fd, num_bytes - len(data))
    return data
def reply():
    value, error = struct.unpack(">qq", read(16))
    return (read(value) if value >= 0 else None, read(error) if error >= 0 else None)
search_call = pack(b"search", b'{"query": "forged"}')
"""
"""Beginning of a cell that can forge calls, byte for byte, and read their replies."""
REFUSED = {
    "a function that the session does not have": "say(pack(b'other', b'{}'))",
    "no name": "say(pack(None, b'{}'))",
    "a name of a megabyte": "say(pack(b'x' * 1_048_576, b'{}'))",
    "one byte more than a megabyte": "say(struct.pack('>qq', 6, 1_048_577))",
    "a length of 2**62": "say(struct.pack('>qq', 6, 1 << 62))",
    "a negative length": "say(struct.pack('>qq', 6, -2))",
    "bytes at random": "say(b'\\xff' * 100)",
    "arguments that are no UTF-8": "say(pack(b'search', b'\\xff\\xfe'))",
    "two calls at once": "say(search_call + search_call)",
    "a call before the reply": "say(search_call); time.sleep(0.2); say(search_call)",
    "a byte before the reply": "say(search_call); time.sleep(0.2); say(b'\\0')",
    "the call of a child": "os.fork() or (say(search_call), time.sleep(9))\nos.wait()",
    "a call of which a child writes the half": "say(search_call[:9])\nos.fork() or (say(search_call[9:]), os._exit(0))",
    "the call of a grandchild": (
        "os.fork() or (os.fork() or (say(search_call), time.sleep(9)), time.sleep(9))\nos.wait()"
    ),
}
"""{forged call: code of the cell}: each costs the cell its interpreter, and the result says why."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", SESSIONS)
def test_a_forged_call_costs_its_own_interpreter_and_no_other(name: str, kind: Kind) -> None:
    async def main() -> None:
        host, other = Host(seconds=0.5), Host()
        async with (
            service(kind).client() as sandbox,
            await sandbox.open(limits=LIMITS, functions=[SEARCH]) as hostile,
            await sandbox.open(limits=LIMITS, functions=[HostFunction(name="other")]) as honest,
        ):
            await honest.run("x = other()", answer_call=other)
            result = await hostile.run(FIND + REFUSED[name] + "\ntime.sleep(9)", answer_call=host)
            assert (result.status, result.value) == (Status.SESSION_KILLED, None)
            assert (result.error or "").startswith("a call of a function of the host was refused: "), result.error
            assert ("another process" in (result.error or "")) == ("child" in name)
            assert all(call == ("search", {"query": "forged"}) for call in host.calls)
            again = await hostile.run("search('a')[1]", answer_call=Host())
            assert (again.value, hostile.epoch) == ("{'query': 'a'}", 2)
            assert (await honest.run("x, other()", answer_call=other)).value == "(['other', {}], ['other', {}])"
            assert (honest.epoch, other.calls) == (1, [("other", {}), ("other", {})])

    asyncio.run(main())


NO_JSON = {
    "no JSON": "b'query'",
    "nothing": "b''",
    "no object": "b'[1]'",
    "NaN": "b'{\"query\": NaN}'",
    "a number of 10,000 digits": "b'{\"query\": ' + b'9' * 10_000 + b'}'",
    "brackets 100,000 deep": "b'{\"query\": ' + b'[' * 100_000 + b']' * 100_000 + b'}'",
    "objects 65 deep": "b'{\"a\":' * 65 + b'1' + b'}' * 65",
}


@pytest.mark.parametrize("name", NO_JSON)
def test_forged_arguments_that_are_none_come_back_as_the_cells_own_mistake(name: str) -> None:
    host = Host()

    async def body(session: Session) -> None:
        result = await session.run(FIND + f"say(pack(b'search', {NO_JSON[name]}))\nreply()", answer_call=host)
        assert (result.status, session.epoch) == (Status.OK, 1)
        assert (result.value or "").startswith('(None, b"the arguments of search() are not valid: they') or (
            (result.value or "").startswith("(None, b'the arguments of search() are not valid: they")
        )
        assert (await session.run("search('a')[0]", answer_call=host)).value == "'search'"

    in_notebook(body)
    assert host.calls == [("search", {"query": "a"})]


def test_a_forged_call_of_the_sessions_own_function_is_a_call_like_any_other() -> None:
    host = Host()

    async def body(session: Session) -> None:
        code = FIND + "say(search_call)\nforged = reply()\nforged, search('after')[1]"
        result = await session.run(code, answer_call=host)
        assert result.value == "((b'[\"search\", {\"query\": \"forged\"}]', None), {'query': 'after'})"

    in_notebook(body)
    assert host.calls == [("search", {"query": "forged"}), ("search", {"query": "after"})]


def test_half_a_call_is_forgotten_with_its_cell() -> None:
    host = Host()

    async def body(session: Session) -> None:
        result = await session.run(FIND + "say(search_call[:20])\n7", answer_call=host)
        assert (result.status, result.value) == (Status.OK, "7")
        assert (await session.run("search('a')[1]", answer_call=host)).value == "{'query': 'a'}"
        stuck = await session.run(FIND + "say(search_call[:20])\nreply()", wall_seconds=0.3, answer_call=host)
        assert stuck.status == Status.TIMEOUT
        assert (await session.run("search('b')[1]", answer_call=host)).value == "{'query': 'b'}"

    in_notebook(body)
    assert host.calls == [("search", {"query": "a"}), ("search", {"query": "b"})]


def test_a_cell_that_leaves_before_its_reply_has_the_next_cell_for_itself() -> None:
    async def body(session: Session) -> None:
        left = await session.run(FIND + "say(search_call)\n7", answer_call=Host(seconds=0.3))
        assert (left.status, left.value) == (Status.OK, "7")
        assert (await session.run("search('a')[1]", answer_call=Host())).value == "{'query': 'a'}"
        assert session.epoch == 1

    in_notebook(body)


def test_the_socket_of_a_cells_calls_reaches_no_later_cell() -> None:
    host = Host()

    async def body(session: Session) -> None:
        await session.run(FIND + "kept = os.dup(fd)", answer_call=host)
        code = "try:\n    os.write(kept, search_call)\nexcept OSError as error:\n    print(error.strerror)"
        result = await session.run(code, answer_call=host)
        assert result.stdout == "Broken pipe\n"

    in_notebook(body)
    assert host.calls == []


def test_replies_of_a_megabyte_that_nobody_reads_hold_up_nothing() -> None:
    async def body(session: Session) -> None:
        big = Host(lambda *_: HostReply(value="x" * 1_000_000))
        result = await session.run(FIND + "say(search_call)\ntime.sleep(1)\n7", answer_call=big)
        assert (result.status, result.value) == (Status.OK, "7")
        code = FIND + "say(search_call)\ntime.sleep(0.5)\nlen(reply()[0])"
        assert (await session.run(code, answer_call=big)).value == "1000002"

    in_notebook(body)


ELSEWHERE = {
    "a forked child": ("import os\nchild = os.fork()\nif child == 0:\n    {call}\nos.wait()", "in a process that the"),
    "a second thread": (
        "import threading\nt = threading.Thread(target=lambda: [{call}])\nt.start()\nt.join()",
        "in a second thread",
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n"
        "    list(pool.map(lambda _: [{call}], range(3)))",
        "in a second thread",
    ),
    "a pool of processes": (
        "import multiprocessing\ndef work(_):\n    {call}\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n    pool.map(work, range(2))",
        "in a process that the",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_call_from_elsewhere_is_an_exception_there_and_the_cell_goes_on(name: str) -> None:
    code, words = ELSEWHERE[name]
    host = Host()

    async def body(session: Session) -> None:
        result = await session.run(code.format(call="search('elsewhere')"), answer_call=host, wall_seconds=20.0)
        assert words in result.stderr, result
        assert session.epoch == 1
        assert (await session.run("search('a')[1]", answer_call=host)).value == "{'query': 'a'}"

    in_notebook(body)
    assert host.calls == [("search", {"query": "a"})]


def test_a_cell_that_searches_10_000_times_is_answered_as_often_as_it_may() -> None:
    host = Host()
    code = """
num_found = num_refused = 0
for number in range(10_000):
    try:
        search(str(number))
        num_found += 1
    except RuntimeError as error:
        num_refused += 1
        reason = str(error)
num_found, num_refused, reason
"""

    async def body(session: Session) -> None:
        limits = CallLimits(max_calls=50)
        result = await session.run(code, wall_seconds=30.0, answer_call=host, call_limits=limits)
        assert result.value == "(50, 9950, 'this cell has called functions 50 times, the limit for one cell')"
        once = await session.run("search('x')\n" * 51, answer_call=host, call_limits=limits)
        assert last_line(once) == "RuntimeError: this cell has called functions 50 times, the limit for one cell"
        assert (await session.run("search('a')[0]", answer_call=host, call_limits=limits)).value == "'search'"

    in_notebook(body)
    assert len(host.calls) == 50 + 50 + 1


OVERWRITES = {
    "by an assignment": "search = submit = 5",
    "by a definition": "def search(query):\n    return 'mine'\nsubmit = search",
    "by deleting it": "del search, submit",
    "by its code": "search.__code__ = (lambda *a, **k: 'mine').__code__",
    "by a module": "import sys\nsys.modules['__main__'] = sys",
    "by clearing all names": "globals().clear()",
    "json, os and inspect": "import json, os, inspect\njson.dumps = json.loads = os.write = os.read = os.getpid = None",
}


@pytest.mark.parametrize("name", OVERWRITES)
def test_a_cell_that_overwrites_functions_breaks_its_own_and_nothing_else(name: str) -> None:
    host = Host()

    async def body(session: Session) -> None:
        await session.run(OVERWRITES[name], answer_call=host)
        result = await session.run("search('a')", answer_call=host)
        assert result.status in (Status.OK, Status.ERROR, Status.SESSION_KILLED)
        async with service().client() as sandbox, await sandbox.open(limits=LIMITS, functions=[SEARCH]) as other:
            assert (await other.run("search('b')[1]", answer_call=Host())).value == "{'query': 'b'}"

    in_notebook(body)
    assert set(map(str, host.calls)) <= {"('search', {'query': 'a'})"}


def test_a_call_that_a_signal_interrupts_leaves_no_reply_to_the_next() -> None:
    host = Host(seconds=0.4)
    code = """
import signal
def stop(*_):
    raise TimeoutError("enough")
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    search('slow')
except TimeoutError as error:
    print(error)
try:
    search('next')
except RuntimeError as error:
    print(error)
"""

    async def body(session: Session) -> None:
        result = await session.run(code, answer_call=host)
        assert result.stdout.splitlines() == [
            "enough",
            "search() cannot be called: an earlier call of this cell has not ended, or was interrupted; go on in the "
            "next cell",
        ]
        assert (await session.run("search('a')[1]", answer_call=host)).value == "{'query': 'a'}"

    in_notebook(body)
    assert host.calls == [("search", {"query": "slow"}), ("search", {"query": "a"})]


def test_a_call_inside_of_a_call_is_refused() -> None:
    code = """
import signal
def again(*_):
    try:
        search('inner')
    except RuntimeError as error:
        print(error)
signal.signal(signal.SIGALRM, again)
signal.setitimer(signal.ITIMER_REAL, 0.1)
search('outer')[1]
"""

    async def body(session: Session) -> None:
        result = await session.run(code, answer_call=Host(seconds=0.4))
        assert result.stdout.startswith("search() cannot be called: an earlier call of this cell has not ended")
        assert result.value == "{'query': 'outer'}"

    in_notebook(body)


MANY = CallLimits(max_calls=10**6)
KILLED: dict[str, tuple[str, Status]] = {
    "prints 100 MB after a call": (
        "search('a')\nfor _ in range(1000):\n    print('x' * 100_000)",
        Status.SESSION_KILLED,
    ),
    "never ends after a call": ("search('a')\nwhile True:\n    pass", Status.TIMEOUT),
    "never ends and will not be interrupted": (
        "search('a')\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass",
        Status.SESSION_KILLED,
    ),
    "ends its interpreter after a call": ("search('a')\nimport os\nos._exit(3)", Status.SESSION_KILLED),
    "takes all memory in a thread during a call": (
        "import threading, mmap\nheld = []\ndef take():\n    while True:\n"
        "        held.append(mmap.mmap(-1, 1 << 24)); held[-1].write(bytes(1 << 24))\n"
        "threading.Thread(target=take).start()\nsearch('a')\nsearch('b')\nimport time\ntime.sleep(20)",
        Status.SESSION_KILLED,
    ),
    "floods in a thread during a call": (
        "import threading\nthreading.Thread(target=lambda: [print('x' * 100_000) for _ in range(1000)]).start()\n"
        "search('a')\nimport time\ntime.sleep(20)",
        Status.SESSION_KILLED,
    ),
    "uses its processor time in a thread during a call": (
        "import threading\ndef spin():\n    while True:\n        pass\n"
        "threading.Thread(target=spin, daemon=True).start()\nwhile True:\n    search('a')",
        Status.CPU_LIMIT,
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_limits_hold_in_cells_that_call(name: str) -> None:
    code, status = KILLED[name]

    async def main() -> None:
        limits = Limits(wall_seconds=2.0, cpu_seconds=3, memory_bytes=256 * MIB)
        async with (
            service().client() as sandbox,
            await sandbox.open(limits=limits, functions=[SEARCH]) as session,
        ):
            wall = 30.0 if "thread" in name else 2.0
            result = await session.run(code, wall_seconds=wall, answer_call=Host(seconds=0.1), call_limits=MANY)
            assert result.status in (status, Status.SESSION_KILLED), result
            again = await session.run("search('a')[1]", answer_call=Host())
            assert again.value == "{'query': 'a'}"

    asyncio.run(main())


def test_a_session_that_is_closed_during_a_call_leaves_nothing() -> None:
    marker, code = marked("search('a')")
    began = asyncio.Event

    async def main() -> None:
        is_asked = began()

        async def waits(name: str, arguments: JsonObject) -> HostReply:
            is_asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with service().client() as sandbox:
            session = await sandbox.open(limits=LIMITS, functions=[SEARCH])
            running = asyncio.create_task(session.run(code, answer_call=waits))
            await is_asked.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await session.close()

    asyncio.run(main())
    assert_no_survivors(marker)


def test_after_a_call_that_failed_the_variables_are_gone_and_that_is_told() -> None:
    async def fails(name: str, arguments: JsonObject) -> HostReply:
        raise OSError("the index is broken")

    async def body(session: Session) -> None:
        await session.run("x = 1")
        with pytest.raises(OSError, match="the index is broken"):
            await session.run("search('a')", answer_call=fails)
        with pytest.raises(SessionLostError):
            await session.run("x")

    in_notebook(body)


async def many(num_notebooks: int, body: Callable[[int, Session], Awaitable[None]]) -> None:
    async with service().client() as sandbox:

        async def one(number: int) -> None:
            async with await sandbox.open(limits=LIMITS, functions=[SEARCH, SUBMIT]) as session:
                await body(number, session)

        await asyncio.gather(*map(one, range(num_notebooks)))


def test_notebooks_side_by_side_get_their_own_answers() -> None:
    async def body(number: int, session: Session) -> None:
        async def answer(name: str, arguments: JsonObject) -> HostReply:
            await asyncio.sleep(0.01 * (number % 3))
            return HostReply(value=[number, name, arguments["query"]])

        results: list[Result] = []
        for cell in range(5):
            code = f"a = search('{cell} a')\nb = search(query='{cell} b')\nimport json\njson.dumps([a, b])"
            results.append(await session.run(code, wall_seconds=30.0, answer_call=answer))
        for cell, result in enumerate(results):
            expected = [[number, "search", f"{cell} a"], [number, "search", f"{cell} b"]]
            assert json.loads((result.value or "null").strip("'")) == expected

    began = time.monotonic()
    asyncio.run(many(32, body))
    assert time.monotonic() - began < 60.0
