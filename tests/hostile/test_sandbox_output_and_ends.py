"""Programs that flood, garble or lose their streams, leave processes behind, or end oddly (H-21 to H-32)."""

import pytest

from tests.support.sandbox_services import SMALL, Kind, assert_no_survivors, marked, on_every_kind, service
from verl_pivot.sandbox.execution import MIB, Limits, Program, Status

pytestmark = pytest.mark.heavy

KIB = 1024
FLOODS = {
    "h21_stdout": "while True: print('x' * 1000)",
    "h22_stderr": "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
    "h23_five_children": "import os\nfor _ in range(5): os.fork()\nwhile True: os.write(1, b'x' * 4096)",
}


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.finding("output beyond its bound")
def test_a_flood_of_output_ends_the_program_at_once(name: str) -> None:
    marker, code = marked(FLOODS[name])

    result = service().run(code, limits=Limits(wall_seconds=10.0, memory_bytes=128 * MIB, output_bytes=10_000))

    kept, is_cut = (
        (result.stderr, result.stderr_truncated) if "stderr" in name else (result.stdout, result.stdout_truncated)
    )
    assert (result.status, result.exit_code, is_cut) == (Status.OUTPUT_LIMIT, None, True)
    assert len(kept) == 10_000
    assert result.timing.wall_seconds < 2.0
    assert_no_survivors(marker)


@on_every_kind
def test_h24_200_kb_of_output_are_no_time_out(kind: Kind) -> None:
    result = service(kind).run("print('x' * 200_000)")

    assert (result.status, result.stdout_bytes, result.stdout_truncated) == (Status.OK, 200_001, True)
    assert result.stdout == "x" * 64 * KIB


@on_every_kind
def test_h24_1_mb_of_output_comes_whole_if_it_is_asked_for(kind: Kind) -> None:
    code = "import sys\nfor number in range(100_000): print(f'{number:09}')\nsys.stderr.write('e' * 1_000_000)"

    result = service(kind).run(code, limits=Limits(output_bytes=2 * MIB))

    assert (result.status, result.stdout_truncated, result.stderr_truncated) == (Status.OK, False, False)
    assert result.stdout == "".join(f"{number:09}\n" for number in range(100_000))
    assert result.stderr == "e" * 1_000_000


@on_every_kind
def test_h25_every_byte_comes_through(kind: Kind) -> None:
    code = "import sys\nfor stream in (sys.stdout, sys.stderr): stream.buffer.write(bytes(range(256)))"

    result = service(kind).run(code)

    expected = "".join(map(chr, range(128))) + "".join(f"\\x{byte:02x}" for byte in range(128, 256))
    assert (result.status, result.stdout, result.stderr) == (Status.OK, expected, expected)


@on_every_kind
@pytest.mark.parametrize(
    "text", ["\U0001f600 \u00e9\u4e2d", "a\r\nb\rc", "no newline", "\0", "\ufeffbom", "\u2028\x85"]
)
def test_h25_text_comes_through_as_it_is(kind: Kind, text: str) -> None:
    result = service(kind).run("import sys; sys.stdout.write(sys.stdin.buffer.read().decode())", stdin=text)

    assert (result.status, result.stdout, result.stderr) == (Status.OK, text, "")


def test_h25_a_lone_surrogate_is_the_programs_own_error() -> None:
    result = service().run(r"print('\ud800')")

    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    assert "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800'" in result.stderr


def test_h25_output_cut_within_a_character_is_still_text() -> None:
    result = service().run("print('\u4e2d' * 10)", limits=Limits(output_bytes=10))

    assert result.stdout == "\u4e2d\u4e2d\u4e2d\\xe4"


STDIN_CASES = [
    ("print(repr(input()))", "", "", "EOFError: EOF when reading a line\n"),
    ("import sys; print(repr(sys.stdin.read()))", "", "''\n", ""),
    ("import sys; sys.stdin.close(); print('closed')", "text", "closed\n", ""),
    ("import os; os.close(0); print('closed')", "text", "closed\n", ""),
    ("import sys; print(len(sys.stdin.read()))", "x" * 8 * MIB, f"{8 * MIB}\n", ""),
    ("print('unread')", "x" * 8 * MIB, "unread\n", ""),
    ("print(input()); print(input())", "a\nb", "a\nb\n", ""),
]


@on_every_kind
@pytest.mark.parametrize("case", range(len(STDIN_CASES)))
def test_h26_stdin_is_what_was_given_and_then_ends(kind: Kind, case: int) -> None:
    code, stdin, stdout, error = STDIN_CASES[case]

    result = service(kind).run(code, stdin=stdin, limits=Limits(memory_bytes=128 * MIB))

    assert (result.status, result.stdout) == (Status.ERROR if error else Status.OK, stdout)
    assert result.stderr.endswith(error)


def test_h27_a_program_that_closes_its_streams_is_still_waited_for() -> None:
    result = service().run("import os, time; os.close(1); os.close(2); time.sleep(0.3)")

    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.OK, 0, "", "")
    assert result.timing.wall_seconds >= 0.3


