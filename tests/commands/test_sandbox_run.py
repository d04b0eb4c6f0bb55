"""`verl-pivot sandbox run`: output as it comes, exit codes, piped input, and a terminal with a keyboard."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import service, use_service
from verl_pivot.commands.sandbox import sandbox_app
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE

pytestmark = needs_sandbox


CONNECTS = """
import socket
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(type(error).__name__)
"""


def written(folder: Path, code: str) -> str:
    (folder / "program").write_text(code)
    return str(folder / "program")


@pytest.mark.parametrize(
    ("code", "options", "exit_code", "stdout", "stderr"),
    [
        ("import sys\nprint(input(), sys.argv[1])\nsys.exit('no')", [], 1, "typed x\n", "no\n"),
        ("cat; exit 7", ["--language", "bash"], 7, "typed\n", ""),
        ("tty -s && cat && tput cols", ["--language", "bash", "--terminal"], 0, "typed\ntyped\n80\n", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", [], 143, "", ""),
        (CONNECTS, [], 0, "OSError\n", ""),
        (CONNECTS, ["--network", "loopback"], 0, "ConnectionRefusedError\n", ""),
        ("print('x' * 3_000_000)", [], 0, "x" * 3_000_000 + "\n", ""),
        ("import time; time.sleep(9)", ["--wall-seconds", "0.2"], 1, "", "raise --wall-seconds\n"),
    ],
)
def test_a_program_prints_and_ends_as_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    options: list[str],
    exit_code: int,
    stdout: str,
    stderr: str,
) -> None:
    use_service(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")

    done = CliRunner().invoke(sandbox_app, ["run", *options, written(tmp_path, code), "x"], input="typed\n")

    assert (done.exit_code, done.stdout) == (exit_code, stdout), done.output
    assert done.stderr.endswith(stderr)


def test_a_program_that_prints_too_much_is_ended_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)

    done = CliRunner().invoke(sandbox_app, ["run", "--output-mib", "1", written(tmp_path, "print('x' * 3_000_000)")])

    assert done.exit_code == 1
    assert done.stderr.endswith("raise --output-mib, or let the program print less: 16 MiB are the most\n")


def test_a_way_out_that_the_service_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)

    done = CliRunner().invoke(sandbox_app, ["run", "--network", "proxy", written(tmp_path, CONNECTS)])

    assert isinstance(done.exception, SandboxRequestError)
    assert "this service lists no hosts" in str(done.exception)


def test_a_shell_is_used_with_the_keyboard(tmp_path: Path) -> None:
    running = service()
    environment = {**os.environ, URLS_VARIABLE: running.url, TOKEN_VARIABLE: running.token, "PYTHONPATH": str(ROOT)}
    script = written(tmp_path, "bash --norc -i")
    command = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "run", "--language", "bash", "--terminal", script]
    ours, theirs = os.openpty()
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    shown = b""
    sleep = b"bash -c 'echo asleep $((2 - 1)); exec sleep 60'\r"  # a Ctrl-C before this command runs would be lost
    for sign, answer in ((b"$ ", sleep), (b"asleep 1\r\n", b"\x03"), (b"^C", b"exit $((5 + 1))\r")):
        while sign not in shown:
            assert select.select([ours], [], [], 60.0)[0], shown
            shown += os.read(ours, 4096)
        shown = shown.partition(sign)[2]
        os.write(ours, answer)

    assert process.wait(60.0) == 6
    os.close(ours)
