"""SandboxFusion's `/run_code` in our service: a request's text -> Execution, and the line that answers it -> HTTP."""

import time
from uuid import uuid4

import msgspec
from aiohttp import web

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.failures import FailureKind
from verl_pivot.sandbox.sandbox_fusion import RunCodeAnswer, RunCodeBody, RunStatus, run_code_answer
from verl_pivot.sandbox.service.backend import Backend
from verl_pivot.sandbox.service.executions import Execution
from verl_pivot.sandbox.wire import decode_line

QUEUE_SECONDS = 8.0
"""Seconds that a request may wait for a slot: verl's client waits 10 s beyond the timeouts, and tries again on 504."""
_NO_CORE = "the machine had no core for the program within its time limit"
_BUSY = frozenset({FailureKind.OVERLOADED, FailureKind.QUEUE_EXPIRED, FailureKind.SHUTTING_DOWN})


def run_code_execution(program: Program, num_bytes: int, remote: str | None, backend: Backend) -> Execution:
    """Execution of a request; the requests of one address are one client's.

    Args:
        program: Program to run.
        num_bytes: Size of the request.
        remote: Address that the request came from.
        backend: Backend that runs the program.
    """
    return Execution(
        client=f"run_code {remote}",
        id=uuid4().hex,
        fingerprint=0,
        num_bytes=num_bytes,
        deadline=time.monotonic() + QUEUE_SECONDS,
        start=lambda: backend.run(program),
    )


def run_code_response(body: RunCodeBody, line: bytes) -> web.Response:
    """HTTP answer: 200 with a status of the protocol, 422 for a mistake of the caller, 504 to ask for a retry."""
    outcome = decode_line(line)
    if outcome.result is not None and outcome.result.had_no_core:
        return _json(RunCodeAnswer(status=RunStatus.SANDBOX_ERROR, message=_NO_CORE), status=504)
    if outcome.result is not None:
        return _json(run_code_answer(body, outcome.result))
    assert outcome.failure is not None, line
    if outcome.failure.kind.is_request_error:
        return refusal(SandboxRequestError(outcome.failure.message))
    message = f"{outcome.failure.kind}: {outcome.failure.message}"
    return _json(
        RunCodeAnswer(status=RunStatus.SANDBOX_ERROR, message=message),
        status=504 if outcome.failure.kind in _BUSY else 200,
    )


def refusal(error: SandboxRequestError) -> web.Response:
    """Answer to a request that is not allowed, in the form of SandboxFusion's."""
    return _json({"detail": str(error)}, status=422)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
