"""Root becomes an ordinary user, who can read Python's folders but no others that are closed to that user."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.privileges import become, command_as, drop_root, is_root

needs_root = pytest.mark.skipif(not is_root(), reason="only root can become someone else")


def run(*command: str, show: tuple[Path, ...] = (ROOT,)) -> subprocess.CompletedProcess[str]:
    """Run Python as nobody, in the project's folder."""
    return subprocess.run(
        command_as("nobody", [sys.executable, *command], show=show),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "CANARY": "kept"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as root, in the project's folder."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


STATE = """
import os, numpy
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(os.getuid() != 0, os.getgid() != 0, os.getgroups(), status["CapPrm"], status["CapEff"], status["NoNewPrivs"])
print(os.environ["CANARY"], os.path.exists("/proc/self/environ"), len(open("/proc/self/environ").read()) > 0)
"""


@needs_root
def test_the_dropped_process_has_no_privilege_and_imports_numpy() -> None:
    done = run("-c", STATE)

    nothing = "0" * 16
    assert done.stdout == f"True True [] {nothing} {nothing} 1\nkept True True\n", done.stderr


@needs_root
def test_of_a_closed_folder_only_what_python_needs_is_seen(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "a" / "needed").mkdir(parents=True)
    (closed / "a" / "needed" / "file").write_text("seen")
    (closed / "a" / "secret").write_text("secret")
    closed.chmod(0o700)
    for folder in tmp_path.parents:  # pytest's own folders are closed too
        if folder.name.startswith("pytest"):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    look = f"import os; print([(path, files) for path, _, files in os.walk({str(closed)!r})])"

    done = run("-c", look, show=(ROOT, closed / "a" / "needed"))

    seen = [(str(closed), []), (f"{closed}/a", []), (f"{closed}/a/needed", ["file"])]
    assert done.stdout == f"{seen}\n", done.stderr
    assert (closed / "a" / "secret").read_text() == "secret"


@needs_root
def test_root_files_beneath_a_closed_home_stay_out_of_reach() -> None:
    if Path("/root").stat().st_mode & 0o001:
        pytest.skip("this machine's /root is open to all")
    allowed = {
        Path(path).parts[2] for path in (sys.base_prefix, sys.prefix, str(ROOT)) if Path("/root") in Path(path).parents
    }

    done = run("-c", "import os; print(*(os.listdir('/root') if os.access('/root', os.R_OK) else ()))")

    assert set(done.stdout.split()) <= allowed, done.stderr


@needs_root
@needs_sandbox
def test_the_dropped_process_runs_sandboxes_and_its_limit_on_processes_holds() -> None:
    code = """
import asyncio
from tests.support.sandbox_machine import FORKS, bwrap_backend
from verl_pivot.sandbox.execution import Limits, Program

async def main():
    async with bwrap_backend() as backend:
        program = Program(code=FORKS, limits=Limits(num_processes=9))
        results = await asyncio.gather(backend.run(program), backend.run(program))
        print(*[(result.status.value, result.stdout) for result in results])

asyncio.run(main())
"""
    done = run("-c", code)

    assert done.stdout == "('ok', '8\\n') ('ok', '8\\n')\n", done.stderr


RESTART = """
import os, sys
from verl_pivot.sandbox.bubblewrap.privileges import drop_root
drop_root()
print(os.getuid() != 0, sys.argv[1:], sys.flags.dev_mode, sorted(os.environ), os.read(int(sys.argv[1]), 9))
"""


@needs_root
def test_the_restart_keeps_arguments_options_and_descriptors_and_no_variable_that_may_be_a_key(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("42")
    with open(tmp_path / "data", "rb") as stream:
        stream_fd = stream.fileno()
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", RESTART, str(stream_fd), "a b"],
            cwd=ROOT,
            env={
                **{"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
                **{"HF_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "VERL_PIVOT_SANDBOX_TOKEN": "secret"},
            },
            pass_fds=[stream_fd],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    kept = ["LANG", "PATH", "PYTHONPATH"]
    assert done.stdout == f"True ['{stream_fd}', 'a b'] True {kept} b'42'\n", done.stderr


@needs_root
@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("root", "user 'root' is root, but the sandbox must not run as root"),
        ("no-such", "user 'no-such' does not exist"),
    ],
)
def test_a_user_that_does_not_exist_or_is_root_is_refused(user: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        become(user)


@needs_root
@needs_sandbox
def test_root_that_may_not_mount_is_told_what_to_do(tmp_path: Path) -> None:
    """Run as root without CAP_SYS_ADMIN, as in a container; the error names the remedy."""
    closed = tmp_path / "closed"
    (closed / "needed").mkdir(parents=True)
    closed.chmod(0o700)
    container = ["bwrap", "--dev-bind", "/", "/", "--cap-drop", "CAP_SYS_ADMIN", "--"]

    done = run_command([*container, *command_as("nobody", ["true"], show=[closed / "needed"])])

    assert done.returncode == 1
    assert "root cannot mount here without CAP_SYS_ADMIN: put the Python environment where all users" in done.stderr


@needs_root
@needs_sandbox
def test_root_of_a_namespace_that_has_no_other_user_is_told_what_to_do() -> None:
    container = ["bwrap", "--unshare-user", "--uid", "0", "--dev-bind", "/", "/", "--"]

    done = run_command([*container, *command_as("nobody", ["true"])])

    assert done.returncode == 1
    assert "start as an ordinary user" in done.stderr


@needs_root
@needs_sandbox
def test_an_ordinary_user_that_its_namespace_calls_root_is_no_root() -> None:
    ask = "from verl_pivot.sandbox.bubblewrap.privileges import is_root; import os; print(os.geteuid(), is_root())"

    inside = ["bwrap", "--unshare-user", "--uid", "0", "--dev-bind", "/", "/", "--", sys.executable, "-c", ask]
    done = run_command(command_as("nobody", inside, show=[ROOT]))

    assert done.stdout == "0 False\n", done.stderr


@pytest.mark.skipif(is_root(), reason="root would be restarted")
def test_an_ordinary_user_stays_the_same_user() -> None:
    drop_root()
