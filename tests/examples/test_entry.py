"""Commands of examples: which process imports what."""

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_process_that_forks_an_example_has_not_imported_torch() -> None:
    code = """
import sys
from types import SimpleNamespace
from examples import entry
entry.import_module = lambda name: SimpleNamespace(start=lambda: print(name, "torch" in sys.modules))
entry.run_example("quickstart")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "examples.quickstart.run False\n")


def test_an_example_that_ctrl_c_stops_says_how_to_go_on() -> None:
    code = """
import time
from types import SimpleNamespace
from examples import entry
def start():
    print("started", flush=True)
    time.sleep(60)
entry.import_module = lambda name: SimpleNamespace(start=start)
entry.run_example("quickstart")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)

    assert process.returncode == 130
    assert told.splitlines()[1:] == [
        "Ended, with all processes that were started.",
        "Stopped. The same command continues where it stopped when it is run again.",
    ]


def test_examples_are_supervised_by_their_entry_alone() -> None:
    supervised = [path.name for path in EXAMPLES.rglob("*.py") if "run_supervised" in path.read_text()]

    assert supervised == ["entry.py"]
