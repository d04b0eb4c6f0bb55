"""`verl-pivot sandbox run FILE`: one program in the sandbox, with its output while it runs and a terminal if wanted."""

import contextlib
import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

    from verl_pivot.sandbox.execution import Program, Result
    from verl_pivot.sandbox.output_stream import OutputStream

_KEY_BYTES = 4096
_FAILED = 1
_SIGNALED = 128


def run_command(
    file: Annotated[Path, typer.Argument(help="File with the program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]", help="Arguments of the program.")
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the program, such as python, bash or c.")] = "python",
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal", help="Run the program in a terminal, with colours and prompts, and with the keys typed here."
        ),
    ] = False,
    network: Annotated[
        Literal["none", "private", "loopback", "proxy"],
        typer.Option(
            help="Network of the program: `loopback` has 127.0.0.1, and `proxy` also reaches the hosts that the "
            "services list with --egress."
        ),
    ] = "none",
    wall_seconds: Annotated[float, typer.Option(help="Time limit of the program in seconds.")] = 600.0,
    cpu_seconds: Annotated[int, typer.Option(help="CPU time limit of each process of the program in seconds.")] = 600,
    memory_mib: Annotated[int, typer.Option(help="Memory limit of the program in MiB.")] = 1024,
    output_mib: Annotated[
        int, typer.Option(min=1, help="Limit of the program's output in MiB, of stdout and of stderr each; 16 at most.")
    ] = 16,
) -> None:
    """Run one program in the sandbox.

    The program's output is printed as it comes, and its exit code becomes that of the command. It runs on the services
    that VERL_PIVOT_SANDBOX_URLS names, or on a service that is started for it. Input that is piped into the command
    goes to the program.

    \b
    Examples:
      verl-pivot sandbox run --language bash --terminal session.sh
      verl-pivot sandbox run --network proxy download.py
    """
    import asyncio

    from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Terminal

    limits = Limits(
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        memory_bytes=memory_mib * MIB,
        output_bytes=output_mib * MIB,
    )
    try:
        code = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text: {error}") from error
    size = shutil.get_terminal_size()
    program = Program(
        code=code,
        language=language,
        args=tuple(arguments or ()),
        stdin=_piped(with_end=terminal),
        terminal=Terminal(columns=size.columns, rows=size.lines) if terminal else None,
        network=Network(network),
        limits=limits,
    )
    result = asyncio.run(_run(program))
    if result.exit_code is None and result.signal is None:
        typer.echo(f"{file} was ended: {result.status}; {_remedy(result)}", err=True)
    raise typer.Exit(_exit_code(result))


def _piped(*, with_end: bool) -> str:
    """Input that is piped into this command; "" if stdin is a keyboard.

    Args:
        with_end: Whether the input is typed into a terminal, where a key marks the end of the input.
    """
    if sys.stdin.isatty():
        return ""
    from verl_pivot.sandbox.lane.terminal import typed_input

    piped = sys.stdin.buffer.read()
    return (typed_input(piped) if with_end else piped).decode("utf-8", "surrogateescape")


async def _run(program: "Program") -> "Result":
    from verl_pivot.sandbox.client import Sandbox

    async with Sandbox() as sandbox, sandbox.stream(program) as output:
        with _keyboard(output) if program.terminal is not None else contextlib.nullcontext():
            async for chunk in output:
                stream = sys.stdout if chunk.stream == "stdout" else sys.stderr
                stream.write(chunk.text)
                stream.flush()
        return output.result


@contextlib.contextmanager
def _keyboard(output: "OutputStream") -> Iterator[None]:
    """Pass each key that is typed here to the program's terminal, Ctrl-C and similar keys included."""
    if not sys.stdin.isatty():
        yield
        return
    import asyncio

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    keys: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    typing = loop.create_task(_type(keys, output))
    tty.setraw(fd)
    loop.add_reader(fd, lambda: keys.put_nowait(os.read(fd, _KEY_BYTES).decode("utf-8", "replace")))
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        typing.cancel()


async def _type(keys: "asyncio.Queue[str]", output: "OutputStream") -> None:
    while True:
        await output.write(await keys.get())


def _exit_code(result: "Result") -> int:
    """Exit code as a shell reports it."""
    if result.signal is not None:
        return _SIGNALED + result.signal
    return _FAILED if result.exit_code is None else result.exit_code


def _remedy(result: "Result") -> str:
    if result.status == "output_limit":
        return "raise --output-mib, or let the program print less: 16 MiB are the most"
    options = {"timeout": "--wall-seconds", "cpu_limit": "--cpu-seconds", "memory_limit": "--memory-mib"}
    option = options.get(result.status)
    return result.compile_output.strip() if option is None else f"raise {option}"
