"""Backend bwrap_exec, one bubblewrap per program: statuses, limits, files, and that nothing is left behind."""

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.sandbox_machine import FORKS, bwrap_backend, needs_sandbox, run
from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.bubblewrap.command_line import BwrapCommand
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.bubblewrap.run import BwrapRun
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status
from verl_pivot.sandbox.lane import control_groups
from verl_pivot.sandbox.lane.core_time import Waiting
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.bwrap_backend import BwrapExecBackend


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "status", "exit_code", "signal"),
    [
        (Program(code="print(1)"), Status.OK, 0, None),
        (Program(code="import os; os._exit(137)"), Status.ERROR, 137, None),
        (Program(code="import os; os.abort()"), Status.SIGNALED, None, 6),
        (Program(code="import os; os.kill(os.getpid(), 9)"), Status.SIGNALED, None, 9),
        (Program(code="while True: pass", limits=Limits(cpu_seconds=1)), Status.CPU_LIMIT, None, 24),
        (Program(code="import time; time.sleep(60)", limits=Limits(wall_seconds=0.3)), Status.TIMEOUT, None, None),
        (Program(code="while True: print('x' * 1000)"), Status.OUTPUT_LIMIT, None, None),
        (Program(code="while True: print('x' * 1000, file=__import__('sys').stderr)"), Status.OUTPUT_LIMIT, None, None),
        (Program(code="b'1' * 10**10", limits=Limits(memory_bytes=64 * MIB)), Status.ERROR, 1, None),
        (Program(code="int main( {", language="c"), Status.COMPILE_ERROR, 1, None),
        (Program(code="int main() { return *(volatile int*)0; }", language="c"), Status.SIGNALED, None, 11),
    ],
)
async def test_the_status_says_how_the_program_ended(
    program: Program, status: Status, exit_code: int | None, signal: int | None
) -> None:
    result = await run(program)

    assert (result.status, result.exit_code, result.signal) == (status, exit_code, signal)


@needs_sandbox
@pytest.mark.parametrize(("waited_seconds", "had_no_core"), [(0.0, False), (40.0, True)])
@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "print(1)"])
async def test_a_program_ended_at_its_limit_says_whether_it_had_a_core(
    code: str, waited_seconds: float, had_no_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "seconds", lambda *_: waited_seconds)
    monkeypatch.setattr("verl_pivot.sandbox.bubblewrap.run.granted_seconds", lambda *_: 0.0)

    result = await run(Program(code=code, limits=Limits(wall_seconds=2.0)))

    is_ended = result.status is Status.TIMEOUT
    assert is_ended == (code != "print(1)")
    assert result.had_no_core == (is_ended and had_no_core)


@needs_sandbox
async def test_a_program_that_the_kernel_ended_as_the_machine_ran_out_of_memory_has_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = SimpleNamespace(noticed_since=lambda since: True)
    monkeypatch.setattr(control_groups, "_memory_kills", kills)

    assert (await run(Program(code="import os; os.abort()"))).status is Status.SIGNALED
    with pytest.raises(SandboxError, match="the machine ran out of memory"):
        await run(Program(code="import os; os.kill(os.getpid(), 9)"))


SHARED_MEMORY = """
import mmap, time
shared = mmap.mmap(-1, 256 << 20)
for position in range(0, 256 << 20, 4096):
    shared[position] = 1
time.sleep(60)
"""
MANY_PROCESSES = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        mine = bytearray(40 << 20)
        time.sleep(60)
time.sleep(60)
"""


@needs_sandbox
@pytest.mark.parametrize("code", [SHARED_MEMORY, MANY_PROCESSES])
async def test_the_watchdog_counts_memory_that_no_rlimit_counts(code: str) -> None:
    result = await run(Program(code=code, limits=Limits(memory_bytes=128 * MIB)))

    assert result.status is Status.MEMORY_LIMIT


@needs_sandbox
async def test_pages_that_processes_share_count_once() -> None:
    code = """
