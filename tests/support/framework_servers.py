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
def served(python: str, script: str, ready: str) -> Iterator[str]:
    """Address of a server that runs for the time of a test.

    Args:
        python: Interpreter that has the framework's package.
        script: File of tests/support that serves on the port in its first argument.
        ready: Path that answers once the server is ready.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([python, str(ROOT / "tests" / "support" / script), str(port)])
    try:
        _wait_for(f"http://127.0.0.1:{port}{ready}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


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
