"""ShardCalls: messages of a process of agent loops -> few calls of one router actor, also if the actor has died."""

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from ray.exceptions import ActorDiedError, ObjectLostError, RayActorError

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.routing.call_pace import FASTEST_MS
from verl_pivot.routing.router_messages import (
    Answer,
    ConversationOver,
    Message,
    RouterNews,
    Taken,
    TurnAsked,
    TurnOver,
    TurnPassed,
    TurnRefused,
    decode_news,
    decode_taken,
    encode,
)

logger = logging.getLogger(__name__)
_MOST_MESSAGES = 1024
"""Maximum number of messages in one call of the actor. A process has only one such call under way, which may take long
if the cores are busy. With fewer messages in each call, the many messages at the beginning of a step would hold up
the turns that follow."""
_CALL_SECONDS = 300.0
"""Seconds after which a call without an answer counts as failed. The first call may wait for the actor to start."""
_RESTART_SECONDS = 60.0
"""Seconds for which a failed call is repeated, since Ray restarts an actor that has died."""
_PAUSE_SECONDS = 0.5
"""Seconds between two such repetitions."""
_ALIVE_SECONDS = 20.0
"""Seconds between two calls that a process makes even without messages, so that it does not count as dead while its
turns run."""
_CALL_FAILED = (RayActorError, TimeoutError)
"""Errors of a call that never reached its actor, or whose actor died meanwhile."""


class ActorLost(NamedTuple):
    """The actor has died and is not restarted, so that its shard gives no servers."""

    reason: str


_Wait = asyncio.Future[Answer | ActorLost | None]
"""Wait for the answer to a question; None if the router has forgotten the question."""
_Cost = asyncio.Future[RoutingCost | None]


class _Letter(NamedTuple):
    """A message, and where the answer to it goes."""

    message: Message
    cost: _Cost | None = None
    """Future for the routing cost of the conversation that the message ends; None if no caller waits for it."""

    def set_cost(self, cost: RoutingCost | None) -> None:
        if self.cost is not None and not self.cost.done():
            self.cost.set_result(cost)