import os, time
mine = bytearray(b"1") * (80 << 20)
children = [os.fork() for _ in range(2)]
time.sleep(0.4)
if 0 not in children:
    print(len(mine))
"""
    result = await run(Program(code=code, limits=Limits(memory_bytes=128 * MIB)))

    assert (result.status, result.stdout) == (Status.OK, f"{80 << 20}\n")


@needs_sandbox
async def test_the_limit_on_processes_holds_for_each_execution_by_itself_even_where_root_started_it() -> None:
    program = Program(code=FORKS, limits=Limits(num_processes=9))

    async with bwrap_backend() as backend:
        results = await asyncio.gather(backend.run(program), backend.run(program))

    assert [(result.status, result.stdout) for result in results] == [(Status.OK, "8\n")] * 2


@needs_sandbox
async def test_too_many_files_end_the_program() -> None:
    code = "for i in range(5000): open(str(i), 'w').close()\nimport time; time.sleep(60)"

    result = await run(Program(code=code, limits=Limits(num_tmp_files=100)))

    assert result.status is Status.MEMORY_LIMIT


@needs_sandbox
async def test_a_compiler_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(
        "slow: {file: main, compile: [sleep, '60'], run: [sh, main], compile_limits: {wall_seconds: 0.2}}"
    )
    backend = BwrapExecBackend(BackendSettings(backend="bwrap_exec", languages_file=tmp_path / "slow.yaml"))
    await backend.start()

    result = await backend.run(Program(code="", language="slow"))

    assert result.status is Status.COMPILE_TIMEOUT


@needs_sandbox
async def test_output_beyond_the_limit_is_counted_and_cut_between_characters() -> None:
    result = await run(Program(code="print('\u00e9' * 1000, end='')", limits=Limits(output_bytes=11)))

    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("\u00e9" * 5, 2000, True)


@needs_sandbox
async def test_a_megabyte_of_output_and_of_unread_input_is_no_trouble() -> None:
    result = await run(Program(code="print('x' * 1_000_000)", stdin="y" * 8_000_000))

    assert (result.status, result.stdout_bytes, len(result.stdout)) == (Status.OK, 1_000_001, 65536)


@needs_sandbox
async def test_bytes_that_are_no_text_are_written_as_escapes() -> None:
    result = await run(Program(code=r"import os; os.write(1, b'a\0\xff\n')"))

    assert (result.status, result.stdout) == (Status.OK, "a\0\\xff\n")


@needs_sandbox
async def test_files_go_in_and_regular_files_come_back() -> None:
    code = """
import os
print(open("in/x").read())
os.makedirs("out"); open("out/y", "wb").write(b"\\0\\1")
os.symlink("/etc/passwd", "link"); os.symlink("/etc", "folder"); os.mkfifo("fifo")
open("large", "wb").truncate(9 << 20)
"""
    fetch = ("out/y", "in/x", "link", "folder/passwd", "fifo", "large", "none", "out")
    result = await run(Program(code=code, files={"in/x": b"hello"}, fetch=fetch))

    assert (result.stdout, result.stderr) == ("hello\n", "")
    assert result.files == {"out/y": b"\0\1", "in/x": b"hello"}
    assert result.file_errors == {
        "link": "a symbolic link",
        "folder/passwd": "Not a directory",
        "fifo": "not a regular file",
        "large": f"{9 << 20} bytes, but only {(8 << 20) - 7} are left for all files together",
        "none": "No such file or directory",
        "out": "not a regular file",
    }


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Program(code="", files={"main.py": b""}), "the name 'main.py' is used for the code"),
        (Program(code="", files={"a": b"", "a/b": b""}), "files name 'a' both as a file and as a folder"),
        (Program(code="", files={"a": bytes(2 * MIB)}, limits=Limits(tmp_bytes=MIB)), "more than limits.tmp_bytes"),
        (Program(code="", language="cobol"), "unknown language 'cobol'"),
    ],
)
async def test_files_that_cannot_be_written_before_the_start_are_the_callers_fault(
    program: Program, message: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(SandboxRequestError, match=message):
        await run(program)

    assert len(os.listdir("/proc/self/fd")) == before


@needs_sandbox
async def test_a_program_cannot_reach_the_sandboxs_first_process() -> None:
    code = """
