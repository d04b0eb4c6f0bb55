"""`verl-pivot doctor` on this machine: passed checks, and failed ones with a remedy and exit code 1."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.launching import MINIMAL
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.extras import install_command

BIN = Path(sys.executable).parent


@pytest.mark.slow
def test_without_user_namespaces_the_sandbox_check_fails_with_a_remedy_and_others_pass(tmp_path: Path) -> None:
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
        r"FAIL (\w+): tier (T\d), .*: no more user namespaces can be created .*\n +remedy: (.*), and", done.stdout
    )
    assert failed == [("sandbox", "T4", "sudo sysctl -w user.max_user_namespaces=15000")]
    assert re.findall(r"^(ok  |FAIL) ([\w -]+):", done.stdout, re.MULTILINE) == [
        ("FAIL" if name == "sandbox" else "ok  ", name)
        for name in (
            *("versions", "open files", "ports", "accelerator", "flash-attention", "shared memory", "sandbox"),
            *("plugin in this process", "hooks of verl", "configs", "plugin in a Ray worker", "rollout engine"),
        )
    ]
    assert ", verl 0.9.1, " in done.stdout
    assert "WARNING" not in done.stderr


def test_a_torch_that_cannot_be_imported_is_the_last_thing_that_is_looked_at() -> None:
    code = "import sys; sys.modules['torch'] = None; from verl_pivot.cli import app; app(['doctor'])"

    done = subprocess.run([sys.executable, "-c", code], env=MINIMAL, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-2].startswith("FAIL torch: cannot be imported: ModuleNotFoundError: ")
    assert "remedy: pip install --no-deps -r requirements/" in done.stdout.splitlines()[-1]
    assert done.stderr == ""


def doctor_without(*packages: str, options: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `verl-pivot doctor` where these packages are not installed."""
    code = (
        f"import sys, importlib.metadata as metadata; hidden = {packages}; find = metadata.version\n"
        "sys.modules.update(dict.fromkeys(hidden))\n"
        "def version(name):\n"
        "    if name in hidden: raise metadata.PackageNotFoundError(name)\n"
        "    return find(name)\n"
        "metadata.version = version\n"
        f"from verl_pivot.cli import app; app(['doctor', *{list(options)}])"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env={**MINIMAL, "COLUMNS": "300"}, capture_output=True, text=True, check=False
    )


@needs_sandbox
def test_json_holds_every_check_and_nothing_else_is_printed() -> None:
    done = doctor_without("verl", "torch", "ray", options=["--json"])

    report = json.loads(done.stdout)
    assert (done.returncode, report["passed"]) == (0, True), report
    assert [check["name"] for check in report["checks"]] == ["versions", "sandbox"]
    assert "verl is not installed" in report["checks"][0]["detail"]


@needs_sandbox
def test_a_node_that_only_runs_sandboxes_passes_and_says_that_it_cannot_train() -> None:
    done = doctor_without("verl", "torch", "ray")

    assert done.returncode == 0, done.stdout + done.stderr
    versions, sandbox = (line for line in done.stdout.splitlines() if line.startswith("ok   "))
    assert versions.startswith("ok   versions: ")
    assert "; verl is not installed: this node can run sandboxes, and no training; to train here, pip inst" in versions
    assert sandbox.startswith("ok   sandbox: ")


def test_a_node_that_only_runs_sandboxes_needs_the_packages_of_its_extra() -> None:
    done = doctor_without("verl", "torch", "ray", "uvloop")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL versions: not installed: uvloop\n" in done.stdout
    assert f"remedy: install what is missing: {install_command('sandbox')}; to train here, " in done.stdout


def test_without_verl_beside_torch_the_remedy_installs_it_and_the_sandbox_is_still_checked() -> None:
    done = doctor_without("verl")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL versions: not installed: verl\n" in done.stdout
    assert f"remedy: install what is missing: {install_command('verl')}" in done.stdout
    assert [line.split(":")[0][5:] for line in done.stdout.splitlines() if line[:4] in ("ok  ", "FAIL")] == [
        "versions",
        "sandbox",
    ]
