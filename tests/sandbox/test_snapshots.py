"""Snapshots: what outlives a session's service, what is lost and reported as lost, and forged snapshots."""

import asyncio
import contextlib
import json
import marshal
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, service, start_service
from verl_pivot.errors import SnapshotError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Result
from verl_pivot.sandbox.in_session.saving import MAGIC, PYTHON
from verl_pivot.sandbox.session import Session
from verl_pivot.sandbox.snapshot import MAX_SNAPSHOT_BYTES, Snapshot, decode_snapshot

pytestmark = needs_sandbox
LIMITS = Limits(wall_seconds=10.0, memory_bytes=512 * MIB, tmp_bytes=32 * MIB)
EMPTY = {"cells": {}, "imports": {}, "defined": {}, "values": {}, "order": [], "files": [], "folder": "."}


async def run_all(session: Session, cells: Sequence[str]) -> Result:
    for cell in cells:
        result = await session.run(cell)
        assert result.status == "ok", result.error
    return result


async def after_restart(sandbox: Sandbox, cells: Sequence[str], *then: str) -> tuple[Snapshot, Result]:
    """(snapshot after `cells`, result of the last cell of `then` in a session opened from the snapshot)."""
    async with await sandbox.open(limits=LIMITS) as session:
        await run_all(session, cells)
        snapshot = await session.snapshot()
    async with await sandbox.open(limits=LIMITS, snapshot=snapshot.content) as restored:
        return snapshot, await run_all(restored, then)


def restarted(cells: Sequence[str], *then: str) -> tuple[Snapshot, Result]:
    async def main() -> tuple[Snapshot, Result]:
        async with service().client() as sandbox:
            return await after_restart(sandbox, cells, *then)

    return asyncio.run(main())


def forged(**changes: object) -> bytes:
    return MAGIC + b"{}\n" + marshal.dumps((PYTHON, EMPTY | changes))


def error_of(content: bytes, limits: Limits = LIMITS) -> str:
    """Message of the error for a snapshot that cannot be restored; the service must still run programs afterwards."""

    async def main() -> str:
        async with service().client() as sandbox:
            with pytest.raises(SnapshotError) as caught:
                await sandbox.open(limits=limits, snapshot=content)
            assert (await sandbox.run("print(1)")).stdout == "1\n"
            return str(caught.value)

    return asyncio.run(main())


@pytest.mark.heavy
def test_a_session_goes_on_in_another_service() -> None:
    async def main() -> tuple[str | None, str | None]:
        first, second = start_service(Kind.ZYGOTE, lanes=1), service()
        async with first.client() as sandbox, await sandbox.open() as session:
            await run_all(session, ["import math\ndef area(r): return math.pi * r * r", "radius = 2.0"])
            snapshot = await session.snapshot()
        first.stop()
        async with second.client() as sandbox, await sandbox.open(snapshot=snapshot.content) as restored:
            return (await restored.run("area(radius)")).value, (await restored.run("radius = 1.0; area(radius)")).value

    assert asyncio.run(main()) == ("12.566370614359172", "3.141592653589793")


DEFINITIONS = """
from collections import namedtuple
from functools import lru_cache
N = 5
class A:
    total = 0
    def __init__(self, x): self.x = x; A.total += 1
    def get(self): return self.x + N
class B(A):
    def get(self): return super().get() * 2
P = namedtuple("P", "x y")
def f(n=N): return n + N
square = lambda x: x * x
def counter():
    c = 0
    def up():
        nonlocal c
        c += 1
        return c
    return up, lambda: c
@lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
"""


def test_definitions_keep_their_meaning_and_share_the_variables_of_the_session() -> None:
    cells = [DEFINITIONS, "a, b = A(1), B(3)\nup, count = counter(); up()\np = P(1, [a])"]
    check = "(a.get(), b.get(), A.total, p.y[0] is a, type(p) is P, f(), square(4), up(), count(), fib(20))"
    later = "N = 100; (a.get(), f(), [*globals()][-1])"

    assert restarted(cells, check)[1].value == "(6, 16, 2, True, True, 10, 16, 2, 2, 6765)"
    assert restarted(cells, later)[1].value == "(101, 105, 'p')"


def test_variables_that_share_an_object_share_it_afterwards() -> None:
    cells = ["inner = [1]; a = {'k': inner}; b = (inner, a); loop = []; loop.append(loop)"]

    result = restarted(cells, "inner.append(2); (a['k'], b[0] is inner, b[1] is a, loop[0] is loop)")[1]

    assert result.value == "([1, 2], True, True, True)"


