"""Accepted requests -> lines of answers: queued, started when a slot is free, and run once per (client, id)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError, UnsupportedLanguageError
from verl_pivot.sandbox.execution import Result, SessionState
from verl_pivot.sandbox.failures import Failure, FailureKind, ServiceBound
from verl_pivot.sandbox.service.metrics import Metrics
from verl_pivot.sandbox.service.outbox import KeptLine, KeptResults, Outbox
from verl_pivot.sandbox.service.request_queue import ByteBudget, FairQueue, ServiceRate, num_ahead, retry_after_seconds
from verl_pivot.sandbox.service.settings import ServiceLimits
from verl_pivot.sandbox.wire import encode_line

logger = logging.getLogger(__name__)
Outcome = Result | SessionState
Start = Callable[[], Awaitable[Outcome | Failure]]


@dataclass(slots=True, kw_only=True, eq=False)
class Execution:
    """One request, from its acceptance to its outcome."""

    client: str
    id: str
    fingerprint: int
    """Hash of the request's content: the same id with other content is refused."""
    num_bytes: int
    """Size of the request."""
    deadline: float
    """Latest start, on the monotonic clock."""
    start: Start
    arrived: float = field(default_factory=time.monotonic)
    outboxes: list[Outbox] = field(default_factory=list)
    """Outboxes of the HTTP requests that wait for the outcome."""
    task: asyncio.Task[Outcome | Failure] | None = None
    """Task that runs the request; None while it waits."""
    stopped_for: Failure | None = None
    """Failure because of which the request was stopped; None if it was not stopped."""

    @property
    def key(self) -> tuple[str, str]:
        return self.client, self.id


