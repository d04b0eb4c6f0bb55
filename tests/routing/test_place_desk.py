"""routing.place_desk and its client: turns that wait for a server without a call of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from verl_pivot.routing.client import new_request_id, wait_for_place
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.place_desk import PlaceDesk, PlaceRequest
from verl_pivot.routing.router import Router
from verl_pivot.routing.settings import make_routing_policy, parse_router


class Desk:
    """A desk of a router with one server, which takes one rollout at a time; its time stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        settings = parse_router({"policy": "kv_admission", "max_response_tokens": 1_000}, "test")
        self.router = Router(make_routing_policy(settings), lambda: self.now, forget_after_seconds=1e9)
        self.router.add_server("a", EngineLoad(capacity=1_100, used=0, num_running=1, num_waiting=0))
        self.desk = PlaceDesk(self.acquire, lambda name: self.router.end(name, None), lambda: self.now)

    async def acquire(self, request: PlaceRequest) -> str:
        return await self.router.acquire(
            request["request_id"], request["num_tokens"], request["digest"], reports_end=True
        )

    def ask(self, worker: str, *names: str, num_tokens: int = 100) -> None:
        self.desk.ask(worker, [PlaceRequest(request_id=name, num_tokens=num_tokens, digest=name) for name in names])


async def turns_until(condition: Callable[[], object]) -> int:
    """Turns of the event loop until something is true."""
    for number in range(100):
        if condition():
            return number
        await asyncio.sleep(0)
    raise AssertionError("100 turns of the event loop were not enough")


@pytest.mark.parametrize("num_waiting", [1, 10, 2_000])
async def test_no_number_of_waiting_turns_delays_a_release(num_waiting: int) -> None:
    """Its effect is seen as many turns of the event loop later as with one waiting turn."""
    desk = Desk()
    desk.ask("w", "first", *(f"{number}" for number in range(num_waiting)))
    await turns_until(lambda: desk.router.status()["waiting"] == num_waiting)
    assert desk.desk.claim("first") == "a"

    desk.router.release("a", "first")
    desk.router.end("first", 10)

    assert await turns_until(lambda: desk.desk.claim("0")) <= 3


async def test_one_call_tells_a_worker_of_all_its_waits_that_are_over() -> None:
    desk = Desk()
    desk.ask("w", "first", "second")
    desk.ask("w", "too long", num_tokens=5_000)
    desk.ask("other", "third")

    assert await desk.desk.ended_waits("w") == ["first", "too long"]
    assert (desk.desk.claim("first"), desk.desk.claim("too long")) == ("a", None)
    listening = asyncio.create_task(desk.desk.ended_waits("w"))
    await asyncio.sleep(0)
    assert not listening.done()
    desk.router.end("first", 10)
    assert await listening == ["second"]


async def test_a_worker_that_dies_gives_back_what_it_waited_for_and_was_given() -> None:
    desk = Desk()
    desk.ask("dead", "given", "waiting")
    desk.ask("alive", "mine")
    await turns_until(lambda: desk.router.status()["waiting"] == 2)

    desk.now = 50.0
    alive = asyncio.create_task(desk.desk.ended_waits("alive"))
    await asyncio.sleep(0)
    assert desk.desk.drop_silent() == 0
    desk.now = 61.0
    assert desk.desk.drop_silent() == 2

    assert await alive == ["mine"]
    assert (desk.desk.claim("given"), desk.desk.claim("mine")) == (None, "a")
    assert desk.router.status()["conversations"] == 1
    assert await desk.desk.ended_waits("dead") is None


async def test_a_turn_that_is_asked_for_twice_gets_one_place() -> None:
    desk = Desk()
    desk.ask("w", "first")
    desk.ask("w", "first")

    await desk.desk.ended_waits("w")

    assert desk.router.inflight == {"a": 1}


class Remote:
    """A method of an actor's handle."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class Client:
    """verl's client, of which only the router's handle is used; it counts the calls."""

    def __init__(self, desk: PlaceDesk | None) -> None:
        self.desk = desk
        self.calls: list[str] = []
        self.most_listening = 0
        self._listening = 0
        self._load_balancer = self
        self.request_places = Remote(self._request)
        self.ended_waits = Remote(self._ended)

    async def _request(self, worker: str, requests: list[PlaceRequest]) -> None:
        self.calls.append("request")
        await asyncio.sleep(0)
        if self.desk is None:
            raise RuntimeError("the actor has died")
        self.desk.ask(worker, requests)

    async def _ended(self, worker: str) -> list[str] | None:
        assert self.desk is not None
        self._listening += 1
        self.most_listening = max(self.most_listening, self._listening)
        ended = await self.desk.ended_waits(worker)
        self._listening -= 1
        return ended


async def test_all_turns_of_a_worker_wait_by_one_call_and_are_asked_for_together() -> None:
    desk = Desk()
    client = Client(desk.desk)
    served: list[str] = []

    async def play(name: str) -> None:
        await wait_for_place(client, name, [1, 2, 3])
        assert desk.desk.claim(name) == "a"
        served.append(name)
        await asyncio.sleep(0)
        desk.router.end(name, 10)

    await asyncio.gather(*(play(new_request_id()) for _ in range(300)))

    assert len(served) == 300
    assert client.most_listening == 1
    assert len(client.calls) == 1


async def test_a_turn_that_is_cancelled_while_it_waits_leaves_the_others_waiting() -> None:
    desk = Desk()
    client = Client(desk.desk)
    turns = [asyncio.create_task(wait_for_place(client, name, [1])) for name in ("first", "second", "third")]
    await turns[0]

    turns[1].cancel()
    await turns_until(turns[1].done)
    desk.router.end("second", None)
    desk.router.end("first", 10)

    await turns[2]
    assert desk.desk.claim("third") == "a"


@pytest.mark.heavy
async def test_the_worker_that_counted_as_dead_goes_on_without_the_desk() -> None:
    desk = Desk()
    client = Client(desk.desk)
    turns = [asyncio.create_task(wait_for_place(client, name, [1])) for name in ("first", "second")]
    await turns[0]
    desk.now = 100.0

    assert desk.desk.drop_silent() == 2

    second = asyncio.create_task(wait_for_place(client, "third", [1]))
    await asyncio.wait_for(second, 20)
    assert desk.router.status()["conversations"] >= 1
    turns[1].cancel()


async def test_if_the_router_has_died_no_turn_waits() -> None:
    turns = [wait_for_place(Client(None), f"{number}", [1]) for number in range(3)]

    for error in await asyncio.gather(*turns, return_exceptions=True):
        assert isinstance(error, RuntimeError)


async def test_other_routers_are_not_asked() -> None:
    await wait_for_place(object(), "w", [1])
