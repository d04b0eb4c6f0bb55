"""Servers of other frameworks, each in the interpreter that has its package."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.paths import ROOT

_START_SECONDS = 120


@contextmanager
def served(python: str, script: str, ready: str, *arguments: str) -> Iterator[str]:
    """Run a server until the block ends; yields its address.

    Args:
        python: Interpreter that has the framework's package.
        script: File of tests/support that serves on the port in its first argument.
        ready: Path that answers once the server is ready.
        arguments: Further arguments of the script.
    """
    port = free_port()
    process = subprocess.Popen([python, str(ROOT / "tests" / "support" / script), str(port), *arguments])
    try:
        _wait_for(f"http://127.0.0.1:{port}{ready}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of the loopback device at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(url, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"{url} did not answer; exit code {process.poll()}")
