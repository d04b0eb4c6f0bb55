"""routing.place_desk and routing.router_handle: turns that wait for a server without an open call each."""

import asyncio
import pickle
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.router_desk import Actor, Desk, calls_without_pauses, turns_until
from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.client import new_request_id
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.router_handle import RouterHandle
from verl_pivot.routing.router_messages import ServerGiven, TurnAsked, TurnOver, TurnRefused


@pytest.fixture(scope="module", autouse=True)
def hurry() -> Iterator[None]:
    """Let calls of an actor follow each other without pauses."""
    with calls_without_pauses():
        yield


@pytest.mark.parametrize("num_waiting", [1, 10, 2_000])
async def test_no_number_of_waiting_turns_delays_a_release(num_waiting: int) -> None:
    """A release takes effect within five turns of the event loop, however many conversations wait."""
    desk = Desk()
    desk.ask("other", "first")
    desk.ask("w", *(f"{number}" for number in range(num_waiting)))
    await turns_until(lambda: desk.num_waiting == num_waiting)
    listening = asyncio.create_task(desk.given("w"))

    desk.end("first")

    assert await turns_until(listening.done) <= 5
    assert listening.result() == [1]


async def test_no_number_of_turns_that_are_asked_for_together_delays_a_release() -> None:
    """5,000 conversations begin a few at a time; a release between them is in force at once."""
    desk = Desk()
    desk.ask("other", "first")
    await turns_until(lambda: desk.router.inflight["a"])
    desk.ask("w", *(f"{number}" for number in range(5_000)))
    await asyncio.sleep(0)

    desk.desk.take("other", [TurnOver("a", "first+reports-end")])

    assert desk.router.inflight == {"a": 0}
    assert desk.num_waiting < 100
    await turns_until(lambda: desk.num_waiting == 5_000)


async def test_a_call_with_many_messages_holds_up_no_other_call() -> None:
    """A call is read 64 messages at a time: a release that another process sends meanwhile is in force at once."""
    desk = Desk(room=1_001)
    desk.ask("other", "first")
    await turns_until(lambda: desk.router.inflight["a"])
    asked = [TurnAsked(1_000 + number, f"{number}+reports-end", 100, "prompt") for number in range(1_000)]
    taking = asyncio.create_task(desk.desk.take_many("w", asked))
    await asyncio.sleep(0)

    desk.desk.take("other", [TurnOver("a", "first+reports-end")])

    assert desk.router.counts.released == 1
    assert desk.num_waiting + desk.desk.num_first_turns + desk.router.inflight["a"] <= 64
    assert await taking == []
    await turns_until(lambda: desk.router.inflight == {"a": 1_000})


async def test_one_call_tells_a_worker_of_all_its_turns() -> None:
    desk = Desk()
    desk.ask("w", "first", "second")
    desk.ask("w", "too long", num_tokens=5_000)
    desk.ask("other", "third")
    await turns_until(lambda: not desk.desk.num_first_turns)

    first, too_long = await desk.desk.answers("w") or []
    assert first == ServerGiven(0, "a")
    assert (too_long.number, getattr(too_long, "is_engine_error", None)) == (2, True)
    listening = asyncio.create_task(desk.given("w"))
    await asyncio.sleep(0)
    assert not listening.done()
    desk.end("first")
    assert await listening == [1]


async def test_a_worker_that_dies_gives_back_what_it_waited_for_and_was_given() -> None:
    desk = Desk()
    desk.ask("dead", "given", "waiting")
    desk.ask("alive", "mine")
    await turns_until(lambda: desk.num_waiting == 2)

    desk.now = 50.0
    alive = asyncio.create_task(desk.given("alive"))
    await asyncio.sleep(0)
    assert desk.desk.drop_silent() == 0
    desk.now = 61.0
    assert desk.desk.drop_silent() == 2

    assert await alive == [2]
    assert desk.router.status()["conversations"] == 1
    assert await desk.desk.answers("dead") is None


async def test_a_server_that_was_told_to_a_worker_that_died_at_that_moment_is_given_back() -> None:
    desk = Desk()
    desk.ask("dead", "given")
    assert await desk.given("dead") == [0]

    desk.now = 61.0
    assert desk.desk.drop_silent() == 1

    assert desk.router.status()["conversations"] == 0


async def test_a_worker_that_has_its_servers_may_be_silent_while_its_turns_run() -> None:
    desk = Desk()
    desk.ask("w", "long")
    assert await desk.given("w") == [0]
    desk.desk.leave("w")

    desk.now = 10_000.0
    assert desk.desk.drop_silent() == 0

    assert desk.router.inflight == {"a": 1}