class ExecutionTable:
    """Every request that is accepted and not answered yet, and the backend's slots."""

    def __init__(self, num_slots: int, limits: ServiceLimits, metrics: Metrics) -> None:
        self.num_slots = num_slots
        self.budget = ByteBudget(limits.max_bytes)
        self.num_running = 0
        self.node = ""
        """Name of this node in results."""
        self._limits = limits
        self._metrics = metrics
        self._queue: FairQueue[Execution] = FairQueue()
        self._live: dict[tuple[str, str], Execution] = {}
        self._kept = KeptResults(limits)
        self._rate = ServiceRate(num_slots=num_slots)
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def wait_seconds(self) -> float:
        """Expected time in the queue for a request that came now."""
        return self._rate.wait_seconds(len(self._queue))

    def is_live(self, client: str, request_id: str) -> bool:
        """Whether a request waits or runs, and is not being stopped."""
        execution = self._live.get((client, request_id))
        return execution is not None and execution.stopped_for is None

    def submit(self, execution: Execution, outbox: Outbox) -> None:
        """Put the answer into `outbox` once there is an outcome; at once if it is refused, or answered already."""
        earlier = self._live.get(execution.key) or self._kept.get(execution.key, execution.arrived)
        if earlier is None:
            self._admit(execution, outbox)
        elif earlier.fingerprint != execution.fingerprint:
            message = f"id {execution.id!r} was used for another program; give each request its own id"
            self.refuse(execution.id, Failure(kind=FailureKind.INVALID_REQUEST, message=message), outbox)
        elif isinstance(earlier, KeptLine):
            outbox.put(earlier.line)
        elif earlier.stopped_for:
            self.refuse(execution.id, _overloaded("an earlier attempt of this request is being stopped", 0.0), outbox)
        else:
            earlier.outboxes.append(outbox)

    def refuse(self, request_id: str | None, failure: Failure, outbox: Outbox) -> None:
        """Answer a request with a failure."""
        self._metrics.failed(failure)
        outbox.put(encode_line(request_id, failure))

    def leave(self, outbox: Outbox, client: str, ids: Iterable[str]) -> None:
        """Give up an outbox whose reader has gone: stop those of its requests for which no other outbox waits."""
        for request_id in ids:
            execution = self._live.get((client, request_id))
            if execution is not None and outbox in execution.outboxes:
                execution.outboxes.remove(outbox)
            if execution is not None and not execution.outboxes:
                self._stop(execution, Failure(kind=FailureKind.CANCELLED, message="the connection was closed"))

    def cancel(self, client: str, ids: Iterable[str]) -> int:
        """Stop the requests with these ids that are not answered yet; returns their number."""
        found = [live for request_id in ids if (live := self._live.get((client, request_id)))]
        for execution in found:
            self._stop(execution, Failure(kind=FailureKind.CANCELLED, message="cancelled by the client"))
        return len(found)

    async def drain(self, seconds: float) -> None:
        """Accept no more requests, refuse those that wait, and stop those that have not ended after `seconds`."""
        self._draining = True
        while self._queue:
            self._conclude(self._queue.pop(), _shutting_down())
        if not await self._wait_idle(seconds):
            for execution in list(self._live.values()):
                self._stop(execution, _shutting_down())
            await self._wait_idle(seconds=10.0)

    async def _wait_idle(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _admit(self, execution: Execution, outbox: Outbox) -> None:
        failure = self._refusal(execution)
        if failure is not None:
            self.refuse(execution.id, failure, outbox)
            return
        self.budget.add(execution.num_bytes)
        execution.outboxes.append(outbox)
        self._live[execution.key] = execution
        self._idle.clear()
        self._queue.push(execution.client, execution.id, execution)
        self._start_next()

    def _refusal(self, execution: Execution) -> Failure | None:
        """Why the request cannot be accepted now; None if it can."""
        if self._draining:
            return _shutting_down()
        ahead = num_ahead(self._queue, execution.client) if self.num_running >= self.num_slots else 0
        wait = self._rate.wait_seconds(ahead)
        if execution.arrived + wait > execution.deadline:
            return _overloaded(
                f"{ahead} requests are ahead: the wait of about {wait:.1f} s would pass the deadline",
                wait,
                ServiceBound.DEADLINE,
            )
        if self.budget.used + execution.num_bytes > self.budget.limit:
            return _overloaded(
                f"the service already holds {self.budget.used} of at most {self.budget.limit} bytes",
                wait,
                ServiceBound.MAX_BYTES,
            )
        if len(self._queue) >= self._limits.max_queued and not self._make_room(execution.client):
            return _overloaded(
                f"the queue is full: {len(self._queue)} requests wait, at most {self._limits.max_queued} are allowed",
                wait,
                ServiceBound.MAX_QUEUED,
            )
        return None

    def _make_room(self, client: str) -> bool:
        """Refuse a request that waits, to make room for one of `client`; returns whether one was refused.

        It is the newest request of the client with the most requests in the queue, if this client has more of them than
        `client` would have. So no client can fill the queue for the others.
        """
        refused = self._queue.pop_newest_of_longest(than=self._queue.num_waiting(client) + 1)
        if refused is None:
            return False
        self._conclude(
            refused,
            _overloaded(
                "the queue is full, and this client has the most requests in it", 0.0, ServiceBound.SHARE_OF_CLIENT
            ),
        )
        return True

    def _start_next(self) -> None:
        while self._queue and self.num_running < self.num_slots:
            execution = self._queue.pop()
            waited = time.monotonic() - execution.arrived
            if execution.arrived + waited > execution.deadline:
                message = f"the deadline passed after {waited:.2f} s in the queue"
                self._conclude(
                    execution, Failure(kind=FailureKind.QUEUE_EXPIRED, message=message, bound=ServiceBound.DEADLINE)
                )
            else:
                self.num_running += 1
                execution.task = asyncio.create_task(self._outcome_of(execution))
                # A callback, since a task that is cancelled before its first step runs none of its own code.
                execution.task.add_done_callback(partial(self._ended, execution, time.monotonic()))

    def _ended(self, execution: Execution, started: float, task: "asyncio.Task[Outcome | Failure]") -> None:
        outcome = (execution.stopped_for or _ABANDONED) if task.cancelled() else task.result()
        if isinstance(outcome, Result):
            timing = replace(outcome.timing, queue_seconds=outcome.timing.queue_seconds + started - execution.arrived)
            outcome = replace(outcome, timing=timing, node=self.node)
        self.num_running -= 1
        self._rate.observe(time.monotonic() - started)
        self._conclude(execution, outcome)
        self._start_next()

    async def _outcome_of(self, execution: Execution) -> Outcome | Failure:
        try:
            return await execution.start()
        except UnsupportedLanguageError as error:
            return Failure(kind=FailureKind.UNSUPPORTED_LANGUAGE, message=str(error))
        except SandboxRequestError as error:
            return Failure(kind=FailureKind.INVALID_REQUEST, message=str(error))
        except SessionLostError as error:
            return Failure(kind=FailureKind.SESSION_LOST, message=str(error))
        except SandboxError as error:
            return Failure(kind=FailureKind.SANDBOX_ERROR, message=str(error))
        except Exception as error:  # a bug in the backend must cost this request only, not the service or the slot
            logger.exception("the backend failed on request %s", execution.id)
            return Failure(kind=FailureKind.SANDBOX_ERROR, message=f"{type(error).__name__}: {error}")

    def _conclude(self, execution: Execution, outcome: Outcome | Failure) -> None:
        """Answer every outbox that waits, and forget the request; a result is kept in case the request is repeated."""
        del self._live[execution.key]
        self.budget.release(execution.num_bytes)
        line, failure = _encode(execution, outcome)
        if failure is not None:
            self._metrics.failed(failure)
        else:
            now, deadline = time.monotonic(), execution.deadline
            self._kept.put(execution.key, execution.fingerprint, line, now=now, deadline=deadline)
            if isinstance(outcome, Result):
                self._metrics.ended(outcome)
        for outbox in execution.outboxes:
            outbox.put(line)
        if not self._live:
            self._idle.set()

    def _stop(self, execution: Execution, why: Failure) -> None:
        if execution.task is not None:
            execution.stopped_for = execution.stopped_for or why
            execution.task.cancel()
        elif self._queue.remove(execution.client, execution.id):
            self._conclude(execution, why)


_ABANDONED = Failure(kind=FailureKind.SANDBOX_ERROR, message="the backend cancelled the request without a reason")


class _EncodedLine(NamedTuple):
    line: bytes
    failure: Failure | None


def _encode(execution: Execution, outcome: Outcome | Failure) -> _EncodedLine:
    failure = outcome if isinstance(outcome, Failure) else None
    try:
        return _EncodedLine(encode_line(execution.id, outcome), failure)
    except UnicodeEncodeError as error:
        failure = Failure(kind=FailureKind.SANDBOX_ERROR, message=f"the result is not UTF-8: {error}")
        return _EncodedLine(encode_line(execution.id, failure), failure)


def _shutting_down() -> Failure:
    return Failure(kind=FailureKind.SHUTTING_DOWN, message="the service is stopping")


def _overloaded(message: str, wait_seconds: float, bound: ServiceBound | None = None) -> Failure:
    pause = retry_after_seconds(wait_seconds)
    return Failure(kind=FailureKind.OVERLOADED, message=message, retry_after_seconds=pause, bound=bound)
