"""Program -> its output while it runs, and its Result; it is sent again only while no output has come."""

from collections.abc import Sequence
from uuid import uuid4

import msgspec

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import OnOutput, Output, Program, Result
from verl_pivot.sandbox.failures import FailureKind
from verl_pivot.sandbox.nodes import Node
from verl_pivot.sandbox.session_sender import SessionSender
from verl_pivot.sandbox.transport import TransportError
from verl_pivot.sandbox.wire import Line, StreamBody, TypeBody, encode

_RETRIED = frozenset({FailureKind.OVERLOADED, FailureKind.SHUTTING_DOWN, FailureKind.SANDBOX_ERROR})
"""Failures after which the program is sent again, if none of its output has come."""


class StreamedProgram:
    """One program; call `run` once."""

    def __init__(self, program: Program, deadline_seconds: float) -> None:
        self._has_terminal = program.terminal is not None
        self._program = encode(program)
        self._deadline_seconds = deadline_seconds
        self._id = uuid4().hex
        self._sender: SessionSender | None = None
        self._node: Node | None = None
        """Node that the program was sent to last."""
        self._has_begun = False
        """Whether some of its output has come."""

    async def run(self, sender: SessionSender, nodes: Sequence[Node], on_output: OnOutput) -> Result:
        """Run the program on the first of `nodes` that takes it.

        Raises:
            SandboxRequestError: If the program is not allowed.
            SandboxError: If no node came to a result until the deadline, or a node failed after output had come.
        """
        self._sender = sender
        body = StreamBody(
            client=sender.client,
            id=self._id,
            deadline_seconds=self._deadline_seconds,
            program=msgspec.Raw(self._program),
        )

        async def receive(output: Output) -> None:
            self._has_begun = True
            await on_output(output)

        async def exchange(node: Node, path: str, data: bytes) -> Line:
            self._node = node
            try:
                line = await sender.transport.stream(node, path, data, receive)
            except TransportError as error:
                if self._has_begun:
                    raise SandboxError(f"the connection to {node.url} broke while the program ran: {error}") from error
                raise
            if line.failure is not None and self._has_begun:
                raise line.failure.as_error()
            return line

        try:
            _, line = await sender.send(nodes, "/v1/stream", body, _RETRIED, exchange=exchange)
        except TransportError as error:
            raise SandboxError(f"the program could not be run: {error}") from error
        return _result(line)

    async def write(self, text: str) -> bool:
        """Type into the program's terminal; returns whether the program runs.

        Raises:
            SandboxRequestError: If the program has no terminal.
        """
        if not self._has_terminal:
            raise SandboxRequestError("the program has no terminal to type into: give it one by terminal=Terminal()")
        if self._sender is None or self._node is None:
            return False
        body = encode(TypeBody(client=self._sender.client, id=self._id, text=text))
        try:
            return await self._sender.transport.type_in(self._node, body)
        except TransportError as error:
            raise SandboxError(f"the text could not be typed into the terminal: {error}") from error


def _result(line: Line) -> Result:
    if line.failure is not None:
        raise line.failure.as_error()
    if line.result is None:
        raise SandboxError("the service answered without a result; are client and service the same version?")
    return line.result
