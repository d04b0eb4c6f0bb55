"""Programs -> futures of Results, with batching, flow control, retries, deadlines and cancellation."""

import asyncio
import itertools
import math
import random
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import Result
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.nodes import Node, backoff_seconds, choose_node
from verl_pivot.sandbox.transport import RequestRefusedError, Transport, TransportError
from verl_pivot.sandbox.wire import MAX_BODY_BYTES, MAX_ITEMS, Line, encode_batch, encode_item

LINGER_SECONDS = 0.002
"""Seconds that a batch with room waits for more programs while other batches are in flight."""
MAX_OUTSTANDING = 8192
"""Most calls without an outcome; further ones wait in `submit`."""
MAX_BATCHES = 128
"""Most connections to one node; when they are in use, programs wait and batches get fuller."""
MAX_PROGRAM_BYTES = MAX_BODY_BYTES - 4096
MAX_SANDBOX_ERRORS = 4
"""Sandbox failures after which a program is given up: the program itself may break the sandbox."""
MAX_NOTES = 4
"""Most attempts that an error message describes; the latest are kept."""


@dataclass(slots=True, eq=False)
class Call:
    """One program on its way to a result."""

    id: str
    program: bytes
    deadline: float
    """Time on the monotonic clock."""
    deadline_seconds: float
    future: "asyncio.Future[Result]"
    expiry: asyncio.TimerHandle | None = None
    batch: "SentBatch | None" = None
    """Batch that carries the call; None unless the call is in flight."""
    num_attempts: int = 0
    num_sandbox_errors: int = 0
    notes: list[str] = field(default_factory=list)
    """Problems of the latest attempts, each with its node."""

    def seconds_left(self) -> float:
        return max(self.deadline - time.monotonic(), 0.001)

    def note(self, url: str, problem: str) -> None:
        self.notes = [*self.notes[-MAX_NOTES + 1 :], f"{url}: {problem}"]

    def error(self, what: str) -> SandboxError:
        tried = "; ".join(self.notes) or "no node accepted it"
        return SandboxError(f"{what}; {self.num_attempts} attempts, the latest: {tried}")


@dataclass(slots=True, eq=False)
class SentBatch:
    """One batch in flight."""

    node: Node
    calls: dict[str, Call]
    """{id: call} of the calls without an answer."""
    sent_at: float
    task: "asyncio.Task[None] | None" = None