async def test_turns_on_an_engine_without_work_are_lost_after_a_minute_without_a_call_of_their_worker() -> None:
    desk = Desk()
    desk.ask("w", "long")
    desk.ask("other", "next")
    assert await desk.given("w") == [0]
    desk.desk.leave("w")
    desk.now = 30.0
    desk.router.observe("a", EngineLoad(capacity=1_100, num_requests=0))

    desk.desk.take("w", [])
    for now in (50.0, 85.0):
        desk.now = now
        desk.desk.take("other", [])
        assert desk.desk.drop_silent() == 0
        assert (desk.router.counts.lost, desk.num_waiting) == (0, 1)
    desk.now = 91.0
    assert desk.desk.drop_silent() == 0

    assert (desk.router.counts.lost, list(desk.router.conversations)) == (1, ["next+reports-end"])
    assert await desk.given("other") == [1]
    desk.desk.take("w", [])
    desk.ask("w", "another")
    desk.end("next")
    assert await desk.given("w") == [2]


async def test_a_conversation_that_ends_before_the_router_knows_of_it_takes_no_room() -> None:
    desk = Desk()
    desk.ask("w", "cancelled", "next")

    assert desk.end("cancelled") == [RoutingCost()]

    (refused,) = desk.desk.known_answers("w")
    assert isinstance(refused, TurnRefused)
    assert await desk.given("w") == [1]
    assert desk.router.status()["conversations"] == 1


async def test_all_turns_of_a_process_wait_by_one_call_and_messages_travel_together() -> None:
    desk = Desk()
    actor = Actor(desk.desk)
    handle = RouterHandle(actor)
    served: list[str] = []

    async def play(name: str) -> None:
        server, engine = await handle.acquire_server.remote(request_id=name, prompt_ids=[1, 2, 3])
        assert (server, engine) == ("a", "the actor of a")
        served.append(name)
        handle.release_server.remote(server_id=server, request_id=name)
        await handle.end_conversation.remote(name, 10, None)

    await asyncio.gather(*(play(new_request_id()) for _ in range(300)))

    assert len(served) == 300
    assert actor.most_listening == 1
    assert actor.num_calls < 2 * 300
    assert desk.router.status()["conversations"] == 0


async def test_the_tokens_of_a_request_stay_in_its_process() -> None:
    desk = Desk(room=10)
    actor = Actor(desk.desk)

    await RouterHandle(actor).acquire_server.remote(new_request_id(), list(range(1_000)))

    assert actor.num_bytes < 200


@pytest.mark.parametrize("reports_end", [True, False])
async def test_a_turn_that_is_cancelled_while_it_waits_leaves_the_others_waiting(reports_end: bool) -> None:
    """verl's own agent loops do not report the end, so there the cancelled wait itself ends the conversation."""
    desk = Desk()
    handle = RouterHandle(Actor(desk.desk))
    names = [new_request_id() if reports_end else f"{number}" for number in range(3)]
    turns = [asyncio.create_task(handle.acquire_server.remote(name, [1])) for name in names]
    await turns[0]

    turns[1].cancel()
    await turns_until(turns[1].done)
    for name in names[:2] if reports_end else names[:1]:
        await handle.end_conversation.remote(name, None, None)

    assert (await turns[2])[0] == "a"
    assert desk.router.status()["conversations"] == 1


async def test_parallel_requests_of_one_conversation_each_get_their_server() -> None:
    desk = Desk()
    handle = RouterHandle(Actor(desk.desk))

    found = await asyncio.gather(*(handle.acquire_server.remote("w", [1]) for _ in range(4)))

    assert [server for server, _ in found] == ["a"] * 4
    assert desk.router.inflight == {"a": 4}
    for _ in found:
        handle.release_server.remote("a", "w")
    await turns_until(lambda: desk.router.inflight == {"a": 0})


async def test_a_process_that_counted_as_dead_asks_again_for_all_its_turns() -> None:
    desk = Desk()
    handle = RouterHandle(Actor(desk.desk))

    async def play(name: str) -> str:
        server, _ = await handle.acquire_server.remote(name, [1])
        await handle.end_conversation.remote(name, 10, None)
        return str(server)

    await handle.acquire_server.remote("runs", [1])
    turns = [asyncio.create_task(play(new_request_id())) for _ in range(2)]
    await turns_until(lambda: desk.num_waiting == 2)
    desk.now = 100.0
    assert desk.desk.drop_silent() == 2

    turns.append(asyncio.create_task(play(new_request_id())))
    await turns_until(lambda: desk.num_waiting == 3)
    await handle.end_conversation.remote("runs", 10, None)

    assert await asyncio.gather(*turns) == ["a"] * 3


async def test_an_engine_that_restarts_under_its_address_is_reached_by_its_new_handle() -> None:
    desk = Desk(room=3)
    actor = Actor(desk.desk)
    handle = RouterHandle(actor)
    assert (await handle.acquire_server.remote("v", [1]))[1] == "the actor of a"

    actor.handles, actor.version = {"a": "the new actor of a"}, 1

    assert (await handle.acquire_server.remote("w", [1]))[1] == "the new actor of a"


async def test_errors_of_the_router_reach_the_agent_loop_as_themselves() -> None:
    desk = Desk()
    handle = RouterHandle(Actor(desk.desk))
    with pytest.raises(EngineError, match="a request of 5000 tokens does not fit"):
        await handle.acquire_server.remote("w", [1] * 5_000)

    desk.router.remove_server("a")
    with pytest.raises(RuntimeError, match=r"^No available servers in load balancer$"):
        await handle.acquire_server.remote("w", [1])


