"""Sandbox services for tests: one of each kind, started at its first use and ended with the test process.

Each service holds canaries: secrets in its environment, its token, and files in its home and working directory. No
program in a sandbox may ever see one.
"""

import asyncio
import atexit
import functools
import json
import os
import pwd
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from verl_pivot.sandbox.bubblewrap.privileges import DEFAULT_USER, command_as
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE

SMALL = Limits(wall_seconds=2.0, memory_bytes=128 * MIB)
DEADLINE_SECONDS = 60.0
_BATCH_SECONDS = 300.0
"""Deadline of a batch of programs, which may be hundreds on two busy cores."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_LANGUAGES = """
c: {compile_limits: {wall_seconds: 3.0, cpu_seconds: 3, memory_bytes: 536870912}}
cpp: {compile_limits: {wall_seconds: 3.0, cpu_seconds: 3, memory_bytes: 536870912}}
"""


class Kind(StrEnum):
    """Kind of service: its backend, and the user who starts it."""

    ZYGOTE = "zygote"
    """Backend zygote, started by an ordinary user."""
    BWRAP_EXEC = "bwrap_exec"
    """Backend bwrap_exec, started by an ordinary user."""
    BY_ROOT = "zygote_by_root"
    """Backend zygote, started by root."""
    BWRAP_EXEC_BY_ROOT = "bwrap_exec_by_root"
    """Backend bwrap_exec, started by root; only for tests of features that need root."""
    WITHOUT_PROC = "zygote_without_proc"
    """Backend zygote, started by an ordinary user where a part of /proc is covered: tier T3."""


IS_ROOT = os.geteuid() == 0
KINDS = (Kind.ZYGOTE, Kind.BWRAP_EXEC, *([Kind.BY_ROOT] if IS_ROOT else []))
on_every_kind = pytest.mark.parametrize("kind", KINDS)
on_every_kind_and_tier = pytest.mark.parametrize("kind", [*KINDS, Kind.WITHOUT_PROC])
MASKED = ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", "/proc/bus", "--")
"""Command that covers a part of /proc, as Docker does, so that the kernel lets no user mount another /proc."""
on_zygotes = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Kind.BWRAP_EXEC])


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One running service."""

    url: str
    token: str
    pid: int
    tier: str
    folder: Path
    """Home and working directory of the service."""
    process: subprocess.Popen[bytes]

    def client(self) -> Sandbox:
        return Sandbox(urls=[self.url], token=self.token)

    def run(self, code: str, **options: Any) -> Result:
        """Run one program, by default under SMALL limits."""
        (result,) = self.run_many([Program(code=code, **{"limits": SMALL, **options})])
        return result

    def run_many(self, programs: Iterable[Program]) -> list[Result]:
        async def main() -> list[Result]:
            async with self.client() as sandbox:
                return await sandbox.run_many(programs, deadline_seconds=_BATCH_SECONDS)

        return asyncio.run(main())

    def output(self, code: str, **options: Any) -> str:
        """Output of a program, which must end with status ok and an empty stderr."""
        result = self.run(code, **options)
        assert (result.status, result.stderr) == ("ok", ""), (result.status, result.signal, result.stderr[-2000:])
        return result.stdout

    def log(self) -> str:
        return (self.folder / "service.log").read_text(errors="replace")

    def stop(self) -> None:
        """Ask the service to end; kill it if it does not."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)  # the child itself, or the process that its wrapper runs
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self.folder)


@functools.cache
def service(kind: Kind = Kind.ZYGOTE) -> Service:
    """Service of this kind that all tests share."""
    return start_service(kind)


def start_service(kind: Kind = Kind.ZYGOTE, *arguments: str, lanes: int = 2, wrapper: Sequence[str] = ()) -> Service:
    """Start a service for one test; it ends with this process at the latest.

    Args:
        kind: Backend, and the user who starts it.
        arguments: Further arguments of `verl-pivot sandbox serve`.
        lanes: Number of lanes.
        wrapper: Command that runs the service's command.
    """
    folder = _service_folder()
    token = canary()
    backend = kind.value.removesuffix("_by_root").removesuffix("_without_proc")
    wrapper = MASKED if kind is Kind.WITHOUT_PROC else wrapper
    serve = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "serve", "--backend", backend, "--lanes", str(lanes)]
    serve += ["--languages", str(folder / "languages.yaml"), *arguments]
    if not wrapper:
        serve += ["--die-with-parent", str(os.getpid())]
    command = serve if kind.value.endswith("_by_root") else command_as(DEFAULT_USER, [*wrapper, *serve])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"API_KEY": canary(), TOKEN_VARIABLE: token}
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if readable else b""
    if not line:
        process.kill()
        process.wait()
        process.stdout.close()
        log_text = (folder / "service.log").read_text()
        shutil.rmtree(folder)
        raise RuntimeError(f"the service did not start: {log_text}")
    ready = json.loads(line)
    pid, tier = (ready["pid"], ready["tier"])
    started = Service(url=ready["url"], token=token, pid=pid, tier=tier, folder=folder, process=process)
    atexit.register(lambda: started.stop() if folder.exists() else None)
    return started


def canary() -> str:
    """Random secret, which a program can find by the pattern CANARY without knowing it."""
    return f"canary-{secrets.token_hex(16)}"


CANARY = "canar[y]-[0-9a-f]{32}"
"""A regular expression that matches every canary and not itself."""


def _service_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-", dir="/var/tmp"))
    (folder / "secret.txt").write_text(canary())
    (folder / canary()).touch()
    (folder / "languages.yaml").write_text(_LANGUAGES)
    if IS_ROOT:
        account = pwd.getpwnam(DEFAULT_USER)
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    return folder


MARK = "__import__('ctypes').CDLL(None).prctl(15, {marker!r}.encode(), 0, 0, 0)\n"
"""First line of a program that names its process, so that it is found from outside; forks inherit the name."""


def marked(code: str) -> tuple[str, str]:
    """(marker, program whose processes carry it)."""
    marker = f"m{secrets.token_hex(6)}"
    return marker, MARK.format(marker=marker) + code


def processes_named(marker: str) -> list[int]:
    """Ids of all processes on this machine that carry the marker."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and Path("/proc", entry, "comm").read_text().strip() == marker:
                found.append(int(entry))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def until(is_true: Callable[[], bool], *, seconds: float = 5.0) -> bool:
    """Whether a condition becomes true within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.02)
    return is_true()


def assert_no_survivors(marker: str) -> None:
    assert until(lambda: processes_named(marker) == []), f"still alive: {processes_named(marker)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Process ids of a service with zygotes, by their role."""

    bwraps: tuple[int, ...]
    """bubblewrap's own processes, two per lane."""
    supervisors: tuple[int, ...]
    zygotes: tuple[int, ...]
    shims: tuple[int, ...]
    """First processes of pods."""
    programs: tuple[int, ...]


def parts(running: Service) -> Parts:
    """Process ids of a running service by role, read from /proc."""
    groups: dict[str, list[int]] = {"bwraps": [], "supervisors": [], "zygotes": [], "shims": [], "programs": []}
    for pid in descendants(running.pid):
        try:
            groups[_part(pid)].append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Parts(**{name: tuple(pids) for name, pids in groups.items()})


def _part(pid: int) -> str:
    numbers = _field(pid, "NSpid")  # one per pid namespace, outermost first: each lane has one, and each pod one in it
    if len(numbers) > 2:
        return "shims" if numbers[-1] == "1" else "programs"
    if _field(pid, "Name") == ["bwrap"]:
        return "bwraps"
    (parent,) = _field(pid, "PPid")
    return "supervisors" if _field(int(parent), "Name") == ["bwrap"] else "zygotes"


def _field(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1:]


def use_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every Sandbox that a test makes without URLs use the shared service."""
    running = service()
    monkeypatch.setenv(URLS_VARIABLE, running.url)
    monkeypatch.setenv(TOKEN_VARIABLE, running.token)
