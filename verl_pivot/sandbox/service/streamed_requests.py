"""Requests whose output is sent while they run -> Executions; a piece waits until the one before is written."""

import time

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import OnOutput, Output, Result
from verl_pivot.sandbox.failures import Failure
from verl_pivot.sandbox.service.backend import Backend
from verl_pivot.sandbox.service.executions import Execution
from verl_pivot.sandbox.service.outbox import Outbox
from verl_pivot.sandbox.service.session_table import SessionTable
from verl_pivot.sandbox.wire import CellBody, StreamBody, TypeBody, check_envelope, decode_program, encode_output

MAX_TYPED_CHARACTERS = 64 * 1024
"""Most characters of one request to type."""


class StreamedRequests:
    """The requests of one service whose output is sent while they run."""

    def __init__(self, backend: Backend, sessions: SessionTable) -> None:
        self._backend = backend
        self._sessions = sessions
        self._receivers: dict[tuple[str, str], OnOutput] = {}
        """{(client, id) of a running program: receiver of its output}."""

    def program(self, body: StreamBody, num_bytes: int, outbox: Outbox) -> Execution:
        """Execution of a program, whose output goes into `outbox`; `num_bytes` is the size of the request.

        Raises:
            SandboxRequestError: If the program is not allowed.
        """
        check_envelope(body.client, body.id, body.deadline_seconds)
        text = bytes(body.program)
        program = decode_program(text, "the program")
        receiver = _receiver(body.id, outbox)

        async def start() -> Result:
            self._receivers[body.client, body.id] = receiver
            try:
                return await self._backend.run(program, receiver)
            finally:
                del self._receivers[body.client, body.id]

        return Execution(
            client=body.client,
            id=body.id,
            fingerprint=hash(("stream", text)),
            num_bytes=num_bytes,
            deadline=time.monotonic() + body.deadline_seconds,
            start=start,
        )

    def cell(self, session_id: str, body: CellBody, outbox: Outbox) -> Execution | Failure:
        """Execution of a cell, whose output goes into `outbox`; a Failure if the session cannot run it now.

        Raises:
            SandboxRequestError: If the cell is not allowed.
        """
        return self._sessions.run_cell(session_id, body, _receiver(body.id, outbox))

    def type_in(self, body: TypeBody) -> bool:
        """Type into the terminal of a program; returns whether the program runs.

        Raises:
            SandboxRequestError: If the request is not allowed, or the text is too long.
        """
        check_envelope(body.client, body.id, 1.0)
        if len(body.text) > MAX_TYPED_CHARACTERS:
            raise SandboxRequestError(
                f"{len(body.text)} characters to type are more than {MAX_TYPED_CHARACTERS}; send fewer at a time"
            )
        receiver = self._receivers.get((body.client, body.id))
        if receiver is not None:
            self._backend.type_in(receiver, body.text)
        return receiver is not None


def _receiver(request_id: str, outbox: Outbox) -> OnOutput:
    async def put(output: Output) -> None:
        await outbox.put_more(encode_output(request_id, output))

    return put