class ShardCalls:
    """Calls of one actor by a process of agent loops: one at a time with its messages, and one that waits for news.

    A process that has called once goes on to call every 20 s, since the actor takes a silent one for dead.

    If the actor dies, Ray restarts it without its state: all turns that wait ask again, as new conversations. If Ray
    does not restart it, each waiting turn is told that the actor is lost.
    """

    def __init__(self, actor: Any) -> None:
        """`actor` is Ray's handle of a RouterActor."""
        self.is_lost = False
        """Whether the newest call has failed for good."""
        self._actor = actor
        self._worker = uuid4().hex
        self._numbers = itertools.count()
        self._questions: dict[int, tuple[str, _Wait]] = {}
        """{number: (conversation, wait for the answer)} of the turns that wait."""
        self._outbox: list[_Letter] = []
        self._in_flight: list[_Letter] = []
        """Messages of the call that is under way."""
        self._period = FASTEST_MS / 1e3
        """Minimum time in seconds between two calls, as the actor says. A call that only ends turns waits this long for
        other messages."""
        self._called_at = -self._period
        """Time of the newest call with messages, in seconds of the event loop's clock."""
        self._is_urgent = asyncio.Event()
        """Whether the outbox has a message whose answer somebody waits for."""
        self._sender: asyncio.Task[None] | None = None
        self._next_sign: asyncio.TimerHandle | None = None
        """Timer of the next call that is made even without messages; None before the first message."""
        self._listener: asyncio.Task[None] | None = None
        self._actor_start = 0
        """Start of the actor that has taken in the messages, see RouterNews."""
        self._servers_version = 0
        self._handles: asyncio.Task[dict[str, Any]] | None = None
        """Handles of the servers under `_servers_version`; None until they are needed."""

    async def acquire(
        self, request_id: str, num_tokens: int, digest: str, waited_ms: int
    ) -> tuple[str, Any] | TurnPassed | TurnRefused | ActorLost:
        """The server for one turn and the handle of its actor, or why there is none."""
        while True:
            number = next(self._numbers)
            answer = await self._ask(TurnAsked(number, request_id, num_tokens, digest, waited_ms))
            if isinstance(answer, TurnPassed | TurnRefused | ActorLost):
                return answer
            if answer is None:
                continue
            try:
                handles = await self._current_handles()
            except (*_CALL_FAILED, ObjectLostError):
                self._handles = None
                self.send(ConversationOver(request_id, None, None))
                continue
            if answer.server in handles:
                return answer.server, handles[answer.server]

    async def end(self, over: ConversationOver) -> RoutingCost | None:
        """End a conversation; returns its routing cost, or None if the actor that counted it has died."""
        cost: _Cost = asyncio.get_running_loop().create_future()
        self.send(over, cost)
        return await cost

    def send(self, message: Message, cost: _Cost | None = None) -> None:
        """Send a message with the next call; `cost` becomes the cost of the conversation that it ends."""
        self._outbox.append(_Letter(message, cost))
        if not isinstance(message, TurnOver):
            self._is_urgent.set()
        self._call()
        if self._next_sign is None:
            self._next_sign = asyncio.get_running_loop().call_later(_ALIVE_SECONDS, self._show_life)

    def _call(self) -> None:
        """Let a call of the actor be made, unless one is under way."""
        if self._sender is None:
            self._sender = self._task(self._send())

    def _show_life(self) -> None:
        """Call the actor from time to time, also without messages, until it is lost."""
        self._next_sign = None
        if not self.is_lost:
            self._call()
            self._next_sign = asyncio.get_running_loop().call_later(_ALIVE_SECONDS, self._show_life)

    async def _ask(self, asked: TurnAsked) -> Answer | ActorLost | None:
        """The answer to one question; None if the router took this process for dead and has forgotten the question."""
        answer: _Wait = asyncio.get_running_loop().create_future()
        self._questions[asked.number] = asked.request_id, answer
        self.send(asked)
        try:
            return await answer
        finally:
            self._questions.pop(asked.number, None)

    async def _current_handles(self) -> dict[str, Any]:
        """{server: handle of its actor}, fetched once for each version of the servers."""
        if self._handles is None:
            self._handles = asyncio.create_task(self._fetch_handles())
        return await asyncio.shield(self._handles)

    async def _fetch_handles(self) -> dict[str, Any]:
        (reference,) = await self._actor.get_handles.remote()
        handles: dict[str, Any] = await reference
        return handles

    # ---- the call with messages

    async def _send(self) -> None:
        """Call the actor once, and then until all messages are sent; those that come during a call go with the next."""
        try:
            await self._send_some()
            while self._outbox:
                await self._send_some()
        finally:
            self._sender = None

    async def _send_some(self) -> None:
        """Call the actor with as many messages as go in one call, which may be none."""
        await self._gather()
        letters, self._outbox = self._outbox[:_MOST_MESSAGES], self._outbox[_MOST_MESSAGES:]
        self._in_flight = letters
        try:
            taken = await self._take([each.message for each in letters])
        except _CALL_FAILED as error:
            await self._after_failure(letters, error)
            return
        self._in_flight = []
        ends = (each for each in letters if isinstance(each.message, ConversationOver))
        for letter, cost in zip(ends, taken.costs, strict=True):
            letter.set_cost(cost)
        self._read(taken.news)
        asked = (each.message.number for each in letters if isinstance(each.message, TurnAsked))
        if self._listener is None and not self._questions.keys().isdisjoint(asked):
            self._listener = self._task(self._listen())

    async def _gather(self) -> None:
        """Let messages gather in the outbox for a moment if there was a call just now, or none of them is urgent."""
        clock = asyncio.get_running_loop().time
        if len(self._outbox) < _MOST_MESSAGES:
            await asyncio.sleep(self._called_at + self._period - clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._is_urgent.wait()
        self._called_at = clock()
        if len(self._outbox) <= _MOST_MESSAGES:
            self._is_urgent.clear()

    async def _take(self, messages: Sequence[Message]) -> Taken:
        async with asyncio.timeout(_CALL_SECONDS):
            taken = decode_taken(await self._actor.take_messages.remote(self._worker, encode(messages)))
        self.is_lost = False
        return taken

    # ---- the call that waits for news

    async def _listen(self) -> None:
        """Learn the answers to questions until no turn waits."""
        try:
            while self._questions:
                news = await self._next_news()
                if news is None:
                    self._ask_again()
                else:
                    self._read(news)
                await self._until_quiet()
            self._actor.leave.remote(self._worker)
        finally:
            self._listener = None

    async def _until_quiet(self) -> None:
        """Wait until no call with messages was made for two periods, since the answer to each brings the news too."""
        clock = asyncio.get_running_loop().time
        while True:
            pause = self._called_at + 2 * self._period - clock()
            if pause <= 0 or not self._questions:
                return
            await asyncio.sleep(pause)

    async def _next_news(self) -> RouterNews | None:
        """The answers that come next; None if the actor has forgotten all questions."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return decode_news(await self._actor.wait_for_news.remote(self._worker, self._actor_start))
        except _CALL_FAILED:  # the call with the questions that are asked again finds out whether the actor comes back
            return None

    def _read(self, news: RouterNews) -> None:
        self._period = news.period_ms / 1e3
        if news.servers_version != self._servers_version:
            self._servers_version, self._handles = news.servers_version, None
        for answer in news.answers:
            _, future = self._questions.pop(answer.number, (None, None))
            if future is not None and not future.done():
                future.set_result(answer)
        before, self._actor_start = self._actor_start, news.actor_start
        if before not in (0, news.actor_start):
            self._ask_again()

    def _ask_again(self) -> None:
        """Let every turn ask again, as a new conversation: the router has forgotten all that waited."""
        self._outbox = [each for each in self._outbox if not isinstance(each.message, TurnAsked)]
        questions, self._questions = self._questions, {}
        for request_id in dict.fromkeys(request_id for request_id, _ in questions.values()):
            self.send(ConversationOver(request_id, None, None))
        for _, answer in questions.values():
            if not answer.done():
                answer.set_result(None)

    # ---- failures

    async def _after_failure(self, letters: Sequence[_Letter], error: Exception) -> None:
        """After a failed call: let all turns ask again as soon as the actor is back, or tell them that it is lost."""
        for letter in letters:
            letter.set_cost(None)
        deadline = asyncio.get_running_loop().time() + _RESTART_SECONDS
        failure: Exception | None = error
        while failure is not None:
            if isinstance(failure, ActorDiedError) or asyncio.get_running_loop().time() > deadline:
                self._give_up(str(failure).partition("\n")[0])
                return
            await asyncio.sleep(_PAUSE_SECONDS)
            failure = await self._find_failure(deadline)
        kept = [_Letter(each.message) for each in letters if not isinstance(each.message, TurnAsked)]
        self._in_flight, self._outbox = [], [*kept, *self._outbox]
        self._ask_again()

    async def _find_failure(self, deadline: float) -> Exception | None:
        """The error of a call without messages; None if the actor has answered."""
        try:
            async with asyncio.timeout_at(deadline):
                taken = await self._take([])
        except _CALL_FAILED as error:
            return error
        self._actor_start, self._handles = taken.news.actor_start, None
        return None

    def _give_up(self, reason: str) -> None:
        """Tell everything that waits that the actor is lost."""
        self.is_lost = True
        logger.error("stopped calling a router actor that died or does not answer: %s", reason)
        letters, self._in_flight, self._outbox = [*self._in_flight, *self._outbox], [], []
        for letter in letters:
            letter.set_cost(None)
        questions, self._questions = self._questions, {}
        for _, answer in questions.values():
            if not answer.done():
                answer.set_result(ActorLost(reason))

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._fail_all)
        return task

    def _fail_all(self, task: "asyncio.Task[None]") -> None:
        """End everything that waits as this task ended: with its error, or cancelled because the event loop closes."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        waiting: list[asyncio.Future[Any]] = [answer for _, answer in self._questions.values()]
        waiting += [each.cost for each in (*self._in_flight, *self._outbox) if each.cost is not None]
        self._in_flight, self._outbox = [], []
        for future in waiting:
            if error is None:
                future.cancel()
            elif not future.done():
                future.set_exception(error)
