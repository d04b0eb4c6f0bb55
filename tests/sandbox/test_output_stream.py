"""Output read while a program runs: same text and result as otherwise, bounded; the program ends with its reader."""

import asyncio
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import SMALL, Kind, assert_no_survivors, marked, on_every_kind, service
from verl_pivot.errors import SandboxRequestError, SessionLostError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Output, Program, Result, Status, Terminal
from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.output_feed import PAUSE_SECONDS, PIECE_BYTES, OutputFeed
from verl_pivot.sandbox.output_stream import ChunkDecoder, OutputChunk
from verl_pivot.sandbox.pool_settings import PoolProtocol, PoolSettings

STEPS = """
import sys, time
for step in range(4):
    print("out", step, "\\u00e9", flush=True)
    print("err", step, file=sys.stderr)
    time.sleep(0.1)
"""


def texts(chunks: list[OutputChunk]) -> dict[str, str]:
    joined: dict[str, str] = defaultdict(str)
    for chunk in chunks:
        joined[chunk.stream] += chunk.text
    return joined


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)), st.integers(0, 40))
def test_chunks_are_the_text_of_the_result_however_the_bytes_are_cut(kept: bytes, places: list[int], last: int) -> None:
    decoder, chunks, cuts = ChunkDecoder(), [], sorted({0, *(min(place, last) for place in places)})
    for begin, end in pairwise(cuts):
        chunks += decoder.feed(Output(stdout=kept[begin:end], stderr=kept[begin:end]))
    result = Result(status=Status.OK, stdout=kept.decode("utf-8", "backslashreplace"), stderr="")

    chunks += decoder.finish(result)

    assert texts(chunks)["stdout"] == result.stdout
    assert all(chunk.text for chunk in chunks)


