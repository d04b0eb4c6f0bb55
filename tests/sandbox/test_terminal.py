"""Programs and sessions in a terminal: what they see of it, what is typed, and what they cannot do with it."""

import asyncio

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import SMALL, Kind, on_zygotes, service
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status, Terminal
from verl_pivot.sandbox.pool_settings import PoolProtocol, PoolSettings
from verl_pivot.sandbox.wire import decode_program, encode

pytestmark = needs_sandbox
TERMINAL = Terminal(columns=100, rows=30)


@pytest.mark.parametrize("size", [{"columns": 0}, {"rows": 1001}, {"rows": True}, {"columns": "80"}])
def test_a_terminal_has_a_size_from_1_to_1000(size: dict[str, int]) -> None:
    with pytest.raises(SandboxRequestError, match=r"terminal\.(columns|rows) must be a whole number from 1 to 1000"):
        Terminal(**size)


def test_a_terminal_goes_over_the_wire_and_unknown_fields_are_refused() -> None:
    program = Program(code="", terminal=TERMINAL)

    assert decode_program(encode(program), "here") == program
    with pytest.raises(SandboxRequestError, match="unknown field `colour`"):
        decode_program(b'{"code": "", "terminal": {"colour": 1}}', "here")
    with pytest.raises(SandboxRequestError, match="from 1 to 1000, got 0"):
        decode_program(b'{"code": "", "terminal": {"rows": 0}}', "here")


@on_zygotes
def test_a_program_sees_a_terminal_of_its_size_by_all_its_streams(kind: Kind) -> None:
    code = """
import os, sys
print(*(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)), sys.stdout.line_buffering)
print(*os.get_terminal_size(), os.ttyname(0) == os.ttyname(1), os.path.exists(os.ttyname(2)), os.environ["TERM"])
print(os.getsid(0) == os.getpid() == os.tcgetpgrp(0), open("/dev/tty").isatty())
print("wrong", file=sys.stderr)
"""

    result = service(kind).run(code, terminal=TERMINAL)

    expected = "True True True True\r\n100 30 True True xterm-256color\r\nTrue True\r\nwrong\r\n"
    assert (result.status, result.stdout, result.stderr) == (Status.OK, expected, "")


def test_commands_show_colours_in_a_terminal_alone() -> None:
    commands = "mkdir d; ls --color=auto; stty size; tty"

    plain, coloured = (service().run(commands, language="bash", terminal=each) for each in (None, TERMINAL))

    assert "\x1b[" not in plain.stdout
    assert "\x1b[" in coloured.stdout
    assert coloured.stdout.endswith("30 100\r\n/dev/pts/0\r\n")


def test_what_is_typed_is_echoed_and_ends_with_the_end_of_the_input() -> None:
    code = "name = input('name? ')\nprint('hello', name)\nimport sys\nprint(sys.stdin.read().split())"

    result = service().run(code, terminal=TERMINAL, stdin="Ann\na b\nc")

    assert result.status is Status.OK
    assert "name? " in result.stdout
    assert result.stdout.endswith("['a', 'b', 'c']\r\n")
    assert "hello Ann\r\n" in result.stdout


def test_a_shell_has_prompts_jobs_and_a_keyboard() -> None:
    typed = "PS1='ready> '\nsleep 0.01 & wait; echo $((6 * 7))\nset -o | grep monitor\nexit 5\n"

    result = service().run("bash --norc -i", language="bash", terminal=TERMINAL, stdin=typed)

    assert (result.status, result.exit_code) == (Status.ERROR, 5), result.stdout
    assert "42" in result.stdout
    assert "ready> " in result.stdout
    assert "no job control" not in result.stdout
    assert "monitor        \ton" in result.stdout


def test_control_c_interrupts_the_program() -> None:
    code = (
        "import time\ntry:\n    print('begun')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise SystemExit(7)"
    )

    result = service().run(code, terminal=TERMINAL, stdin="\x03")

    assert result.exit_code == 7 or result.signal == 2  # SIGINT if Ctrl-C comes before the program has begun


def test_long_input_arrives_while_the_program_reads_it() -> None:
    lines = "".join(f"{number:0100d}\n" for number in range(5000))
    code = "import sys, termios\nold = termios.tcgetattr(0)\nold[3] &= ~termios.ECHO\ntermios.tcsetattr(0, 0, old)\n"
    code += "print(len(sys.stdin.read()))"

    result = service().run(code, terminal=TERMINAL, stdin=lines, limits=Limits(output_bytes=MIB))

    assert result.stdout.endswith(f"{len(lines)}\r\n")


