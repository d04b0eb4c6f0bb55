"""`verl-pivot doctor` on this machine: what is there is ok, what lacks has its remedy and the exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import MINIMAL

BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


def test_a_machine_without_bubblewrap_fails_with_the_remedy_and_the_rest_is_ok(tmp_path: Path) -> None:
    done = subprocess.run(
        [BIN / "verl-pivot", "doctor"],
        cwd=tmp_path,
        env={**MINIMAL, "PATH": str(BIN), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL bubblewrap: bwrap is not on PATH\n     remedy: sudo apt-get install -y bubblewrap" in done.stdout
    assert "ok   plugin in a Ray worker" in done.stdout
    assert done.stdout.count("FAIL") == 1