import os, signal
outcome = []
for signal_number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM):
    os.kill(1, signal_number)
for name in ("mem", "environ", "maps", *(f"fd/{fd}" for fd in range(20))):
    try:
        open(f"/proc/1/{name}", "rb")
        outcome.append(name)
    except (PermissionError, FileNotFoundError):
        pass
print(outcome, os.getppid(), sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
"""
    async with bwrap_backend() as backend:
        if backend.tier == "T3":
            pytest.skip("the sandbox has no /proc on this machine")
        result = await backend.run(Program(code=code))

    assert (result.status, result.stdout) == (Status.OK, "[] 1 [0, 1, 2]\n")


@needs_sandbox
async def test_a_daemon_ends_with_its_program() -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('parent')"
    start = time.monotonic()

    result = await run(Program(code=code))

    assert (result.status, result.stdout) == (Status.OK, "parent\n")
    assert time.monotonic() - start < 10


@needs_sandbox
async def test_cancelling_ends_the_processes_and_gives_the_descriptors_back() -> None:
    async with bwrap_backend() as backend:
        await backend.run(Program(code=""))
        before = len(os.listdir("/proc/self/fd"))
        others = set(descendants(os.getpid()))  # services of other tests, which live as long as this process
        running = asyncio.create_task(backend.run(Program(code="import time; time.sleep(60)")))
        while set(descendants(os.getpid())) <= others:  # noqa: ASYNC110  nobody tells when a process has started
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert set(descendants(os.getpid())) <= others
        assert len(os.listdir("/proc/self/fd")) == before


@needs_sandbox
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3])
async def test_stopping_at_any_time_ends_what_runs_as_the_systems_fault(seconds: float) -> None:
    async with bwrap_backend(num_slots=2) as backend:
        running = [asyncio.create_task(backend.run(Program(code="import time; time.sleep(60)"))) for _ in range(3)]
        await asyncio.sleep(seconds)
        start = time.monotonic()
        await backend.stop()

        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SandboxError] * 3

    assert time.monotonic() - start < 10


async def test_a_child_that_is_not_yet_bound_to_die_with_bubblewrap_is_ended_with_it() -> None:
    """Between fork and mapping of ids, bubblewrap's child can outlive it; here a shell's child stands for that."""
    others = set(descendants(os.getpid()))
    stdin = os.open(os.devnull, os.O_RDONLY)
    script = ("/bin/sh", "-c", "sleep 600 & sleep 600")
    command = BwrapCommand(argv=script, pass_fds=(), own_fds=())
    bwrap_run = BwrapRun(lambda *_: command, stdin_fd=stdin, keep_bytes=1000)
    os.close(stdin)
    while len(set(descendants(os.getpid())) - others) < 3:  # noqa: ASYNC110  nobody tells when a process has started
        await asyncio.sleep(0.01)

    async with asyncio.timeout(10):
        await bwrap_run.end()

    assert set(descendants(os.getpid())) <= others


@needs_sandbox
async def test_sessions_are_refused_with_the_remedy() -> None:
    async with bwrap_backend() as backend:
        with pytest.raises(SandboxRequestError, match="does not support sessions: use the backend zygote"):
            await backend.open_session(
                "a",
                limits=Limits(),
                network=Network.NONE,
                root="",
                environment={},
                folder="",
                terminal=None,
                functions=(),
            )


async def test_a_backend_runs_nothing_before_its_start() -> None:
    with pytest.raises(SandboxError, match="the backend is not running"):
        await BwrapExecBackend(BackendSettings(backend="bwrap_exec")).run(Program(code=""))