def test_files_links_folders_and_the_current_folder_come_back() -> None:
    cells = [
        "import os; os.makedirs('sub/deep'); os.chdir('sub'); open('a.sh', 'wb').write(bytes(range(256)))",
        "os.chmod('a.sh', 0o700); os.symlink('sub/a.sh', '../link'); os.mkfifo('pipe')",
    ]
    show = "(os.getcwd(), len(open('a.sh', 'rb').read()), os.stat('a.sh').st_mode & 0o777, os.readlink('/tmp/link'))"

    snapshot, result = restarted(cells, show)

    assert result.value == "('/tmp/sub', 256, 448, 'sub/a.sh')"
    assert snapshot.lost == ("file sub/pipe: neither a file nor a folder nor a link",)
    assert restarted(cells, "sorted(os.listdir('/tmp')), sorted(os.listdir())")[1].value == (
        "(['link', 'sub'], ['a.sh', 'deep'])"
    )


def test_what_is_lost_is_named_to_the_caller_and_in_the_next_cell_to_the_policy() -> None:
    cells = [
        "import threading, time, types\ng = (i for i in ()); log = open('log', 'w'); own = types.ModuleType('own')",
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "def make():\n class Local: pass\n return Local()\nlocal = make(); exec('class Hidden: pass')",
        "class A: pass\nold = A()",
        "class A:\n def one(self): return 1\nA.two = lambda self: 2",
    ]
    names = ["g", "log", "own", "threads", "local", "Hidden", "old", "A.two"]

    snapshot, result = restarted(cells, "A().one()")

    assert sorted(line.partition(":")[0] for line in snapshot.lost) == sorted(names)
    assert result.value == "1"
    assert result.stderr.splitlines() == ["These were lost when the session was restored:", *snapshot.lost]


def test_the_large_is_left_out_and_named_before_the_small() -> None:
    cells = [
        f"large = bytes({MAX_SNAPSHOT_BYTES}); small = 1",
        f"open('large', 'wb').truncate({MAX_SNAPSHOT_BYTES}); open('small', 'w').write('s')",
    ]

    snapshot, result = restarted(cells, "import os; (small, os.listdir('/tmp'), 'large' in globals())")

    assert result.value == "(1, ['small'], False)"
    assert [line.partition(":")[0] for line in snapshot.lost] == ["large", "file large"]
    assert len(snapshot.content) <= MAX_SNAPSHOT_BYTES


def test_a_snapshot_of_a_restored_session_is_as_good() -> None:
    async def main() -> str | None:
        async with service().client() as sandbox:
            first, _ = await after_restart(sandbox, ["class A:\n x = 1", "def f(): return A.x", "a = A()"], "")
            async with await sandbox.open(snapshot=first.content) as session:
                await run_all(session, ["def g(): return f() + 1", "A.x = 5"])
                second = await session.snapshot()
            async with await sandbox.open(snapshot=second.content) as session:
                return (await session.run("(f(), g(), a.x, type(a) is A)")).value

    assert asyncio.run(main()) == "(5, 6, 5, True)"


@pytest.mark.heavy
def test_objects_that_fight_their_snapshot_leave_the_session_as_it_was() -> None:
    evil = "class E:\n def __reduce__(self):\n  {}\nx = 7; e = E()"
    bodies = {
        "import os; os._exit(0)": "No such file or directory",
        "import os, signal; os.kill(os.getpid(), 9)": "wait status 9",
        "raise SystemExit": "wait status 256",
        "while True: pass": "KeyboardInterrupt",
        "import os, time\n  while True: time.sleep(0.3); os.kill(os.getppid(), 2)": "KeyboardInterrupt",
    }

    async def main() -> None:
        async with service().client() as sandbox:
            for body, reason in bodies.items():
                async with await sandbox.open(limits=LIMITS) as session:
                    await run_all(session, [evil.format(body)])
                    with pytest.raises(SnapshotError, match=reason):
                        await session.snapshot(wall_seconds=1.0)
                    assert ((await session.run("x")).value, session.epoch) == ("7", 1)

    asyncio.run(main())


