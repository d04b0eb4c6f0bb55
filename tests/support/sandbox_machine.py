"""Mark for tests that need a machine with sandboxes, and a backend for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import Program, Result
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.bwrap_backend import BwrapExecBackend


def why_no_sandbox() -> str:
    """Reason why this machine cannot run sandboxes; "" if it can."""
    try:
        found = probe(PythonView.of())
    except ConfigError as error:
        return str(error)
    return "" if found.tier <= Tier.T3 else "; ".join(obstacle.what for obstacle in found.obstacles)


FORKS = """
import os, time
count = 0
try:
    for _ in range(60):  # were the limit not to hold, this would still end
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        count += 1
except BlockingIOError:
    print(count)
"""
"""Program that prints how many processes it could start."""

_REASON = why_no_sandbox()
needs_sandbox = pytest.mark.skipif(bool(_REASON), reason=_REASON)


@asynccontextmanager
async def bwrap_backend(num_slots: int = 2) -> AsyncIterator[BwrapExecBackend]:
    backend = BwrapExecBackend(BackendSettings(backend="bwrap_exec", num_slots=num_slots))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def run(program: Program) -> Result:
    """Run a program on a backend of its own; skips the test if the language is not installed."""
    async with bwrap_backend() as backend:
        if program.language in backend.languages.missing:
            pytest.skip(f"{backend.languages.missing[program.language]} is not installed")
        return await backend.run(program)