def test_a_feed_sends_one_bounded_piece_until_the_next_is_asked_for() -> None:
    loop, sent = EventLoop(), []
    stdout, stderr = Capture(10**6), Capture(10)
    feed = OutputFeed(loop, lambda piece: sent.append((len(piece["stdout"]) * 3 // 4, piece["stderr"])))
    feed.follow((stdout, stderr))

    def print_and_wait(num_bytes: int) -> None:
        with open(stdout.write_end, "wb", buffering=0, closefd=False) as out:
            out.write(b"x" * num_bytes)
        stdout.drain()
        until = time.monotonic() + 2 * PAUSE_SECONDS
        while time.monotonic() < until:
            loop.run_once(PAUSE_SECONDS)

    assert not feed.has_begun
    for _ in range(3):
        print_and_wait(30_000)
    assert [size for size, _ in sent] == [30_000]
    feed.ask()
    assert len(sent) == 2
    assert PIECE_BYTES <= sent[1][0] < PIECE_BYTES + 3
    feed.ask()
    assert len(sent) == 2, "a pause comes between two pieces"
    print_and_wait(0)
    assert sum(size for size, _ in sent) // 100 == 900
    feed.end()
    print_and_wait(10)
    feed.ask()
    assert len(sent) == 3


@needs_sandbox
@on_every_kind
def test_the_chunks_of_a_stream_are_its_text_in_the_result(kind: Kind) -> None:
    async def main() -> None:
        async with service(kind).client() as sandbox:
            plain = await sandbox.run(STEPS, limits=SMALL)
            async with sandbox.stream(Program(code=STEPS, limits=SMALL)) as output:
                chunks = [chunk async for chunk in output]
            assert texts(chunks) == {"stdout": plain.stdout, "stderr": plain.stderr}
            assert (output.result.status, output.result.stdout) == (plain.status, plain.stdout)

            flood = "import os\nos.write(1, '\\u20ac'.encode() * 40_000)\nos.write(1, b'\\xff' * 10)"
            for code, limit in ((flood, 1000), (flood, 10**6), ("raise SystemExit(3)", 100)):
                program = Program(code=code, limits=Limits(wall_seconds=5.0, output_bytes=limit))
                async with sandbox.stream(program) as output:
                    chunks = [chunk async for chunk in output]
                assert texts(chunks).get("stdout", "") == output.result.stdout

    asyncio.run(main())


@needs_sandbox
def test_the_output_of_cells_comes_while_they_run() -> None:
    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(limits=SMALL) as session:
            for _ in range(2):
                async with session.stream(f"{STEPS}\nstep * 2") as output:
                    chunks = [chunk async for chunk in output]
                assert texts(chunks)["stdout"] == output.result.stdout
                assert output.result.value == "6"
            assert (await session.run("step")).value == "3"
            async with session.stream("1 / 0") as output:
                failed = await output.read_all()
            assert (failed.status, failed.error is not None) == (Status.ERROR, True)
            async with session.stream("while True: pass", wall_seconds=0.2) as output:
                assert (await output.read_all()).status in (Status.TIMEOUT, Status.SESSION_KILLED)
            with pytest.raises(SandboxRequestError, match="the cells of a session have no input"):
                await session.stream("1").write("x")
            async with session.stream(
                "import time; print('begun', flush=True); time.sleep(60)", wall_seconds=100.0
            ) as left:
                async for chunk in left:
                    assert chunk == OutputChunk(stream="stdout", text="begun\n")
                    break
            with pytest.raises(SessionLostError):
                await session.run("1")

    asyncio.run(main())


@needs_sandbox
@on_every_kind
@pytest.mark.heavy
def test_a_reader_that_is_slow_changes_no_result(kind: Kind) -> None:
    code = "import time\nfor _ in range(20):\n    print('x' * 9_999)\n    time.sleep(0.01)"
    limits = Limits(wall_seconds=5.0, output_bytes=10**6)

    async def main() -> None:
        async with service(kind).client() as sandbox:
            async with sandbox.stream(Program(code=code, limits=limits)) as output:
                chunks = []
                async for chunk in output:
                    chunks.append(chunk)
                    await asyncio.sleep(0.3)
            assert (output.result.status, output.result.stdout) == (Status.OK, ("x" * 9_999 + "\n") * 20)
            assert texts(chunks)["stdout"] == output.result.stdout

    asyncio.run(main())


@needs_sandbox
@on_every_kind
@pytest.mark.parametrize("how", ["leaving", "cancelling"])
def test_a_stream_that_is_left_ends_the_program(kind: Kind, how: str) -> None:
    marker, code = marked("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    program = Program(code=code, limits=Limits(wall_seconds=100.0))

    async def read(sandbox: Sandbox, begun: asyncio.Event) -> None:
        async with sandbox.stream(program) as output:
            async for _ in output:
                begun.set()
                if how == "leaving":
                    break
        with pytest.raises(SandboxRequestError, match="there is no result"):
            _ = output.result

    async def main() -> None:
        async with service(kind).client() as sandbox:
            begun = asyncio.Event()
            reading = asyncio.create_task(read(sandbox, begun))
            await begun.wait()
            if how == "cancelling":
                reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled() == (how == "cancelling")
            await asyncio.to_thread(assert_no_survivors, marker)

    asyncio.run(main())


@needs_sandbox
def test_a_shell_is_typed_to_while_it_runs() -> None:
    sleep = "bash -c 'echo asleep $((2 - 1)); exec sleep 60'\n"  # Ctrl-C before it is in the foreground would be lost
    program = Program(code="bash --norc -i", language="bash", terminal=Terminal(), limits=Limits(wall_seconds=30.0))

    async def main() -> None:
        async with service().client() as sandbox:
            async with sandbox.stream(program) as output:
                shown, answers = "", iter([sleep, "\x03", "echo $((6 * 7))\n", "exit 5\n"])
                signs = iter(["$ ", "asleep 1\r\n", "^C", "42\r\n"])
                sign = next(signs)
                async for chunk in output:
                    shown += chunk.text
                    if sign in shown:
                        shown = shown.partition(sign)[2]
                        assert await output.write(next(answers))
                        sign = next(signs, "never")
            assert output.result.exit_code == 5
            assert "exit" in output.result.stdout
            assert not await output.write("too late")

    asyncio.run(main())


@needs_sandbox
def test_what_is_typed_without_end_and_never_read_is_dropped() -> None:
    program = Program(code="import time\nprint(1)\ntime.sleep(1.0)", terminal=Terminal(), limits=SMALL)

    async def main() -> None:
        async with service().client() as sandbox, sandbox.stream(program) as output:
            async for _ in output:
                for _ in range(20):
                    await output.write("y" * 65_536)
                break
            with pytest.raises(SandboxRequestError, match="65537 characters to type are more than 65536"):
                await output.write("y" * 65_537)
            await output.read_all()

    asyncio.run(main())


@needs_sandbox
@on_every_kind
def test_a_program_that_prints_single_letters_costs_few_chunks(kind: Kind) -> None:
    code = "import os, time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end:\n    os.write(1, b'x')"

    async def main() -> int:
        async with service(kind).client() as sandbox:
            async with sandbox.stream(Program(code=code, limits=Limits(output_bytes=10**6))) as output:
                num_chunks = len([chunk async for chunk in output])
            assert output.result.stdout_bytes == len(output.result.stdout)
            return num_chunks - int(output.result.timing.wall_seconds / PAUSE_SECONDS)

    assert asyncio.run(main()) <= 3


def test_who_cannot_stream_says_so() -> None:
    async def main() -> None:
        async with Sandbox(pool=PoolSettings(protocol=PoolProtocol.CODE_JUDGE, urls=("http://127.0.0.1:1",))) as pool:
            with pytest.raises(SandboxRequestError, match="sends no output before the end: use a service of"):
                pool.stream(Program(code="1"))
        async with Sandbox(["http://127.0.0.1:1"], "a token of some length") as sandbox:
            output = sandbox.stream(Program(code="1"))
            with pytest.raises(SandboxRequestError, match="inside of `async with`"):
                [chunk async for chunk in output]
            with pytest.raises(SandboxRequestError, match="read the output to its end first"):
                _ = output.result
            with pytest.raises(SandboxRequestError, match="the program has no terminal to type into"):
                await output.write("x")

    asyncio.run(main())


@pytest.mark.heavy
def test_the_longest_texts_of_a_cell_arrive_and_end_no_other_session() -> None:
    num_bytes = 16 * MIB
    limits = Limits(wall_seconds=60.0, cpu_seconds=60, output_bytes=num_bytes, memory_bytes=1024 * MIB)
    cell = f"import os\nfor fd in (1, 2): os.write(fd, bytes({num_bytes - 8}))\nchr(0) * {num_bytes // 5}"

    async def main() -> tuple[Result, Result]:
        async with service().client() as sandbox:
            other, session = await sandbox.open(), await sandbox.open(limits=limits)
            await other.run("x = 7")
            long = await session.run(cell)
            return long, await other.run("x")

    long, other = asyncio.run(main())

    assert (long.status, long.stdout, long.stderr) == (Status.OK, "\0" * (num_bytes - 8), "\0" * (num_bytes - 8))
    assert other.value == "7"
