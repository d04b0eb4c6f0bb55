"""A desk of a router with one server, and a fake of the router's actor around it, which may die and come back."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.routing import router_calls
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.place_desk import PlaceDesk
from verl_pivot.routing.router import Router
from verl_pivot.routing.router_messages import (
    ConversationOver,
    RouterNews,
    ServerGiven,
    Taken,
    TurnAsked,
    decode_messages,
    encode,
)
from verl_pivot.routing.settings import make_routing_policy, parse_router


class Desk:
    """A desk of a router with one server, which takes `room` rollouts at a time; its clock stands still."""

    def __init__(self, room: int = 1) -> None:
        self.now = 0.0
        chosen = parse_router({"policy": "kv_admission", "max_response_tokens": 1_000}, "test")
        self.router = Router(make_routing_policy(chosen), lambda: self.now, forget_after_seconds=1e9)
        self.router.add_server("a", EngineLoad(capacity=room * 1_100, num_requests=1))
        self.desk = PlaceDesk(self.router, lambda: self.now)
        self._numbers = itertools.count()

    def ask(self, worker: str, *names: str, num_tokens: int = 100) -> None:
        asked = [TurnAsked(next(self._numbers), f"{name}+reports-end", num_tokens, name) for name in names]
        self.desk.take(worker, asked)

    def end(self, name: str, worker: str = "w") -> list[RoutingCost | None]:
        return self.desk.take(worker, [ConversationOver(f"{name}+reports-end", 10, None)])

    async def given(self, worker: str) -> list[int] | None:
        """Numbers of the worker's questions that have an answer, as soon as there are any."""
        answers = await self.desk.answers(worker)
        return None if answers is None else [each.number for each in answers if isinstance(each, ServerGiven)]

    @property
    def num_waiting(self) -> int:
        return self.router.status()["waiting"]


async def turns_until(condition: Callable[[], object], most: int = 1_000) -> int:
    """Number of turns of the event loop until the condition is true."""
    for number in range(most):
        if condition():
            return number
        await asyncio.sleep(0)
    raise AssertionError(f"{most} turns of the event loop were not enough")


@contextmanager
def calls_without_pauses() -> Iterator[None]:
    """Let calls of a RouterHandle wait neither for other messages nor for an actor that restarts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_calls, "_PAUSE_SECONDS", 0.0)
        patch.setattr(router_calls, "FASTEST_MS", 0)
        yield


class Remote:
    """A method of an actor's handle."""

    def __init__(self, actor: "Actor", method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.actor = actor
        self.method = method

    def remote(self, *arguments: Any) -> "asyncio.Future[Any]":
        return self.actor.call(self.method(*arguments))


class Actor:
    """Fake of the router's actor in this process, around a desk; it counts the calls that it gets, and may die."""

    def __init__(self, desk: PlaceDesk | None) -> None:
        """`desk` is None if the actor has died for good."""
        self.desk = desk
        self.num_calls = 0
        self.most_listening = 0
        self.num_bytes = 0
        self._calls: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}
        self._listening = 0
        self.version = 0
        self.start = 1
        self.period_ms = 0
        self.handles = {"a": "the actor of a"}
        names = ("take_messages", "wait_for_news", "leave", "get_handles", "get_status")
        self.take_messages, self.wait_for_news, self.leave, self.get_handles, self.get_status = (
            Remote(self, getattr(self, f"_{name}")) for name in names
        )

    def call(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Future[Any]":
        """Future of the result of `work`, or of the error of an actor that dies meanwhile."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._calls[answer] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._answer(answer, done))
        return answer

    def restart(self, desk: PlaceDesk) -> None:
        """Die and come back with a new desk. The calls under way fail."""
        self.desk, self.start, self._listening = desk, self.start + 1, 0
        self._fail_calls(ActorUnavailableError("it restarts", None))

    def die(self) -> None:
        """Die for good. The calls under way fail."""
        self.desk = None
        self._fail_calls(ActorDiedError())

    def _fail_calls(self, error: Exception) -> None:
        calls, self._calls = self._calls, {}
        for answer, task in calls.items():
            task.cancel()
            if not answer.done():
                answer.set_exception(error)

    def _answer(self, answer: "asyncio.Future[Any]", done: "asyncio.Task[Any]") -> None:
        self._calls.pop(answer, None)
        if answer.done() or done.cancelled():
            answer.cancel()
        elif error := done.exception():
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    @property
    def _living_desk(self) -> PlaceDesk:
        if self.desk is None:
            raise ActorDiedError
        return self.desk

    async def _take_messages(self, worker: str, messages: bytes) -> bytes:
        self.num_calls += 1
        self.num_bytes += len(messages)
        await asyncio.sleep(0)
        costs = await self._living_desk.take_many(worker, decode_messages(messages))
        answer = encode(
            Taken(costs, RouterNews(self.start, self.version, self.period_ms, self._living_desk.known_answers(worker)))
        )
        await asyncio.sleep(0)
        return answer

    async def _wait_for_news(self, worker: str, actor_start: int) -> bytes:
        self._listening += 1
        self.most_listening = max(self.most_listening, self._listening)
        answers = None if actor_start != self.start else await self._living_desk.answers(worker)
        self._listening -= 1
        return encode(None if answers is None else RouterNews(self.start, self.version, self.period_ms, answers))

    async def _leave(self, worker: str) -> None:
        self._living_desk.leave(worker)

    async def _get_handles(self) -> "list[asyncio.Future[dict[str, str]]]":
        stored: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        stored.set_result(dict(self.handles))
        return [stored]

    async def _get_status(self) -> str:
        return "status"