@pytest.mark.heavy
def test_an_object_that_interrupts_its_snapshot_at_any_moment_leaves_the_session_as_it_was() -> None:
    evil = "class E:\n def __reduce__(self): import os; os.kill(os.getppid(), 2); return (int, ())\nx = 7; e = E()"

    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=LIMITS) as session:
            await run_all(session, [evil])
            for _ in range(20):
                with contextlib.suppress(SnapshotError):
                    await session.snapshot()
                assert ((await session.run("x")).value, session.epoch) == ("7", 1)

    asyncio.run(main())


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: os.waitpid(-1, 0)"])
def test_a_session_that_reaps_its_children_itself_can_be_kept_and_goes_on_reaping(handler: str) -> None:
    cells = [f"import os, signal\nown = {handler}\nsignal.signal(signal.SIGCHLD, own)", "x = 7"]

    async def main() -> tuple[str | None, str | None]:
        async with service().client() as sandbox, await sandbox.open(limits=LIMITS) as session:
            await run_all(session, cells)
            snapshot = await session.snapshot()
            after = await session.run("signal.getsignal(signal.SIGCHLD) == own")
            async with await sandbox.open(snapshot=snapshot.content) as other:
                return (await other.run("x")).value, after.value

    assert asyncio.run(main()) == ("7", "True")


def test_an_object_that_raises_is_lost_and_no_other() -> None:
    cells = ["class E:\n def __getstate__(self): raise RuntimeError('no')\ne, x = E(), 7"]

    snapshot, result = restarted(cells, "x")

    assert (result.value, snapshot.lost) == ("7", ("e: E: no",))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_snapshot_are_refused_before_anything_is_sent(content: bytes) -> None:
    for text in (content, MAGIC + content):
        try:
            decode_snapshot(text)
        except SnapshotError:
            continue
        assert isinstance(json.loads(text[len(MAGIC) :].partition(b"\n")[0]), dict)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "are not a snapshot"),
        (pickle.dumps({"x": 1}), "are not a snapshot"),
        (MAGIC + b"{}", "damaged"),
        (MAGIC + b'["x"]\n', "damaged"),
        (MAGIC + b"[" * 100_000 + b"\n", "damaged"),
        (MAGIC + b"{}\n" + bytes(MAX_SNAPSHOT_BYTES), "larger than"),
        (MAGIC + b"{}\n" + marshal.dumps(("cpython-27", EMPTY)), "was made by cpython-27, but this session runs"),
        (MAGIC + b"{}\n" + marshal.dumps((PYTHON, {})), "KeyError"),
        (MAGIC + b"{}\n" + bytes(range(256)), "error"),
    ],
)
def test_a_damaged_snapshot_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    assert reason in error_of(content)


def test_what_a_forged_snapshot_does_happens_in_the_session_under_its_limits() -> None:
    exits = b"cos\n_exit\n(I3\ntR."
    hangs = b"ctime\nsleep\n(I60\ntR."
    eats = b"cbuiltins\nbytearray\n(I9000000000\ntR."
    quick = Limits(wall_seconds=1.0)

    assert "ended with exit code 3" in error_of(forged(values={"x": exits}))
    assert "timeout" in error_of(forged(values={"x": hangs}), quick)
    assert "error" in error_of(forged(values={"x": exits, "y": eats}, folder=3))


def test_a_forged_snapshot_writes_nothing_that_a_cell_could_not() -> None:
    paths = ["/etc/passwd", "../etc/passwd", "../venv/x", "sub/../../usr/x"]
    content = forged(files=[(path, 0o644, b"mine") for path in paths], values={"x": b"cbuiltins\nopen\n."})

    async def main() -> tuple[tuple[str, ...], str | None]:
        async with service().client() as sandbox, await sandbox.open(snapshot=content) as session:
            return session.lost, (await session.run("open('/etc/passwd').read()[:5]")).value

    lost, shown = asyncio.run(main())
    assert [line.partition(":")[0] for line in lost] == [f"file {path}" for path in paths]
    assert shown == "'root:'"


def test_a_session_that_forges_the_list_of_what_is_lost_is_read_as_data() -> None:
    spoil = "import os, json\njson.dumps = lambda value: {}\nx = 7"

    async def main() -> list[str]:
        found = []
        async with service().client() as sandbox:
            for text in ("'[1]'", "'{'", """'{"a": 1}'""", """'{"a": "' + 'b' * 9_000_000 + '"}'"""):
                async with await sandbox.open(limits=LIMITS) as session:
                    await run_all(session, [spoil.format(text)])
                    with pytest.raises(SnapshotError) as caught:
                        await session.snapshot()
                    found.append(str(caught.value))
        return found

    assert [("damaged" in text or "larger" in text) for text in asyncio.run(main())] == [True] * 4
