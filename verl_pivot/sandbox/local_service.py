"""Sandbox service that a process starts for itself: restarted if it dies, ended with its last user."""

import atexit
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE

START_SECONDS = 120.0
STOP_SECONDS = 20.0
QUICK_DEATH_SECONDS = 10.0
"""Seconds within which the end of a service counts as a failed start."""
MAX_QUICK_DEATHS = 3
"""Failed starts in a row after which the service stays down."""
_services: dict[tuple[str, ...], "LocalService"] = {}
"""{arguments: service} of this process."""
_lock = threading.Lock()


class LocalService:
    """A child process that serves the sandbox on 127.0.0.1; `acquire` and `release` count its users."""

    def __init__(self, arguments: tuple[str, ...], token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.url = ""
        self.log = Path(tempfile.mkdtemp(prefix="verl-pivot-sandbox-")) / "service.log"
        self.num_users = 0
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._spawning = threading.Lock()
        self._is_stopping = False
        self._is_decided = threading.Event()
        """Event that is set when the first start succeeded or failed."""
        # The kernel kills the child when the thread that started it ends: this thread must live as long as the child.
        self._keeper = threading.Thread(target=self._keep, name="verl-pivot-sandbox", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def wait_ready(self) -> None:
        """Wait until the service answers; raises SandboxError with the end of its log if it did not start."""
        self._is_decided.wait(START_SECONDS)
        if not self.url:
            tail = self.log.read_text(errors="replace")[-2000:].strip() if self.log.exists() else ""
            raise SandboxError(
                f"the local sandbox service did not start: {tail or 'it wrote nothing'} (log: {self.log})"
            )

    def stop(self) -> None:
        with self._spawning:
            self._is_stopping = True
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._keeper.join(STOP_SECONDS)
        if process is not None and process.returncode == 0:
            shutil.rmtree(self.log.parent, ignore_errors=True)

    def _keep(self) -> None:
        num_quick_deaths, port = 0, 0
        while num_quick_deaths < MAX_QUICK_DEATHS:
            started = time.monotonic()
            with self._spawning:
                if self._is_stopping:
                    return
                self._process = process = self._spawn(port)
            assert process.stdout is not None, process.args
            first_line = process.stdout.readline()
            if first_line:
                self.url = json.loads(first_line)["url"]
                port = int(self.url.rpartition(":")[2])  # a restarted service keeps the port that clients know
            self._is_decided.set()
            process.wait()
            process.stdout.close()
            if not self.url:
                return
            num_quick_deaths = num_quick_deaths + 1 if time.monotonic() - started < QUICK_DEATH_SECONDS else 0

    def _spawn(self, port: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "serve", "--port", str(port)]
        command += ["--die-with-parent", str(os.getpid()), *self._arguments]
        environment = {**os.environ, TOKEN_VARIABLE: self.token}
        with self.log.open("a") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C then reaches only the parent, which stops the service cleanly
            )


def running() -> tuple[LocalService, ...]:
    """Services of this process."""
    with _lock:
        return tuple(_services.values())


def acquire(arguments: Sequence[str]) -> LocalService:
    """Running service of this process with these arguments; the first call starts it. Blocks while it starts.

    Raises:
        SandboxError: If it does not start.
    """
    key = tuple(arguments)
    with _lock:
        service = _services.get(key)
        if service is None:
            service = _services[key] = LocalService(key)
        service.num_users += 1
    try:
        service.wait_ready()
    except SandboxError:
        release(service)
        raise
    return service


def release(service: LocalService) -> None:
    """Give a service back; it ends with its last user. Blocks while it ends."""
    with _lock:
        service.num_users -= 1
        if service.num_users > 0:
            return
        for key in [key for key, value in _services.items() if value is service]:
            del _services[key]
    service.stop()


def _stop_all() -> None:
    with _lock:
        services = list(_services.values())
        _services.clear()
    for service in services:
        service.stop()


def _forget() -> None:
    """Forget the services in a forked child: they belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _services.clear()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget)
