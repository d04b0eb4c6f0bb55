"""`verl-pivot doctor` on this machine: what is there is ok, what lacks has its remedy and the exit code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import MINIMAL

BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


def test_a_machine_without_user_namespaces_fails_with_the_remedy_and_the_rest_is_ok(tmp_path: Path) -> None:
    machine = ["bwrap", "--unshare-user", "--uid", "1000", "--disable-userns", "--dev-bind", "/", "/", "--"]

    done = subprocess.run(
        [*machine, BIN / "verl-pivot", "doctor"],
        cwd=tmp_path,
        env={**MINIMAL, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.findall(
        r"FAIL (\w+): tier (T\d), .*: no further user namespace can be made .*\n +remedy: (.*), and", done.stdout
    )
    assert failed == [("sandbox", "T4", "sudo sysctl -w user.max_user_namespaces=15000")]
    assert "ok   plugin in a Ray worker" in done.stdout
    assert done.stdout.count("FAIL") == 1
