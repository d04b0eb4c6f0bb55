"""routing.router_calls: what becomes of turns whose router's actor dies, is restarted by Ray, or forgets them."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.router_desk import Actor, Desk, calls_without_pauses, turns_until
from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing import router_calls
from verl_pivot.routing.client import new_request_id
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.router_handle import RouterHandle


@pytest.fixture(scope="module", autouse=True)
def hurry() -> Iterator[None]:
    """Let calls of an actor follow each other without pauses."""
    with calls_without_pauses():
        yield


async def test_messages_of_a_moment_travel_in_one_call() -> None:
    """The end of a turn, whose answer nobody awaits, travels with the next turn that any conversation asks for."""
    desk = Desk(room=8)
    actor = Actor(desk.desk)
    actor.period_ms = 200
    handle = RouterHandle(actor)
    names = [new_request_id() for _ in range(4)]
    await asyncio.gather(*(handle.acquire_server.remote(name, [1]) for name in names))
    await asyncio.sleep(0.3)

    actor.num_calls = 0
    handle.release_server.remote("a", names[0])
    await asyncio.sleep(0.01)
    assert actor.num_calls == 0
    await handle.acquire_server.remote(names[0], [1, 2])
    assert (actor.num_calls, desk.router.counts.released) == (1, 1)
    for name in names:
        handle.release_server.remote("a", name)
    await asyncio.gather(*(handle.acquire_server.remote(name, [1, 2, 3]) for name in names))
    assert (actor.num_calls, desk.router.counts.released) == (2, 5)


async def test_the_next_turn_of_a_rollout_waits_for_few_calls_when_thousands_of_rollouts_begin() -> None:
    """A process has one call with messages under way, which may take half a second where all cores are busy."""
    desk = Desk(room=4)
    actor = Actor(desk.desk)
    handle, name = RouterHandle(actor), new_request_id()
    await handle.acquire_server.remote(name, [1])
    begun = [asyncio.create_task(handle.acquire_server.remote(new_request_id(), [2])) for _ in range(4_000)]
    await asyncio.sleep(0)
    actor.num_calls = 0

    handle.release_server.remote("a", name)
    await handle.acquire_server.remote(name, [1, 2])

    assert actor.num_calls <= 5
    for turn in begun:
        turn.cancel()


async def test_an_end_of_a_turn_with_no_other_message_goes_by_itself() -> None:
    desk = Desk()
    handle = RouterHandle(Actor(desk.desk))
    await handle.acquire_server.remote("w", [1])

    handle.release_server.remote("a", "w")

    await turns_until(lambda: desk.router.counts.released)


async def test_a_process_calls_from_time_to_time_until_the_actor_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_calls, "_ALIVE_SECONDS", 0.01)
    desk = Desk()
    actor = Actor(desk.desk)
    handle = RouterHandle(actor)
    await handle.acquire_server.remote("w", [1])
    await asyncio.sleep(0.02)
    desk.now, before = 61.0, actor.num_calls

    await turns_until(lambda: actor.num_calls >= before + 3, most=1_000_000)
    desk.router.observe("a", EngineLoad(capacity=1_100, num_requests=0))
    desk.now = 100.0
    assert desk.desk.drop_silent() == 0
    assert (desk.router.counts.lost, desk.router.inflight) == (0, {"a": 1})

    actor.die()
    await turns_until(lambda: handle._calls._calls[0].is_lost, most=1_000_000)
    before = actor.num_calls
    await asyncio.sleep(0.05)
    assert actor.num_calls == before


async def test_turns_that_wait_ask_a_restarted_actor_again_as_new_conversations() -> None:
    actor = Actor(Desk().desk)
    handle = RouterHandle(actor)
    names = [new_request_id() for _ in range(3)]
    turns = [asyncio.create_task(handle.acquire_server.remote(name, [1])) for name in names]
    await turns[0]

    desk = Desk()
    actor.restart(desk.desk)

    assert (await turns[1])[0] == "a"
    assert await handle.end_conversation.remote(names[0], 10, None) is None
    assert await handle.end_conversation.remote(names[1], 10, None) == RoutingCost()
    assert (await turns[2])[0] == "a"
    assert desk.router.status()["conversations"] == 1


async def test_a_turn_that_runs_while_the_actor_restarts_is_followed_by_one_of_a_new_conversation() -> None:
    actor = Actor(Desk().desk)
    handle, name = RouterHandle(actor), new_request_id()
    await handle.acquire_server.remote(name, [1])

    desk = Desk()
    actor.restart(desk.desk)
    handle.release_server.remote("a", name)

    assert (await handle.acquire_server.remote(name, [1, 2]))[0] == "a"
    assert await handle.end_conversation.remote(name, 10, None) == RoutingCost()
    assert desk.router.status()["conversations"] == 0


async def test_a_process_whose_call_the_restarted_actor_answered_learns_that_it_is_another_one() -> None:
    """Ray may hand a call on to the restarted actor, so that none of a process's calls fails."""
    actor = Actor(Desk().desk)
    handle = RouterHandle(actor)
    waits = [asyncio.create_task(handle.acquire_server.remote(new_request_id(), [1])) for _ in range(2)]
    await waits[0]

    desk = Desk(room=2)
    actor.desk, actor.start = desk.desk, actor.start + 1
    await handle.acquire_server.remote("another", [1])

    assert (await waits[1])[0] == "a"


