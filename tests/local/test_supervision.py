"""local.supervision: whichever process is killed, and however, no process of the program is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.heavy

PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
from verl_pivot.local.supervision import fork_supervised

folder, ending = Path(sys.argv[1]), sys.argv[2]
supervisor = fork_supervised(folder / "output")
if supervisor is not None:
    sys.exit(supervisor.follow(lambda: None, 0.05))
# A child in a session of its own that loses its parent and does not hear SIGTERM.
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
launcher = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
subprocess.run([sys.executable, "-c", launcher, deaf, str(folder)], check=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
print("started", flush=True)
unfinished = folder / "unfinished"
unfinished.write_text(f"{os.getppid()} {os.getpid()}")
unfinished.rename(folder / "pids")
if ending == "returns":
    sys.exit(3)
time.sleep(600)
"""


def start(folder: Path, ending: str = "sleeps") -> "subprocess.Popen[bytes]":
    """Start the program, and wait until its children run."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), ending])
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def pids(folder: Path) -> tuple[int, int]:
    """Process ids of the supervisor and of the program."""
    supervisor, program = map(int, (folder / "pids").read_text().split())
    return supervisor, program


def left(folder: Path) -> list[list[str]]:
    """Command lines of the processes that have the folder as an argument."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in found if str(folder) in command]


def wait_until_none_is_left(folder: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while left(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left(folder) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
)
def test_no_process_is_left_when_the_first_one_is_killed(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path)
    assert len(left(tmp_path)) == 5

    process.send_signal(number)

    assert process.wait(30) == code
    wait_until_none_is_left(tmp_path)


@pytest.mark.parametrize(("killed", "code"), [("supervisor", 137), ("program", 137)])
def test_no_process_is_left_when_another_one_is_killed(tmp_path: Path, killed: str, code: int) -> None:
    process = start(tmp_path)
    supervisor, program = pids(tmp_path)

    os.kill(supervisor if killed == "supervisor" else program, signal.SIGKILL)

    assert process.wait(30) == code
    assert left(tmp_path) == []


def test_a_program_that_ends_gives_its_exit_code_and_its_output(tmp_path: Path) -> None:
    process = start(tmp_path, "returns")

    assert process.wait(30) == 3
    assert left(tmp_path) == []
    assert (tmp_path / "output").read_text() == "started\n"


def test_a_second_interrupt_does_not_stop_the_end(tmp_path: Path) -> None:
    process = start(tmp_path)

    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 130
    assert left(tmp_path) == []