class Sender:
    """Sends the programs of one client, in batches, to its nodes."""

    def __init__(self, client: str, nodes: Sequence[Node], transport: Transport, rng: random.Random) -> None:
        self._client = client
        self._nodes = nodes
        self._transport = transport
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count()
        self._room = asyncio.Semaphore(MAX_OUTSTANDING)
        self._pending: OrderedDict[str, Call] = OrderedDict()
        self._lingering: asyncio.TimerHandle | None = None
        self._sent: set[SentBatch] = set()
        self._unwanted: dict[Node, list[tuple[SentBatch, str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        transport.on_ready = self.pump

    async def submit(self, program: bytes, deadline: float, deadline_seconds: float) -> "asyncio.Future[Result]":
        """Queue an encoded program; waits while MAX_OUTSTANDING calls are under way. Returns a future of its Result.

        Raises:
            SandboxRequestError: If the program is too large.
            SandboxError: If the deadline passed before there was room.
        """
        if len(program) > MAX_PROGRAM_BYTES:
            raise SandboxRequestError(f"a program of {len(program)} bytes as JSON is larger than {MAX_PROGRAM_BYTES}")
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        except TimeoutError as error:
            message = f"no result within {deadline_seconds:g} s: {MAX_OUTSTANDING} earlier calls were not finished"
            raise SandboxError(message) from error
        call = Call(f"{next(self._ids)}", program, deadline, deadline_seconds, self._loop.create_future())
        call.expiry = self._loop.call_at(deadline, self._expire, call)
        call.future.add_done_callback(lambda _: self._retire(call))
        self._pending[call.id] = call
        self.pump()
        return call.future

    async def close(self) -> None:
        """Cancel all calls that are under way."""
        for call in [*self._pending.values(), *(call for sent in self._sent for call in sent.calls.values())]:
            call.future.cancel()
        if self._lingering is not None:
            self._lingering.cancel()
        await asyncio.sleep(0)  # the futures' callbacks stop their batches
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def pump(self, *, lingered: bool = False) -> None:
        """Send the pending calls that nodes have room for.

        Args:
            lingered: Send even a batch that is not full; otherwise it waits LINGER_SECONDS while others are in flight.
        """
        while self._pending:
            ready = [node for node in self._nodes if node.is_ready]
            free = [node for node in ready if node.has_room(len(self._pending)) and node.num_batches < MAX_BATCHES]
            if not free:
                return
            node = choose_node(free, self._rng, time.monotonic())
            share = math.ceil(len(self._pending) / len(ready))
            size = min(share, node.room, MAX_ITEMS)
            if size < MAX_ITEMS and node.num_in_flight and not lingered:
                self._linger()
                return
            self._send(node, self._take(size))

    def _linger(self) -> None:
        if self._lingering is None:
            self._lingering = self._loop.call_later(LINGER_SECONDS, self._lingered)

    def _lingered(self) -> None:
        self._lingering = None
        self.pump(lingered=True)

    def _take(self, size: int) -> dict[str, Call]:
        taken: dict[str, Call] = {}
        num_bytes = 0
        while self._pending and len(taken) < size:
            call = next(iter(self._pending.values()))
            num_bytes += len(call.program) + 256
            if taken and num_bytes > MAX_BODY_BYTES:
                break
            taken[call.id] = self._pending.pop(call.id)
        return taken

    def _send(self, node: Node, calls: dict[str, Call]) -> None:
        sent = SentBatch(node, calls, time.monotonic())
        for call in calls.values():
            call.batch = sent
            call.num_attempts += 1
        node.num_in_flight += len(calls)
        node.num_batches += 1
        self._sent.add(sent)
        sent.task = self._spawn(self._exchange(sent))

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _exchange(self, sent: SentBatch) -> None:
        """Send one batch and read its answer to the end."""
        node = sent.node
        items = [encode_item(call.id, call.program, call.seconds_left()) for call in sent.calls.values()]
        try:
            async for lines in self._transport.post_batch(node, encode_batch(self._client, items)):
                for line in lines:
                    self._answered(sent, line)
                self.pump()
            problem = "the answer ended early" if sent.calls else ""
        except TransportError as error:
            problem = str(error)
        except RequestRefusedError as error:
            problem = ""
            for call in self._drop(sent):
                self._failed(call, sent, error.failure)
        finally:
            node.num_batches -= 1
            self._sent.discard(sent)
            left = self._drop(sent)
        if problem:
            self._transport.failed(node, problem)
        for call in left:
            call.note(node.url, problem)
            self._retry(call, None)
        self.pump()

    def _drop(self, sent: SentBatch) -> list[Call]:
        """Take the calls without an answer out of a batch; returns them."""
        left = list(sent.calls.values())
        sent.calls.clear()
        sent.node.num_in_flight -= len(left)
        for call in left:
            call.batch = None
        return left

    def _answered(self, sent: SentBatch, line: Line) -> None:
        """Give a call its answer, matched by id; a line with an unknown id is ignored."""
        call = sent.calls.pop(line.id or "", None)
        if call is None:
            return
        node = sent.node
        call.batch = None
        if line.result is not None:
            node.window.answered(node.num_in_flight)
            call.future.set_result(line.result)
        elif line.failure is not None:
            self._failed(call, sent, line.failure)
        else:
            call.note(node.url, "an answer without result or failure")
            self._retry(call, None)
        node.num_in_flight -= 1

    def _failed(self, call: Call, sent: SentBatch, failure: Failure) -> None:
        node = sent.node
        call.note(node.url, f"{failure.kind}: {failure.message}")
        if failure.kind.is_request_error:
            call.future.set_exception(SandboxRequestError(failure.message))
            return
        match failure.kind:
            case FailureKind.OVERLOADED:
                node.refused(sent.sent_at, time.monotonic())
            case FailureKind.SHUTTING_DOWN:
                self._transport.trip(node, failure.message)
            case FailureKind.SANDBOX_ERROR:
                call.num_sandbox_errors += 1
        if call.num_sandbox_errors >= MAX_SANDBOX_ERRORS:
            call.future.set_exception(call.error("the sandbox failed repeatedly on this program"))
        else:
            others = any(other.is_ready and other.room > 0 for other in self._nodes if other is not node)
            self._retry(call, None if others else failure.retry_after_seconds)

    def _retry(self, call: Call, retry_after: float | None) -> None:
        if not call.future.done():
            self._loop.call_later(backoff_seconds(call.num_attempts, retry_after, self._rng), self._requeue, call)

    def _requeue(self, call: Call) -> None:
        """Put a call before those that are pending, since it was submitted earlier."""
        if not call.future.done():
            self._pending[call.id] = call
            self._pending.move_to_end(call.id, last=False)
            self.pump()

    def _expire(self, call: Call) -> None:
        if not call.future.done():
            waiting = [f"{node.url}: {node.last_problem}" for node in self._nodes if node.last_problem]
            call.notes = call.notes or waiting
            call.future.set_exception(call.error(f"no result within {call.deadline_seconds:g} s"))

    def _retire(self, call: Call) -> None:
        """Forget a call that has its outcome, or whose caller stopped waiting."""
        if call.expiry is not None:
            call.expiry.cancel()
        self._room.release()
        self._pending.pop(call.id, None)
        sent = call.batch
        if sent is not None and sent.calls.pop(call.id, None) is not None:
            call.batch = None
            sent.node.num_in_flight -= 1
            self._stop(sent, call.id)

    def _stop(self, sent: SentBatch, call_id: str) -> None:
        """End a program at its node: by closing the connection if it was the batch's last, else by a cancel request."""
        if not sent.calls and sent.task is not None:
            sent.task.cancel()
            return
        if not self._unwanted:
            self._loop.call_soon(self._send_cancels)
        self._unwanted.setdefault(sent.node, []).append((sent, call_id))

    def _send_cancels(self) -> None:
        for node, unwanted in self._unwanted.items():
            ids = [call_id for sent, call_id in unwanted if sent.calls]
            if ids:
                self._spawn(self._transport.post_cancel(node, self._client, ids))
        self._unwanted = {}
