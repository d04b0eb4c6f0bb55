"""The pool of workers on a cluster whose nodes die and join; the cluster is a fake without Ray."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.profiling.profiler import Totals
from verl_pivot.profiling.turn_pool import Measured, TurnPool
from verl_pivot.types import Message, Role, Turn, TurnProfile
from verl_pivot.workers.worker_pool import Slot, WorkerLostError, WorkerPool

A, B, C = Slot("a", 0), Slot("b", 0), Slot("c", 0)


def make_turn(trajectory_id: str = "t", index: int = 0) -> Turn:
    return Turn(
        trajectory_id=trajectory_id,
        index=index,
        state=(Message(role=Role.USER, content="Hi."),),
        expert=Message(role=Role.ASSISTANT, content="Hello."),
    )


def make_measured(turn: Turn, **changes: object) -> Measured:
    profile = TurnProfile(trajectory_id=turn.trajectory_id, index=turn.index, samples=(), num_prompt_tokens=1)
    totals = Totals(num_turns=1, num_tokens=10, num_prompt_tokens=5, num_cached_tokens=2)
    return Measured(**{"profile": profile, "totals": totals, "judge_usage": {("judge", "requests"): 3}, **changes})  # type: ignore[arg-type]


@dataclass
class FakeWorker:
    """Worker that fails at its start or dies at a turn, where its cluster says so."""

    slot: Slot
    cluster: "FakeCluster"
    is_dead: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False

    async def start(self) -> None:
        await asyncio.sleep(0)
        if self.slot in self.cluster.broken:
            raise self.cluster.broken[self.slot]

    async def work(self, turn: Turn) -> Measured:
        self.cluster.asked[self.slot].append(turn.id)
        if self.cluster.deadly[turn.id]:
            self.cluster.deadly[turn.id] -= 1
            self.is_dead.set()
        try:
            async with asyncio.timeout(self.cluster.seconds):
                await self.is_dead.wait()
        except TimeoutError:
            return self.cluster.answer(turn)
        raise WorkerLostError(f"{self.slot.node_id} died")

    async def end(self) -> None:
        self.has_ended = True

    def kill(self) -> None:
        self.is_dead.set()


@dataclass
class FakeCluster:
    """Cluster whose nodes the test adds and removes."""

    alive: set[Slot]
    deadly: Counter[str] = field(default_factory=Counter)
    """{id of a turn: number of workers that will still die at it}"""
    broken: dict[Slot, Exception] = field(default_factory=dict)
    """{slot: error with which each of its workers starts}"""
    seconds: float = 0.01
    """Seconds that one turn takes."""
    answer: Callable[[Turn], Measured] = make_measured
    made: list[FakeWorker] = field(default_factory=list)
    asked: dict[Slot, list[str]] = field(default_factory=lambda: {A: [], B: [], C: []})

    async def slots(self) -> Mapping[Slot, str]:
        return {slot: f"at {slot.node_id}" for slot in sorted(self.alive)}

    def make(self, slot: Slot, address: str) -> FakeWorker:
        self.made.append(FakeWorker(slot, self))
        return self.made[-1]


@dataclass
class Run:
    """Profiles, messages, totals and judge usage of the turns that a test has measured."""

    profiles: list[TurnProfile] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    usage: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def ids(self) -> list[str]:
        return [f"{profile.trajectory_id}:{profile.index}" for profile in self.profiles]


@asynccontextmanager
async def pool_of(cluster: FakeCluster, run: Run) -> AsyncIterator[TurnPool]:
    pool = WorkerPool(cluster, run.said.append, check_seconds=0.01)
    try:
        await pool.open()
        yield TurnPool(pool, run.totals, run.usage.update, run.said.append)
    finally:
        await pool.close()


async def measure(cluster: FakeCluster, turns: Sequence[Turn]) -> Run:
    run = Run()
    async with pool_of(cluster, run) as pool:
        run.profiles += await asyncio.gather(*map(pool.measure, turns))
    return run


def turns_of(*trajectory_ids: str, num_turns: int = 3) -> list[Turn]:
    return [make_turn(identity, index) for identity in trajectory_ids for index in range(num_turns)]


def turn_ids(*trajectory_ids: str) -> list[str]:
    return [turn.id for turn in turns_of(*trajectory_ids)]


async def test_trajectories_are_spread_over_workers_and_stay_with_theirs() -> None:
    cluster = FakeCluster({A, B})
    run = Run()

    async with pool_of(cluster, run) as pool:
        await asyncio.sleep(0.02)  # both workers are ready then
        await asyncio.gather(*map(pool.measure, turns_of("t", "u")))
        await asyncio.gather(*map(pool.measure, turns_of("v", "t")))

    assert cluster.asked == {A: turn_ids("t", "v", "t"), B: turn_ids("u"), C: []}


async def test_the_turns_of_a_lost_worker_are_measured_by_others() -> None:
    cluster = FakeCluster({A, B}, deadly=Counter({"t:1": 1}))
    turns = turns_of("t", "u", "v")

    run = await measure(cluster, turns)

    assert run.ids == [turn.id for turn in turns]
    assert [sentence.split(" (")[0] for sentence in run.said] == ["a died"]
    assert run.totals == Totals(num_turns=9, num_tokens=90, num_prompt_tokens=45, num_cached_tokens=18)
    assert run.usage == {("judge", "requests"): 27}


async def test_a_lost_worker_is_replaced() -> None:
    cluster = FakeCluster({A}, deadly=Counter({"t:0": 2}))

    run = await measure(cluster, turns_of("t"))

    assert run.ids == ["t:0", "t:1", "t:2"]
    assert [worker.slot for worker in cluster.made] == [A, A, A]
    assert [worker.has_ended for worker in cluster.made] == [False, False, True]


@pytest.mark.parametrize("alive", [{A}, {A, B}, {A, B, C}])
async def test_the_error_names_the_turn_that_kills_its_workers_and_none_beside_it(alive: set[Slot]) -> None:
    cluster = FakeCluster(alive, deadly=Counter({"u:1": 3}))

    with pytest.raises(EngineError, match=r"^3 workers .* died .* on turn 1 of trajectory 'u' .* died\): leave"):
        await measure(cluster, turns_of("t", "u", "v", "w"))

    assert all(worker.has_ended or worker.is_dead.is_set() for worker in cluster.made)


async def test_nodes_may_join_and_leave() -> None:
    cluster, run = FakeCluster({A}), Run()

    async with pool_of(cluster, run) as pool:
        await pool.measure(make_turn("t"))
        cluster.alive = {A, B}
        await asyncio.sleep(0.05)
        await asyncio.gather(*map(pool.measure, turns_of("t", "u")))
        cluster.alive = {B}
        await asyncio.sleep(0.05)
        await asyncio.gather(*map(pool.measure, turns_of("t", "u")))

    assert cluster.asked == {A: ["t:0", "t:0", "t:1", "t:2"], B: [*["u:0", "u:1", "u:2"], *turn_ids("t", "u")], C: []}
    assert run.said == ["node at a has left the cluster (workers left: 1)"]


async def test_settings_that_do_not_fit_a_node_end_the_run() -> None:
    cluster = FakeCluster({A, B}, broken={A: ConfigError("no such model"), B: ConfigError("no such model")})

    with pytest.raises(ConfigError, match="no such model"):
        await measure(cluster, turns_of("t"))


async def test_slots_that_lose_every_worker_are_given_up() -> None:
    cluster = FakeCluster({A, B}, broken={A: WorkerLostError("no memory")})
    one_of_two = await measure(cluster, turns_of("t", num_turns=1) * 40)
    cluster.broken[B] = WorkerLostError("no memory")

    with pytest.raises(EngineError, match="no worker is left: every slot lost 3 workers in a row"):
        await measure(cluster, turns_of("t"))

    assert len(one_of_two.profiles) == 40
    assert cluster.asked[A] == []


async def test_the_loss_of_an_endpoint_is_reported_once() -> None:
    cluster = FakeCluster({A}, answer=lambda turn: make_measured(turn, messages=("http://x died",)))

    assert (await measure(cluster, turns_of("t"))).said == ["http://x died"]


async def test_an_error_of_a_worker_ends_the_run() -> None:
    def refuse(turn: Turn) -> Measured:
        raise EngineError("no endpoint is left")

    with pytest.raises(EngineError, match="no endpoint is left"):
        await measure(FakeCluster({A}, answer=refuse), turns_of("t"))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(turn_ids("t", "u", "v", "w")), max_size=2), st.sampled_from([{A}, {A, B}, {A, B, C}]))
def test_every_turn_is_measured_once_whichever_workers_are_lost(deadly: list[str], alive: set[Slot]) -> None:
    turns = turns_of("t", "u", "v", "w")

    run = asyncio.run(measure(FakeCluster(set(alive), deadly=Counter(deadly), seconds=0.001), turns))

    assert run.ids == [turn.id for turn in turns]
    assert run.totals.num_turns == 12