async def test_a_handle_travels_with_its_actor_only_and_has_the_actors_other_methods() -> None:
    handle = RouterHandle(Actor(None))

    assert await handle.get_status.remote() == "status"
    assert await handle.require_acquire_fields.remote() == ["prompt_ids"]
    assert RouterHandle.__reduce__(handle) == (RouterHandle, (handle.actors[0], ()))
    assert pickle.loads(pickle.dumps(RouterHandle("an actor", ["another"]))).actors == ("an actor", "another")


def test_an_event_loop_that_closes_waits_for_no_answer_of_the_router() -> None:
    """The agent loops of this test report the end of their conversations while they are cancelled."""

    async def run() -> None:
        handle = RouterHandle(Actor(Desk().desk))

        async def play() -> None:
            name = new_request_id()
            try:
                await handle.acquire_server.remote(name, [1])
                await asyncio.sleep(0)
            finally:
                await handle.end_conversation.remote(name, None, None)

        tasks = [asyncio.create_task(play()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    asyncio.run(run())


async def test_answers_that_are_known_at_once_need_no_call_of_their_own() -> None:
    """The second turn of a conversation gets its server at once, in the answer to the call that asked for it."""
    desk = Desk()
    actor = Actor(desk.desk)
    handle, name = RouterHandle(actor), new_request_id()
    await handle.acquire_server.remote(name, [1])
    handle.release_server.remote("a", name)
    await turns_until(lambda: desk.router.inflight == {"a": 0})
    actor.num_calls = actor.most_listening = 0

    assert (await handle.acquire_server.remote(name, [1, 2]))[0] == "a"

    assert (actor.num_calls, actor.most_listening) == (1, 0)


class Shards:
    """Two desks with one server each, and one handle that calls the actors of both."""

    def __init__(self, room: int = 1) -> None:
        self.desks = [Desk(room), Desk(room)]
        self.handle = RouterHandle(*self._actors())

    def _actors(self) -> tuple[Actor, list[Actor]]:
        first, other = (Actor(desk.desk) for desk in self.desks)
        return first, [other]

    @property
    def conversations(self) -> list[int]:
        return [desk.router.status()["conversations"] for desk in self.desks]

    @property
    def fullest(self) -> int:
        return max(range(2), key=lambda shard: self.conversations[shard])


async def test_rollouts_of_a_prompt_go_to_one_shard_and_their_calls_to_its_actor() -> None:
    shards = Shards(room=8)
    names = [new_request_id() for _ in range(8)]

    await asyncio.gather(*(shards.handle.acquire_server.remote(name, [1]) for name in names))
    assert sorted(shards.conversations) == [0, 8]
    await asyncio.gather(*(shards.handle.acquire_server.remote(new_request_id(), [2]) for _ in range(4)))
    assert sorted(shards.conversations) == [4, 8]

    for name in names:
        shards.handle.release_server.remote("a", name)
        await shards.handle.end_conversation.remote(name, 10, None)
    assert sorted(shards.conversations) == [0, 4]
    assert [desk.router.counts.ignored for desk in shards.desks] == [0, 0]


@pytest.mark.parametrize("reports_end", [True, False])
async def test_a_conversation_that_waits_may_begin_on_another_shard(reports_end: bool) -> None:
    shards = Shards()
    names = [new_request_id() if reports_end else uuid4().hex for _ in range(3)]
    turns = [asyncio.create_task(shards.handle.acquire_server.remote(name, [1])) for name in names]
    await turns[0]
    await turns_until(lambda: sorted(shards.conversations) == [0, 3])
    full, empty = shards.fullest, 1 - shards.fullest

    shards.desks[full].now = 7.25
    assert shards.desks[full].router.pass_on(1, empty) == 1
    assert (await turns[2])[0] == "a"
    assert shards.conversations[empty] == 1
    assert not turns[1].done()

    turns[1].cancel()
    await turns_until(turns[1].done)
    shards.handle.release_server.remote("a", names[2])
    costs = [
        await shards.handle.end_conversation.remote(name, 10, None)
        for name in (names if reports_end else (names[0], names[2]))
    ]
    assert (costs[0].wait_seconds, costs[-1].wait_seconds) == (0.0, 7.25)
    assert shards.conversations == [0, 0]


async def test_a_shard_without_servers_sends_its_turns_to_the_others_and_without_any_the_error_is_verls() -> None:
    shards = Shards(room=4)
    names = [new_request_id() for _ in range(4)]
    for number, name in enumerate(names):
        await shards.handle.acquire_server.remote(name, [number])
    assert shards.conversations == [2, 2]

    shards.desks[1].router.remove_server("a")
    for number, name in enumerate(names):
        assert (await shards.handle.acquire_server.remote(name, [number, 5]))[0] == "a"
    assert shards.desks[0].router.status()["total_inflight"] == 6

    shards.desks[0].router.remove_server("a")
    with pytest.raises(RuntimeError, match=r"^No available servers in load balancer$"):
        await shards.handle.acquire_server.remote(new_request_id(), [1])
