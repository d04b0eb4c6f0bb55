"""One request of a session -> its answer; it is sent again only if that cannot run anything twice."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.cell_socket import CellSocket
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.nodes import Node, backoff_seconds, choose_node
from verl_pivot.sandbox.transport import RequestRefusedError, Transport, TransportError
from verl_pivot.sandbox.wire import MAX_CELL_BYTES, CellBody, ForkBody, Line, OpenBody, StreamBody, encode

MAX_TRANSPORT_FAILURES = 3
"""Failed connections in a row after which a request is given up: a session cannot move to another node."""


Body = OpenBody | CellBody | ForkBody | StreamBody
Exchange = Callable[[Node, str, bytes], Awaitable[Line]]
"""(node, path of the URL, request) -> the answer; raises TransportError if the connection breaks off."""


class NodeAnswer(NamedTuple):
    """The answer to one request, and the node that gave it."""

    node: Node
    line: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSender:
    """Sends the requests of all sessions of one client."""

    client: str
    transport: Transport
    rng: random.Random

    async def send(
        self,
        nodes: Sequence[Node],
        path: str,
        body: Body,
        retried: frozenset[FailureKind],
        socket: CellSocket | None = None,
        exchange: Exchange | None = None,
        limit: asyncio.Timeout | None = None,
    ) -> NodeAnswer:
        """Answer of the first node that takes the request; every attempt carries the same id.

        Args:
            nodes: Nodes that may serve the request.
            path: Path of the request's URL.
            body: The request.
            retried: Failures after which the request is sent again; any other failure is an answer.
            socket: WebSocket that takes the request instead of a POST, if it is free and the request is small enough.
            exchange: Sends one attempt; None for a POST with one line of answer.
            limit: Deadline that the caller may move; None for the deadline in `body`.

        Raises:
            TransportError: If the connection failed MAX_TRANSPORT_FAILURES times in a row.
            SandboxError: If there was no answer until the deadline.
        """
        deadline = time.monotonic() + body.deadline_seconds
        num_attempts, num_broken, problem = 0, 0, "no node is ready"
        refused_by: set[Node] = set()
        try:
            async with limit or asyncio.timeout_at(deadline):
                while True:
                    node = await self._choose(nodes, refused_by)
                    num_attempts += 1
                    retry_after = None
                    try:
                        line = await self._attempt(node, path, body, deadline, socket, exchange)
                        if line.failure is None or line.failure.kind not in retried:
                            return NodeAnswer(node, line)
                        problem, num_broken = f"{node.url}: {line.failure.kind}: {line.failure.message}", 0
                        retry_after = self._refused(node, line.failure, nodes, refused_by)
                    except TransportError as error:
                        problem, num_broken = f"{node.url}: {error}", num_broken + 1
                        self.transport.failed(node, str(error))
                        if num_broken >= MAX_TRANSPORT_FAILURES:
                            raise
                    await asyncio.sleep(backoff_seconds(num_attempts, retry_after, self.rng))
        except TimeoutError as error:
            message = f"no answer within {body.deadline_seconds:g} s in {num_attempts} attempts; {problem}"
            raise SandboxError(message) from error

    def _refused(self, node: Node, failure: Failure, nodes: Sequence[Node], refused_by: set[Node]) -> float | None:
        """Note a refusal; returns the seconds that the node asks us to wait, None if another node can be tried now."""
        now = time.monotonic()
        node.refused(now, now)
        refused_by.add(node)
        has_other = any(other.is_ready and other not in refused_by for other in nodes)
        return None if has_other else failure.retry_after_seconds

    async def _choose(self, nodes: Sequence[Node], refused_by: set[Node]) -> Node:
        """A ready node that has not refused this request: a full node may look the least loaded to this client."""
        if len(nodes) == 1 and nodes[0].slots:
            return nodes[0]
        await self.transport.wait_ready(nodes)
        ready = [node for node in nodes if node.is_ready]
        if refused_by.issuperset(ready):
            refused_by.clear()
        return choose_node([node for node in ready if node not in refused_by], self.rng, time.monotonic())

    async def _attempt(
        self,
        node: Node,
        path: str,
        body: Body,
        deadline: float,
        socket: CellSocket | None,
        exchange: Exchange | None,
    ) -> Line:
        seconds_left = max(deadline - time.monotonic(), 0.001)
        data = encode(msgspec.structs.replace(body, deadline_seconds=seconds_left))
        if exchange is not None:
            return await exchange(node, path, data)
        if socket is not None and socket.is_free and len(data) <= MAX_CELL_BYTES:
            return await socket.send(data)
        try:
            return await self.transport.post(node, path, data)
        except RequestRefusedError as error:
            return Line(failure=error.failure)
