"""PlaceDesk: messages of processes of agent loops -> calls of a Router, and its answers for a whole process at once."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.client import is_only_turn, reports_end
from verl_pivot.routing.router import PassedOn, Router
from verl_pivot.routing.router_messages import (
    Answer,
    ConversationOver,
    Message,
    ServerGiven,
    TurnAsked,
    TurnOver,
    TurnPassed,
    TurnRefused,
)

_POLL_SECONDS = 10.0
"""Longest time in seconds that `answers` takes."""
_SILENT_SECONDS = 60.0
"""Seconds without a call of a worker after which it counts as dead."""
_MOST_TAKEN = 64
"""Maximum number of messages of a call that are taken in one pass of the event loop, so that it holds up no others."""
_SLICE = 16
"""Maximum number of conversations that begin in one pass of the event loop, so that they hold up no ends of turns."""


@dataclass(slots=True)
class _Worker:
    """A process of agent loops."""

    name: str
    seen_at: float
    """Time in seconds of its newest call."""
    questions: dict[int, str] = field(default_factory=dict)
    """{number: conversation} of its questions without an answer."""
    answers: list[Answer] = field(default_factory=list)
    """Answers that are not sent yet."""
    unsure: dict[int, str] = field(default_factory=dict)
    """{number: conversation} of the turns that got a server of which the worker may not know yet."""
    has_answers: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting(self) -> list[str]:
        """The conversations that wait for a server, or whose server the worker may not know yet."""
        return [*self.questions.values(), *self.unsure.values()]


class _FirstTurn(NamedTuple):
    """The first turn of a conversation, which the router has not been asked for yet."""

    worker: _Worker
    asked: TurnAsked


class PlaceDesk:
    """Holds the waiting turns of agent loops, so that they take none of the calls that a Ray actor runs at once.

    A worker brings its messages by `take`. By `answers`, one call for all its turns, it learns which server each turn
    has. It calls from time to time, also without messages. If it dies, `drop_silent` gives back the places that it
    waited for or was given, and those that its turns have on servers without work.
    """

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        """
        Args:
            router: The router, which is asked for the servers of all turns.
            clock: Returns the time in seconds.
        """
        self._router = router
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._dropped: set[str] = set()
        """Workers that were taken for dead while they waited, and have not been told so."""
        self._first_turns: OrderedDict[str, list[_FirstTurn]] = OrderedDict()
        """{conversation: its first turns; several where an agent loop samples several answers}."""
        self._beginner: asyncio.Task[None] | None = None

    @property
    def num_first_turns(self) -> int:
        """First turns that the router has not been asked for yet."""
        return sum(map(len, self._first_turns.values()))

    async def take_many(self, name: str, messages: Sequence[Message]) -> list[RoutingCost | None]:
        """Take a worker's messages as `take` does, a few in each pass of the event loop."""
        costs = self.take(name, messages[:_MOST_TAKEN])
        for begin in range(_MOST_TAKEN, len(messages), _MOST_TAKEN):
            await asyncio.sleep(0)
            costs += self.take(name, messages[begin : begin + _MOST_TAKEN])
        return costs

    def take(self, name: str, messages: Sequence[Message]) -> list[RoutingCost | None]:
        """Take a worker's messages in their order; returns the routing costs of the conversations that they end."""
        worker = self._seen(name)
        costs: list[RoutingCost | None] = []
        for message in messages:
            if isinstance(message, TurnOver):
                self._router.release(message.server, message.request_id)
            elif isinstance(message, ConversationOver):
                costs.append(self._end(message))
            elif name not in self._dropped:  # a dropped worker asks again for all its turns once it is told
                self._ask(worker, message)
        return costs

    def known_answers(self, name: str) -> list[Answer]:
        """The known answers to a worker's questions, which the call that brought its messages returns.

        If the worker dies now, these turns are given back like those of a worker that dies while they run.
        """
        worker = self._workers.get(name)
        if worker is None:
            return []
        found, worker.answers = worker.answers, []
        for answer in found:
            worker.unsure.pop(answer.number, None)
        return found

    async def answers(self, name: str) -> list[Answer] | None:
        """The answers to a worker's questions as soon as there are any; confirms that it has those of its last call.

        Returns no answers after some seconds: a living worker then calls again, and one that stays silent has died.
        Returns None to a worker that was taken for dead: none of its turns waits any more.
        """
        if name in self._dropped:
            self._dropped.remove(name)
            return None
        worker = self._seen(name)
        self._confirm(worker)
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                while not worker.answers and self._workers.get(name) is worker:
                    worker.has_answers.clear()
                    await worker.has_answers.wait()
        except TimeoutError:
            return []
        if name in self._dropped:
            self._dropped.remove(name)
            return None
        found, worker.answers = worker.answers, []
        self._seen(name)
        return found

    def leave(self, name: str) -> None:
        """Note that a worker knows all its servers."""
        if worker := self._workers.get(name):
            self._confirm(worker)

    def drop_silent(self) -> int:
        """Give back the places of workers that were silent for a minute; returns the number of turns that waited."""
        silent = [name for name, each in self._workers.items() if self._clock() - each.seen_at > _SILENT_SECONDS]
        num_turns = 0
        for name in silent:
            worker = self._workers.pop(name)
            waiting = worker.waiting
            num_turns += len(waiting)
            if waiting:
                self._dropped.add(name)
            for conversation in waiting:
                self._end(ConversationOver(conversation, None, None))
            worker.has_answers.set()
        self._router.end_lost(self._workers)
        return num_turns

    def _seen(self, name: str) -> _Worker:
        worker = self._workers.setdefault(name, _Worker(name, self._clock()))
        worker.seen_at = self._clock()
        return worker

    def _confirm(self, worker: _Worker) -> None:
        """Note that a worker has the answers that were sent to it."""
        unsent = {answer.number for answer in worker.answers}
        worker.unsure = {number: name for number, name in worker.unsure.items() if number in unsent}

    def _end(self, over: ConversationOver) -> RoutingCost | None:
        if turns := self._first_turns.pop(over.request_id, None):
            for worker, asked in turns:
                self._refuse(worker, asked, RuntimeError(f"conversation {over.request_id} was ended before it began"))
            return RoutingCost()
        return self._router.end(over.request_id, over.response_tokens, over.global_step)

    def _ask(self, worker: _Worker, asked: TurnAsked) -> None:
        """Ask the router for a turn, at once if its conversation has begun, else as soon as there is time."""
        worker.questions[asked.number] = asked.request_id
        if asked.request_id in self._router.conversations:
            self._ask_router(worker, asked)
            return
        self._first_turns.setdefault(asked.request_id, []).append(_FirstTurn(worker, asked))
        if self._beginner is None:
            self._beginner = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        """Ask the router for the first turns, a few in each pass of the event loop."""
        try:
            while self._first_turns:
                for _ in range(min(_SLICE, len(self._first_turns))):
                    _, turns = self._first_turns.popitem(last=False)
                    for worker, asked in turns:
                        self._ask_router(worker, asked)
                await asyncio.sleep(0)
        finally:
            self._beginner = None

    def _ask_router(self, worker: _Worker, asked: TurnAsked) -> None:
        name = asked.request_id
        try:
            server = self._router.ask(
                name,
                asked.num_tokens,
                asked.digest,
                reports_end=reports_end(name),
                worker=worker.name,
                is_only_turn=is_only_turn(name),
                waited_seconds=asked.waited_ms / 1e3,
            )
        except RuntimeError as error:  # an EngineError is one too
            self._refuse(worker, asked, error)
            return
        if server.done():
            self._tell(worker, asked, server)
        else:
            server.add_done_callback(lambda found: self._tell(worker, asked, found))

    def _tell(self, worker: _Worker, asked: TurnAsked, server: "asyncio.Future[str]") -> None:
        error = server.exception()
        if isinstance(error, PassedOn):
            self._answer(worker, TurnPassed(asked.number, error.shard, round(1e3 * error.wait_seconds)))
            return
        if error is not None:
            self._refuse(worker, asked, error)
            return
        worker.unsure[asked.number] = asked.request_id
        self._answer(worker, ServerGiven(asked.number, server.result()))

    def _refuse(self, worker: _Worker, asked: TurnAsked, error: BaseException) -> None:
        refused = TurnRefused(asked.number, str(error), is_engine_error=isinstance(error, EngineError))
        self._answer(worker, refused)

    def _answer(self, worker: _Worker, answer: Answer) -> None:
        del worker.questions[answer.number]
        worker.answers.append(answer)
        worker.has_answers.set()
