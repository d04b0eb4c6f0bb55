"""routing.router: waiting and placement of requests, accounts that balance, servers and clients that fail."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.errors import EngineError
from verl_pivot.routing.baselines import LeastInflight
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.kv_forecast import KvForecast
from verl_pivot.routing.router import Router
from verl_pivot.routing.settings import make_routing_policy, parse_router

ROUTING_POLICIES = ["static", "least_inflight", "cache_aware", "kv_admission", "kv_forecast"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def load(capacity: int = 10_000, num_running: int = 1, *, max_running: int | None = None) -> EngineLoad:
    return EngineLoad(capacity=capacity, num_requests=num_running, max_running=max_running)


def make_router(
    policy: str = "kv_admission", servers: str = "ab", capacity: int = 10_000, budget: int = 1_000, **settings: object
) -> Router:
    chosen = parse_router({"policy": policy, "max_response_tokens": budget, **settings}, "test")
    router = Router(make_routing_policy(chosen), Clock(), forget_after_seconds=chosen.forget_after_seconds)
    for server in servers:
        router.add_server(server, load(capacity))
    return router


def clock_of(router: Router) -> Clock:
    clock = router._clock
    assert isinstance(clock, Clock)
    return clock


def prompt(number: int = 0, length: int = 100) -> list[int]:
    return [number] * length


async def acquire(
    router: Router, name: str, context: int = 0, *, reports_end: bool = True, number: int = 0, worker: str = "alive"
) -> str:
    return await router.acquire(name, 100 + context, f"prompt {number}", reports_end=reports_end, worker=worker)


async def begin(coroutine: Coroutine[Any, Any, str]) -> asyncio.Task[str]:
    """Start a task of the coroutine, and let it run until it waits for something."""
    task = asyncio.create_task(coroutine)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_a_conversation_waits_until_another_ends_and_its_cost_has_the_waiting_time() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "first")
    second = await begin(acquire(router, "second"))
    assert not second.done()

    clock_of(router).now = 7.5
    router.release("a", "first")
    router.end("first", 300)

    assert await second == "a"
    assert router.end("second", 10).wait_seconds == 7.5


async def test_committed_tokens_count_each_prompt_once_and_free_tokens_are_the_rest() -> None:
    router = make_router()
    await acquire(router, "v")
    await acquire(router, "w")
    await acquire(router, "x", number=1)
    router.release("a", "v")
    await acquire(router, "v", context=250)

    assert router.audit() == {
        "a": {"committed": 100 + 100 + 250, "free": 9_550, "capacity": 10_000},
        "b": {"committed": 100, "free": 9_900, "capacity": 10_000},
    }
    assert router.status()["servers"] == {"a": 2, "b": 1}


async def test_without_servers_the_error_has_the_text_on_which_verls_client_retries() -> None:
    with pytest.raises(RuntimeError, match=r"^No available servers in load balancer$"):
        await acquire(make_router(servers=""), "w")


async def test_waiting_requests_fail_when_the_last_server_is_removed() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "first")
    second = await begin(acquire(router, "second"))

    router.remove_server("a")

    with pytest.raises(RuntimeError, match=r"^No available servers in load balancer$"):
        await second
    router.add_server("b", load())
    assert await acquire(router, "second") == "b"


async def test_a_request_larger_than_every_kv_cache_is_refused_at_once() -> None:
    router = make_router(capacity=500)

    with pytest.raises(
        EngineError, match=r"601 tokens does not fit .* any engine, the largest of which holds 500 tokens:"
    ):
        await acquire(router, "w", context=501)


async def test_waiting_requests_go_to_a_server_that_is_added() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "first")
    second = await begin(acquire(router, "second"))

    router.add_server("b", load())

    assert await second == "b"


async def test_releases_and_ends_of_unknown_or_ended_conversations_are_ignored() -> None:
    router = make_router()
    server = await acquire(router, "w")
    router.release(server, "w")

    router.release(server, "w")
    router.release("nowhere", "w")
    router.release(server, "nobody")
    router.release(server, None)
    router.end("nobody", 5)

    assert router.counts.ignored == 5
    assert router.inflight == {"a": 0, "b": 0}
    router.audit()


async def test_a_cancelled_request_no_longer_waits() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "first")
    second, third = await begin(acquire(router, "second")), await begin(acquire(router, "third"))

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    router.end("first", 1)

    assert await third == "a"


async def test_a_request_that_is_cancelled_just_before_it_gets_a_server_gives_it_back() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "w")
    cancelled = await begin(acquire(router, "x"))
    waiting = await begin(acquire(router, "y"))

    cancelled.cancel()  # the coroutine learns of this in the next turn of the event loop
    router.release("a", "w")
    router.end("w", 5)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    router.end("x", None)

    assert await waiting == "a"
    assert router.inflight == {"a": 1}
    router.audit()


async def test_ending_a_waiting_conversation_withdraws_its_request() -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "first")
    second, third = await begin(acquire(router, "second")), await begin(acquire(router, "third"))

    router.end("second", None)
    router.end("first", 1)

    assert await third == "a"
    with pytest.raises(RuntimeError, match="second was ended while it waited"):
        await second


async def test_parallel_requests_of_one_conversation_run_on_one_server_and_each_counts() -> None:
    router = make_router(policy="least_inflight")

    servers = [await acquire(router, "w", reports_end=False) for _ in range(3)]
    assert len(set(servers)) == 1
    assert router.inflight[servers[0]] == 3

    for _ in range(3):
        router.release(servers[0], "w")
    assert sum(router.inflight.values()) == 0


async def test_a_silent_server_is_suspended_until_it_answers_and_its_conversations_continue_elsewhere() -> None:
    router = make_router()
    assert await acquire(router, "w") == "a"
    for _ in range(3):
        router.observe("b", load())
        router.observe("a", None)

    assert router.status()["suspended"] == ["a"]
    router.release("a", "w")
    assert router.counts.ignored == 1
    assert await acquire(router, "w", context=50) == "b"
    assert {await acquire(router, f"{number}") for number in range(4)} == {"b"}

    router.observe("a", load())
    assert await acquire(router, "x") == "a"
    assert router.end("w", 60).num_moves == 1


async def test_if_no_server_answers_all_stay_in_use() -> None:
    router = make_router()
    for _ in range(9):
        router.observe("a", None)
        router.observe("b", None)

    assert router.status()["suspended"] == []


@pytest.mark.parametrize("policy", ["kv_forecast", "kv_admission", "cache_aware", "least_inflight", "static"])
async def test_if_the_last_server_that_answers_is_removed_the_others_are_used_again(policy: str) -> None:
    router = make_router(policy)
    for _ in range(3):
        router.observe("b", load())
        router.observe("a", None)
    assert router.status()["suspended"] == ["a"]

    router.remove_server("b")

    assert (router.servers, router.status()["suspended"]) == (["a"], [])
    assert await acquire(router, "new") == "a"


@pytest.mark.parametrize("reports_end", [True, False])
async def test_conversations_of_a_dead_process_end_once_their_server_reports_no_work(reports_end: bool) -> None:
    router = make_router(servers="a", capacity=1_100)
    await acquire(router, "lost", reports_end=reports_end, worker="dead")
    waiting = await begin(acquire(router, "next"))
    clock_of(router).now = 61.0
    router.end_lost({"alive"})
    assert router.counts.lost == 0

    router.observe("a", load(1_100, num_running=0))
    router.end_lost({"alive"})

    assert (router.counts.lost, list(router.conversations)) == (1, ["next"])
    assert await waiting == "a"
    router.end_lost({"alive"})
    assert router.inflight == {"a": 1}
    router.audit()


async def test_a_request_that_began_after_the_server_last_reported_work_waits_for_its_next_report() -> None:
    router = make_router(servers="a")
    clock_of(router).now = 1.0
    router.observe("a", load(num_running=0))
    clock_of(router).now = 2.0
    await acquire(router, "w", worker="dead")
    router.end_lost({"alive"})
    assert router.counts.lost == 0

    router.observe("a", load(num_running=1))
    clock_of(router).now = 3.0
    router.observe("a", load(num_running=0))
    router.end_lost({"alive"})

    assert router.counts.lost == 1


@pytest.mark.parametrize("reports_end", [True, False])
async def test_a_paused_engine_without_work_has_lost_no_requests_and_teaches_no_wrong_times(reports_end: bool) -> None:
    """verl ends all turns before it pauses the engines, and its client asks again; the requests wait in the engines."""
    router = make_router("kv_forecast", servers="a")
    await acquire(router, "w", reports_end=reports_end)
    clock_of(router).now = 2.0
    router.release("a", "w")
    await acquire(router, "w", 50, reports_end=reports_end)

    for now in (4.0, 6.0, 300.0):
        clock_of(router).now = now
        router.observe("a", load(num_running=0))
        router.end_lost({"alive"})
    router.observe("a", load(num_running=1))
    assert (router.counts.lost, router.inflight) == (0, {"a": 1})
    clock_of(router).now = 314.0
    router.release("a", "w")
    await acquire(router, "w", 900, reports_end=reports_end)

    assert (router.counts.ignored, router.counts.returned) == (0, 2)
    policy = router._routing_policy
    assert isinstance(policy, KvForecast)
    assert policy._time_shares.running == 1.0


async def test_a_request_on_a_prefill_decode_pair_is_never_lost_but_forgotten_in_the_end() -> None:
    half = load(1_100, num_running=0).model_copy(update={"is_prefill_half": True})
    router = make_router(servers="", forget_after_seconds=60)
    router.add_server("a", half)
    await acquire(router, "w", reports_end=False)

    for now in (1.0, 2.0, 3.0):
        clock_of(router).now = now
        router.observe("a", half)
        router.end_lost(())
    assert router.status()["tokens"] == {"a": {"committed": 100, "free": None, "capacity": None}}
    assert (router.counts.lost, router.inflight) == (0, {"a": 1})

    clock_of(router).now = 61.0
    router.tick()
    assert (router.counts.forgotten, router.inflight) == (1, {"a": 0})


async def test_conversations_without_calls_are_forgotten_unless_a_request_runs() -> None:
    router = make_router(servers="a", capacity=2_200, forget_after_seconds=60)
    await acquire(router, "gone")
    router.release("a", "gone")
    await acquire(router, "runs")
    waiting = await begin(acquire(router, "waits"))

    clock_of(router).now = 61.0
    router.tick()

    assert await waiting == "a"
    assert router.counts.forgotten == 1
    assert router.status()["conversations"] == 2


class ForgettingPolicy(LeastInflight):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[list[str]] = []
        """Conversations of each call of `forget_prefixes`."""

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        self.forgotten.append(list(conversations))


def forgetting_router() -> tuple[ForgettingPolicy, Router]:
    policy = ForgettingPolicy()
    router = Router(policy, Clock(), forget_after_seconds=60)
    router.add_server("a", load())
    return policy, router


async def test_only_newer_weights_than_ever_invalidate_prefixes() -> None:
    policy, router = forgetting_router()
    await acquire(router, "old")

    num_forgotten = []
    for step in (None, 3, 3, 4, 4, 3, None, 5):
        clock_of(router).now += 1.0
        await acquire(router, "w")
        router.end("w", 1, step)
        num_forgotten.append(len(policy.forgotten))

    assert num_forgotten == [0, 0, 0, 1, 1, 1, 1, 2]
    assert policy.forgotten == [["old"], ["old"]]


async def test_the_first_end_of_a_step_invalidates_no_prefix_of_turns_that_began_with_its_weights() -> None:
    policy, router = forgetting_router()
    for name in ("unfinished", "returns", "ends"):
        await acquire(router, name)
    router.release("a", "returns")
    clock_of(router).now = 10.0
    router.end("ends", 100, 1)

    clock_of(router).now = 20.0
    await acquire(router, "returns", context=50)
    for name in ("new", "first to end"):
        await acquire(router, name)
    clock_of(router).now = 30.0
    router.end("first to end", 100, 2)
    assert policy.forgotten == [["unfinished"]]

    assert router.forget_prefixes() == 3
    assert sorted(policy.forgotten[1]) == ["new", "returns", "unfinished"]


async def test_a_capacity_that_is_reported_late_is_used() -> None:
    router = make_router(servers="")
    router.add_server("a", None)
    assert router.audit()["a"] == {"committed": 0, "free": None, "capacity": None}
    await acquire(router, "w")

    router.observe("a", load(1_100))

    assert router.audit()["a"]["capacity"] == 1_100
    assert router.inflight == {"a": 1}
    waiting = await begin(acquire(router, "x"))
    assert not waiting.done()
    router.end("w", 5)
    assert await waiting == "a"


async def test_an_engine_gets_no_more_rollouts_than_the_requests_that_it_reports_to_run_at_once() -> None:
    router = make_router("kv_forecast", servers="")
    router.add_server("a", load(max_running=1))
    await acquire(router, "w")
    waiting = await begin(acquire(router, "x"))
    assert not waiting.done()

    router.observe("a", load(max_running=2))

    assert await waiting == "a"


KINDS = ["acquire", "release", "end", "add", "remove", "silent", "idle", "busy", "dead", "later", "forget", "cancel"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.booleans()), max_size=60)


@settings(max_examples=150, deadline=None)
@given(policy=st.sampled_from(ROUTING_POLICIES), operations=OPERATIONS)
def test_any_sequence_of_calls_keeps_accounts_balanced_and_leaves_nobody_waiting(
    policy: str, operations: list[tuple[str, int, bool]]
) -> None:
    async def run() -> None:
        clients = RandomClients(policy)
        for kind, number, flag in operations:
            await getattr(clients, kind)(f"c{number}", number, flag)
            await clients.settle()
        await clients.finish()

    asyncio.run(asyncio.wait_for(run(), 20))


class RandomClients:
    """Clients and servers that make any call at any time."""

    def __init__(self, policy: str) -> None:
        self.router = make_router(policy, servers="ab", capacity=2_500, forget_after_seconds=20)
        self.placed: dict[str, str] = {}
        self.contexts: dict[str, int] = {}
        self.tasks: dict[str, asyncio.Task[str]] = {}

    async def settle(self) -> None:
        """Let tasks run, note which requests got a server, and audit the accounts."""
        for _ in range(2):
            await asyncio.sleep(0)
        for name, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[name]
                if not task.cancelled() and task.exception() is None:
                    self.placed[name] = task.result()
        self.router.audit()
        waiters = self.router._waiters.values()
        assert self.router.num_waiting_to_begin == sum(not waiter.context_tokens for waiter in waiters)

    async def acquire(self, name: str, number: int, flag: bool) -> None:
        if name not in self.placed and name not in self.tasks:
            context = self.contexts[name] = self.contexts.get(name, -50) + 50
            self.tasks[name] = await begin(acquire(self.router, name, context, reports_end=flag, number=number % 3))

    async def release(self, name: str, number: int, flag: bool) -> None:
        self.router.release(self.placed.pop(name, "abc"[number % 3]), name)

    async def end(self, name: str, number: int, flag: bool) -> None:
        self.placed.pop(name, None)
        self.contexts.pop(name, None)
        self.router.end(name, number * 100 if flag else None, number)

    async def cancel(self, name: str, number: int, flag: bool) -> None:
        if name in self.tasks:
            self.tasks[name].cancel()

    async def add(self, name: str, number: int, flag: bool) -> None:
        self.router.add_server("abc"[number % 3], load(2_500) if flag else None)

    async def remove(self, name: str, number: int, flag: bool) -> None:
        self.router.remove_server("abc"[number % 3])

    async def silent(self, name: str, number: int, flag: bool) -> None:
        self.router.observe("abc"[number % 3], None)

    async def idle(self, name: str, number: int, flag: bool) -> None:
        self.router.observe("abc"[number % 3], load(2_500, num_running=0))

    async def busy(self, name: str, number: int, flag: bool) -> None:
        self.router.observe("abc"[number % 3], load(2_500 + 100 * flag))

    async def dead(self, name: str, number: int, flag: bool) -> None:
        self.router.end_lost({"alive"} if flag else ())

    async def later(self, name: str, number: int, flag: bool) -> None:
        clock_of(self.router).now += 5.0 * number
        self.router.tick()

    async def forget(self, name: str, number: int, flag: bool) -> None:
        self.router.forget_prefixes()

    async def finish(self) -> None:
        """Release and end what runs, so that every waiting request gets its turn."""
        self.router.add_server("a", load(2_500))
        for _ in range(100):
            for name in list(self.placed):
                self.router.release(self.placed.pop(name), name)
                self.router.end(name, 10)
            clock_of(self.router).now += 30.0
            self.router.tick()
            await self.settle()
        status = self.router.status()
        assert (status["waiting"], status["total_inflight"], self.tasks) == (0, 0, {})