@pytest.mark.parametrize("reports_end", [True, False])
async def test_if_the_only_actor_has_died_for_good_every_turn_ends_with_one_sentence(reports_end: bool) -> None:
    desk = Desk()
    actor = Actor(desk.desk)
    handle = RouterHandle(actor)
    names = [new_request_id() if reports_end else uuid4().hex for _ in range(4)]
    turns = [asyncio.create_task(handle.acquire_server.remote(name, [1])) for name in names]
    await turns[0]

    actor.die()

    for turn in turns[1:]:
        with pytest.raises(EngineError, match=r"^the router has died .*; see Ray's logs .* from the last checkpoint$"):
            await turn
    with pytest.raises(EngineError, match="the router has died"):
        await handle.acquire_server.remote(names[0], [1, 2])
    handle.release_server.remote("a", names[0])
    assert [await handle.end_conversation.remote(name, 10, None) for name in names] == [None] * 4


async def test_an_actor_that_is_away_for_too_long_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_calls, "_CALL_SECONDS", 0.01)
    monkeypatch.setattr(router_calls, "_RESTART_SECONDS", 0.02)
    actor = Actor(Desk().desk)
    actor.call = lambda work: [work.close(), asyncio.get_running_loop().create_future()][1]  # type: ignore[assignment]

    with pytest.raises(EngineError, match="the router has died"):
        await RouterHandle(actor).acquire_server.remote(new_request_id(), [1])


async def test_the_other_shards_take_the_rollouts_of_one_whose_actor_has_died() -> None:
    desks = [Desk(room=8) for _ in range(3)]
    actors = [Actor(desk.desk) for desk in desks]
    handle = RouterHandle(actors[0], actors[1:])
    names = [new_request_id() for _ in range(27)]
    await asyncio.gather(*(handle.acquire_server.remote(name, [int(i / 8)]) for i, name in enumerate(names[:24])))
    waits = [asyncio.create_task(handle.acquire_server.remote(name, [i])) for i, name in enumerate(names[24:])]
    await turns_until(lambda: [desk.num_waiting for desk in desks] == [1, 1, 1])

    dead = next(number for number in range(3) if handle._calls._shards.find(names[0]) == number)
    actors[dead].die()
    living = [desks[number] for number in range(3) if number != dead]
    found = asyncio.gather(*(handle.acquire_server.remote(name, [1, 2]) for name in names[:8]))
    await turns_until(lambda: sum(desk.num_waiting for desk in living) == 3 + 8)
    for name in names[8:24]:
        await handle.end_conversation.remote(name, 10, None)

    assert {server for server, _ in (*await found, *await asyncio.gather(*waits))} == {"a"}
    assert sorted(desk.router.status()["conversations"] for desk in living) == [5, 6]
    for name in (*names[:8], *names[24:]):
        await handle.end_conversation.remote(name, 10, None)
    assert [desk.router.status()["conversations"] for desk in living] == [0, 0]


async def test_new_rollouts_do_not_begin_on_a_shard_whose_actor_has_died() -> None:
    desk = Desk(room=50)
    dead = Actor(None)
    handle = RouterHandle(dead, [Actor(desk.desk)])

    for number in range(40):
        await handle.acquire_server.remote(new_request_id(), [number])

    assert dead.num_calls <= 1
    assert desk.router.status()["conversations"] == 40


OPERATIONS = st.lists(st.tuples(st.sampled_from(["begin", "cancel", "drop", "restart"]), st.integers(0, 5)))


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS, reports_end=st.booleans())
def test_whatever_agent_loops_do_every_turn_gets_its_server_in_the_end(
    operations: list[tuple[str, int]], reports_end: bool
) -> None:
    async def run() -> None:
        rollouts = RandomRollouts(reports_end)
        for kind, number in operations:
            getattr(rollouts, kind)(number)
            for _ in range(number):
                await asyncio.sleep(0)
        await rollouts.finish()

    asyncio.run(asyncio.wait_for(run(), 60))


class RandomRollouts:
    """Rollouts of two turns. At any time they are cancelled, their process counts as dead, or their router dies."""

    def __init__(self, reports_end: bool) -> None:
        self.desk = Desk(room=2)
        self.actor = Actor(self.desk.desk)
        self.handle = RouterHandle(self.actor)
        self.reports_end = reports_end
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.cancelled: list[asyncio.Task[None]] = []

    async def play(self) -> None:
        name = new_request_id() if self.reports_end else uuid4().hex
        try:
            for num_tokens in (10, 20):
                server, _ = await self.handle.acquire_server.remote(name, [1] * num_tokens)
                await asyncio.sleep(0)
                self.handle.release_server.remote(server, name)
        finally:
            await asyncio.shield(self.handle.end_conversation.remote(name, None, None))

    def begin(self, number: int) -> None:
        self.tasks.setdefault(number, asyncio.create_task(self.play()))

    def cancel(self, number: int) -> None:
        if number in self.tasks:
            self.cancelled.append(self.tasks.pop(number))
            self.cancelled[-1].cancel()

    def drop(self, number: int) -> None:
        self.desk.now += 61.0
        self.desk.desk.drop_silent()

    def restart(self, number: int) -> None:
        self.desk = Desk(room=2)
        self.actor.restart(self.desk.desk)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks.values())
        await asyncio.wait([asyncio.create_task(asyncio.sleep(0)), *self.cancelled])
        await turns_until(lambda: not self.desk.router.status()["conversations"])
        assert self.desk.router.inflight == {"a": 0}
        self.desk.router.audit()
