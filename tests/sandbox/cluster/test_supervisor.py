"""Choice of the services to start and to end, and the supervisor that does so on a scripted cluster."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_backend import TOKEN, FakeBackend, serving
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.cluster.placement import (
    FAILED_SECONDS,
    MAX_FAILED_CHECKS,
    MAX_FAILURES,
    STABLE_SECONDS,
    Phase,
    PlacementPlan,
    ServicePlace,
    plan,
)
from verl_pivot.sandbox.cluster.supervisor import Started, Supervisor
from verl_pivot.sandbox.wire import Health

HEALTH = Health(status="ok", tier="T2", backend="zygote", slots=4, queued=0, in_flight=0, version="1")
NOTHING = PlacementPlan(forget=(), start=(), end=())


def make_place(node_id: str = "a", phase: Phase = Phase.WAITING, **changes: float) -> ServicePlace:
    place = ServicePlace(node_id=node_id, address="10.0.0.1", phase=phase)
    for name, value in changes.items():
        setattr(place, name, value)
    return place


def test_a_node_that_joins_gets_a_service() -> None:
    assert plan({"a": "10.0.0.1"}, {}, 0.0) == PlacementPlan(forget=(), start=("a",), end=())


def test_a_node_that_left_is_forgotten() -> None:
    assert plan({}, {"a": make_place(phase=Phase.SERVING)}, 0.0) == PlacementPlan(forget=("a",), start=(), end=())


def test_nothing_is_done_for_a_service_that_serves_starts_or_ends() -> None:
    for phase in (Phase.STARTING, Phase.SERVING, Phase.ENDING):
        assert plan({"a": "10.0.0.1"}, {"a": make_place(phase=phase)}, 1e9) == NOTHING


def test_a_service_is_ended_after_three_failed_checks_in_a_row() -> None:
    place = make_place()
    place.serves("http://a", HEALTH, 0.0)
    ends = []
    for is_well in (False, False, True, False, False, False):
        place.check_passed(HEALTH, 1.0) if is_well else place.check_failed("silence")
        ends.append(plan({"a": "10.0.0.1"}, {"a": place}, 1.0).end)

    assert ends == [(), (), (), (), (), ("a",)]


def test_pauses_double_and_then_a_node_is_left_alone_for_long() -> None:
    place, pauses = make_place(), []
    for _ in range(MAX_FAILURES + 1):
        place.failed("no bubblewrap", 100.0)
        pauses.append((place.phase, place.start_at - 100.0))

    assert pauses == [
        (Phase.WAITING, 1.0),
        (Phase.WAITING, 2.0),
        (Phase.WAITING, 4.0),
        (Phase.WAITING, 8.0),
        (Phase.FAILED, FAILED_SECONDS),
        (Phase.FAILED, FAILED_SECONDS),
    ]
    assert plan({"a": "10.0.0.1"}, {"a": place}, 100.0 + FAILED_SECONDS - 1.0) == NOTHING
    assert plan({"a": "10.0.0.1"}, {"a": place}, 100.0 + FAILED_SECONDS).start == ("a",)


def test_a_failed_node_is_tried_at_once_when_somebody_asks() -> None:
    place = make_place()
    for _ in range(MAX_FAILURES):
        place.failed("no bubblewrap", 100.0)
    place.try_again()

    assert plan({"a": "10.0.0.1"}, {"a": place}, 100.0).start == ("a",)
    assert place.problem == "no bubblewrap"


def test_failures_are_forgotten_only_after_a_stable_time() -> None:
    place = make_place(num_failures=3)
    place.serves("http://a", HEALTH, 100.0)
    place.check_passed(HEALTH, 100.0 + STABLE_SECONDS - 1.0)
    assert place.num_failures == 3

    place.check_passed(HEALTH, 100.0 + STABLE_SECONDS)
    assert place.num_failures == 0


IDS = st.sampled_from("abcde")
PLACES = st.dictionaries(
    IDS,
    st.builds(
        make_place,
        phase=st.sampled_from(list(Phase)),
        start_at=st.floats(0.0, 20.0),
        num_failed_checks=st.integers(0, 2 * MAX_FAILED_CHECKS),
    ),
)


@given(st.sets(IDS), PLACES, st.floats(0.0, 20.0))
def test_each_node_is_in_one_list_at_most_and_none_gets_a_second_service(
    alive: set[str], places: dict[str, ServicePlace], now: float
) -> None:
    for node_id, place in places.items():
        place.node_id = node_id

    chosen = plan(dict.fromkeys(alive, "10.0.0.1"), places, now)

    everything = [*chosen.forget, *chosen.start, *chosen.end]
    idle = {node_id for node_id, place in places.items() if place.phase in (Phase.WAITING, Phase.FAILED)}
    assert len(everything) == len(set(everything))
    assert set(chosen.forget) == places.keys() - alive
    assert alive - places.keys() <= set(chosen.start) <= alive - places.keys() | idle
    assert all(places[node_id].phase is Phase.SERVING for node_id in chosen.end)


@dataclass(slots=True)
class FakeNodeService:
    """A NodeService whose service runs in this process."""

    node_id: str
    problem: str
    did: list[str]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> Started:
        self.did.append(f"start {self.node_id}")
        if self.problem == "unreachable":
            raise SandboxError(self.problem)
        if self.problem:
            return Started(problem=self.problem)
        service = await self.stack.enter_async_context(serving(FakeBackend()))
        return Started(url=service.url)

    async def end(self) -> None:
        self.did.append(f"end {self.node_id}")
        await self.stack.aclose()

    def abandon(self) -> None:
        self.did.append(f"abandon {self.node_id}")


class FakeCluster:
    """A cluster whose nodes the test sets."""

    def __init__(self, *node_ids: str, problems: Mapping[str, str] | None = None) -> None:
        self.node_ids = set(node_ids)
        self.problems = dict(problems or {})
        """{node id: why its service does not start}."""
        self.did: list[str] = []
        self.services: list[FakeNodeService] = []

    async def alive_nodes(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self.node_ids), "127.0.0.1")

    def make_service(self, place: ServicePlace, arguments: tuple[str, ...], token: str) -> FakeNodeService:
        service = FakeNodeService(place.node_id, self.problems.get(place.node_id, ""), self.did)
        self.services.append(service)
        return service


@asynccontextmanager
async def supervising(cluster: FakeCluster) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(cluster, (), TOKEN, check_seconds=0.02)
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        for service in cluster.services:
            await service.stack.aclose()


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20.0):
        while not await is_true():  # noqa: ASYNC110  it asks about what has no event
            await asyncio.sleep(0.01)


async def test_services_follow_the_nodes() -> None:
    cluster = FakeCluster("a", "b")
    async with supervising(cluster) as supervisor:

        async def phases() -> dict[str, str]:
            return {place.node_id: place.phase for place in await supervisor.places()}

        async def both() -> bool:
            return await phases() == {"a": "serving", "b": "serving"}

        async def only_c() -> bool:
            return await phases() == {"c": "serving"}

        await until(both)
        assert len((await supervisor.listing()).urls) == 2
        cluster.node_ids = {"c"}
        await until(only_c)
        assert len((await supervisor.listing()).urls) == 1
        assert sorted(cluster.did) == ["abandon a", "abandon b", "start a", "start b", "start c"]

    assert cluster.did[-1] == "end c"


async def test_a_service_that_stops_answering_is_ended_and_started_anew() -> None:
    cluster = FakeCluster("a")
    async with supervising(cluster) as supervisor:

        async def is_listed() -> bool:
            return len((await supervisor.listing()).urls) == 1

        async def is_replaced() -> bool:
            return len(cluster.services) == 2 and await is_listed()

        await until(is_listed)
        await cluster.services[0].stack.aclose()
        await until(is_replaced)
        (place,) = await supervisor.places()

    assert cluster.did[:3] == ["start a", "end a", "start a"]
    assert (place.num_failures, "does not answer" in place.problem) == (1, True)


async def test_a_service_that_does_not_start_is_named_and_the_others_serve() -> None:
    cluster = FakeCluster("a", "b", "c", problems={"a": "bwrap is not installed", "b": "unreachable"})
    async with supervising(cluster) as supervisor:

        async def is_settled() -> bool:
            return [place.num_failures for place in await supervisor.places()] == [1, 1, 0] and (
                len((await supervisor.listing()).urls) == 1
            )

        await until(is_settled)
        problems = {place.node_id: place.problem for place in await supervisor.places()}

    assert problems == {"a": "bwrap is not installed", "b": "unreachable", "c": ""}