@pytest.mark.parametrize("num_lines", [1, 3000])
def test_all_output_is_there_however_a_program_ends(num_lines: int) -> None:
    code = f"import os, sys\nsys.stdout.write('0123456789\\n' * {num_lines})\nsys.stdout.flush()\nos._exit(3)"

    result = service().run(code, terminal=TERMINAL)

    assert (result.exit_code, result.stdout) == (3, "0123456789\r\n" * num_lines)


HOSTILE = {
    "a_flood": ("import os\nwhile True: os.write(1, b'x' * 4096)", Status.OUTPUT_LIMIT),
    "no_reader_of_what_is_typed": ("while True: pass", Status.TIMEOUT),
    "a_terminal_that_is_stopped": (
        "import termios; termios.tcflow(1, termios.TCOOFF); print('x' * 99999)",
        Status.TIMEOUT,
    ),
    "streams_that_are_closed": ("import os, time; os.closerange(0, 99); time.sleep(0.1)", Status.OK),
    "typing_into_itself": (
        "import fcntl, sys\ntry: fcntl.ioctl(0, 0x5412, b'x')\nexcept PermissionError: sys.exit(7)",
        Status.ERROR,
    ),
    "every_other_terminal": (
        "import os\ntry:\n    while True: os.openpty()\nexcept OSError: raise SystemExit(7)",
        Status.ERROR,
    ),
    "a_hangup": ("import os, signal; os.kill(0, signal.SIGHUP)", Status.SIGNALED),
    "another_session": ("import os\nif os.fork(): os._exit(7)\nos.setsid()\nimport time; time.sleep(60)", Status.ERROR),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_in_a_terminal_ends_as_it_would_without_and_the_next_is_served(name: str) -> None:
    code, status = HOSTILE[name]
    limits = Limits(wall_seconds=1.0, memory_bytes=128 * MIB)

    result = service().run(code, terminal=TERMINAL, stdin="y\n" * 100_000, limits=limits)

    assert result.status is status, result
    assert service().output("print(1)") == "1\n"


def test_a_terminal_opened_again_by_its_name_is_still_the_same() -> None:
    code = """
import os
for number in range(3): os.close(number)
fd = os.open("/dev/tty", os.O_RDWR)
os.write(fd, b"still here")
"""

    assert service().run(code, terminal=TERMINAL).stdout == "still here"


def test_the_cells_of_a_session_print_to_its_terminal() -> None:
    async def main() -> None:
        async with service().client() as sandbox, await sandbox.open(terminal=TERMINAL, limits=SMALL) as session:
            first = await session.run("import os, sys\nprint(os.get_terminal_size().columns)\nsys.stdin.isatty()")
            shown = await session.run("os.system('ls --color=auto -d /usr; tty <&1')\nprint('wrong', file=sys.stderr)")
            assert (first.stdout, first.value) == ("100\r\n", "False")
            assert "\x1b[" in shown.stdout
            assert "/dev/pts/0" in shown.stdout
            assert shown.stdout.endswith("wrong\r\n")
            with pytest.raises(SandboxRequestError, match="a session with a terminal cannot be forked"):
                await session.fork()
            assert (await session.run("1 + 1")).value == "2"
            killed = await session.run("print('last words', flush=True)\nos._exit(1)")
            assert (killed.status, killed.stdout) == (Status.SESSION_KILLED, "last words\r\n")
            assert (await session.run("__import__('os').get_terminal_size().lines")).value == "30"

    asyncio.run(main())


def test_a_terminal_works_with_a_loopback_interface_and_a_compiler_has_pipes() -> None:
    code = '#include <unistd.h>\n#include <stdio.h>\nint main() { printf("%d%d\\n", isatty(0), isatty(1)); }'

    looped = service().run("import os; print(os.isatty(1))", network=Network.LOOPBACK, terminal=TERMINAL)
    compiled = service().run(code, language="c", terminal=TERMINAL)

    assert looped.stdout == "True\r\n"
    assert (compiled.stdout, compiled.compile_output) == ("11\r\n", "")


def test_who_has_no_terminals_says_so() -> None:
    with pytest.raises(SandboxRequestError, match="bwrap_exec does not support terminals: use the backend zygote"):
        service(Kind.BWRAP_EXEC).run("1", terminal=TERMINAL)

    async def on_a_pool() -> None:
        pool = PoolSettings(protocol=PoolProtocol.SANDBOX_FUSION, urls=("http://127.0.0.1:1",))
        async with Sandbox(pool=pool) as sandbox:
            await sandbox.run("1", terminal=TERMINAL)

    with pytest.raises(SandboxRequestError, match="do not support terminals: use a service of"):
        asyncio.run(on_a_pool())
