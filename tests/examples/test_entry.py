"""Commands of examples: which process imports what."""

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


def test_examples_are_supervised_by_their_entry_alone() -> None:
    supervised = [path.name for path in EXAMPLES.rglob("*.py") if "run_supervised" in path.read_text()]

    assert supervised == ["entry.py"]