def test_h27_what_a_child_writes_after_the_programs_end_is_lost() -> None:
    code = """
import os, time
if os.fork() == 0:
    time.sleep(0.1)
    os.write(1, b"late")
    os._exit(0)
print("early")
"""

    assert service().output(code) == "early\n"


DAEMONS = {
    "h28_double_fork_and_setsid": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(100)
    os._exit(0)
os.wait()
""",
    "h29_holding_the_streams": """
import os, time
if os.fork() == 0:
    while True:
        time.sleep(0.01)
        os.write(2, b"")
""",
    "h30_twenty_zombies": """
import os
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            while True: pass
        os._exit(0)
""",
}


@on_every_kind
@pytest.mark.parametrize("name", DAEMONS)
def test_the_result_comes_at_the_programs_end_and_its_daemons_die(kind: Kind, name: str) -> None:
    marker, code = marked(DAEMONS[name] + "print('done')")

    result = service(kind).run(code, limits=Limits(wall_seconds=10.0, memory_bytes=128 * MIB))

    assert (result.status, result.stdout) == (Status.OK, "done\n")
    assert result.timing.wall_seconds < 5.0
    assert_no_survivors(marker)


SIGNALS = {
    "kill_all": ("os.kill(-1, 9)", Status.OK, None),
    "kill_pid_1": ("os.kill(1, 9)", Status.OK, None),
    "terminate_pid_1": ("os.kill(1, 15)", Status.OK, None),
    "stop_pid_1": ("os.kill(1, 19)", Status.OK, None),
    "stop_all_others": ("os.kill(-1, 19)", Status.OK, None),
    "stop_itself": ("os.kill(os.getpid(), 19)", Status.TIMEOUT, None),
    "stop_its_group": ("os.killpg(0, 19)", Status.TIMEOUT, None),
    "kill_its_group": ("os.killpg(0, 9)", Status.SIGNALED, 9),
}


@on_every_kind
@pytest.mark.parametrize("name", SIGNALS)
def test_h31_signals_reach_nobody_outside(kind: Kind, name: str) -> None:
    call, status, number = SIGNALS[name]
    code = f"import os\ntry:\n    {call}\nexcept OSError:\n    pass\nprint('on')"
    waiter = Program(code="import time; time.sleep(0.5); print('well')", limits=SMALL)
    attacker = Program(code=code, limits=Limits(wall_seconds=0.3, memory_bytes=128 * MIB))

    first, hostile, second = service(kind).run_many([waiter, attacker, waiter])

    assert (hostile.status, hostile.signal, hostile.stdout) == (status, number, "on\n" if status == Status.OK else "")
    assert (first.status, first.stdout, second.status, second.stdout) == (Status.OK, "well\n", Status.OK, "well\n")


@on_every_kind
def test_h31_killing_whoever_is_the_parent_hurts_only_the_program(kind: Kind) -> None:
    result = service(kind).run("import os\nos.kill(os.getppid() or os.getpid(), 9)\nprint('on')")

    assert (result.status, result.stdout) in ((Status.SIGNALED, ""), (Status.OK, "on\n"))
    assert service(kind).output("print('well')") == "well\n"


ENDS = {
    "abort": ("import os; os.abort()", Status.SIGNALED, None, 6),
    "null": ("import ctypes; ctypes.string_at(0)", Status.SIGNALED, None, 11),
    "terminate": ("import os; os.kill(os.getpid(), 15)", Status.SIGNALED, None, 15),
    "kill": ("import os; os.kill(os.getpid(), 9)", Status.SIGNALED, None, 9),
    "exit_42": ("import sys; sys.exit(42)", Status.ERROR, 42, None),
    "exit_256": ("import sys; sys.exit(256)", Status.OK, 0, None),
    "exit_minus_1": ("import sys; sys.exit(-1)", Status.ERROR, 255, None),
    "os_exit": ("import os; os._exit(7)", Status.ERROR, 7, None),
    "deep_recursion": ("def f(): f()\nf()", Status.ERROR, 1, None),
    "exec": ("import os; os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", Status.ERROR, 5, None),
    "interrupt": ("import os; os.kill(os.getpid(), 2)", Status.SIGNALED, None, 2),
}


@on_every_kind
@pytest.mark.parametrize("name", ENDS)
def test_h32_the_result_says_how_the_program_ended(kind: Kind, name: str) -> None:
    code, status, exit_code, number = ENDS[name]

    result = service(kind).run(code)

    assert (result.status, result.exit_code, result.signal) == (status, exit_code, number)


def test_h32_recursion_without_a_limit_is_bounded_by_memory() -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()"

    result = service().run(code, limits=Limits(wall_seconds=10.0, memory_bytes=128 * MIB))

    # Python itself runs out of memory; which exception it still manages to print does not matter.
    assert (result.status, result.exit_code) in ((Status.ERROR, 1), (Status.MEMORY_LIMIT, None))
    assert service().output("print('well')") == "well\n"
