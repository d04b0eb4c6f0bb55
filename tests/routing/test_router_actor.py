"""routing.router_actor: the actor behind verl's own factory and client, with engines whose loads the test sets."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from omegaconf import OmegaConf

from tests.support.fake_engine import Answer, FakeServer, fake_server
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.routing.client import REPORTS_END, end_conversation, new_request_id
from verl_pivot.routing.router_handle import RouterHandle
from verl_pivot.routing.settings import parse_router

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class Engines:
    """Fake servers and the handles of their actors, by address."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self.servers = servers
        self.names = [server.url.removeprefix("http://") for server in servers]
        self.handles = {name: f"the actor of {name}" for name in self.names}
        self.num_reads = 0
        """Number of times that the load of a server was read."""


@contextmanager
def engines(num: int, capacity: object = 10_000, **others: object) -> Iterator[Engines]:
    """Fake engines that report a KV cache of `capacity` tokens."""
    rank: dict[str, Any] = {"num_running_reqs": 1, "num_waiting_reqs": 0}
    rank |= {"max_total_num_tokens": capacity, **others}

    def answer(path: str, body: object) -> Answer:
        assert path == "/v1/loads?include=core,disagg"
        found.num_reads += 1
        return Answer(body={"loads": [rank]})

    with ExitStack() as stack:
        found = Engines([stack.enter_context(fake_server(answer)) for _ in range(num)])
        yield found


def make_router(folder: Path, servers: dict[str, Any], **settings: object) -> Any:
    """The handle of the router's actor, made by verl from a YAML file."""
    from verl.workers.rollout.router import get_router_handle

    path = folder / "router.yaml"
    values = {
        "router_class": "verl_pivot.routing.router_actor.KvRouter",
        "max_response_tokens": 1_000,
        "poll_seconds": 0.1,
        **settings,
    }
    path.write_text(yaml.safe_dump(values))
    return get_router_handle(servers, router_config_path=str(path))


async def ask(router: Any, name: str, context: int = 0, number: int = 0) -> tuple[str, Any]:
    found: tuple[str, Any] = await router.acquire_server.remote(
        request_id=name + REPORTS_END, prompt_ids=[number] * (100 + context)
    )
    return found


def asked(router: Any, names: Iterable[str]) -> list["asyncio.Task[tuple[str, Any]]"]:
    """Tasks that ask for the first turn of each conversation."""
    return [asyncio.create_task(ask(router, name)) for name in names]


def get(*references: Any) -> Any:
    import ray

    found = ray.get(list(references), timeout=60)
    return found[0] if len(found) == 1 else found


async def end(router: Any, name: str) -> Any:
    return await router.end_conversation.remote(name + REPORTS_END, 10, None)


async def until(router: Any, condition: Callable[[Any], object]) -> None:
    """Wait until the condition is true of the router's status."""
    deadline = time.monotonic() + 60
    while not condition(await router.get_status.remote()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_requests_wait_for_room_in_the_kv_cache_that_engines_report(tmp_path: Path) -> None:
    with engines(2, capacity=1_100) as two:
        router = make_router(tmp_path, two.handles, policy="kv_admission")

        first, second = await asyncio.gather(*asked(router, ["first", "second"]))
        assert {first[0], second[0]} == set(two.names)
        assert first[1] == two.handles[first[0]]
        (third,) = asked(router, ["third"])
        await until(router, lambda status: status["waiting"] == 1)
        status = await router.get_status.remote()
        assert (status["waiting"], status["total_inflight"]) == (1, 2)
        assert status["tokens"][first[0]] == {"committed": 100, "free": 1_000, "capacity": 1_100}
        assert not third.done()

        router.release_server.remote(server_id=first[0], request_id="first" + REPORTS_END)
        assert (await end(router, "first")).num_moves == 0
        assert (await third)[0] == first[0]


async def test_conversations_that_wait_on_one_actor_begin_on_the_engines_of_another(tmp_path: Path) -> None:
    """All rollouts of a prompt ask the first actor, whose two engines have room for one rollout each."""
    with engines(4, capacity=1_100) as four, engines(1) as new:
        router = make_router(tmp_path, four.handles, policy="kv_admission", engines_per_shard=2)

        found = await asyncio.gather(*asked(router, ["a", "b", "c", "d"]))

        assert sorted(server for server, _ in found) == sorted(four.names)
        assert all(handle == four.handles[server] for server, handle in found)
        status = get(router.get_status.remote())
        assert status["servers"] == dict.fromkeys(four.names, 1)
        assert (status["total_inflight"], status["active_servers"], status["waiting"]) == (4, 4, 0)
        assert set(get(router.audit.remote())) == set(four.names)
        assert [get(router.get_inflight_count.remote(name)) for name in four.names] == [1] * 4
        assert get(router.get_total_inflight.remote()) == 4
        assert get(router.clear_sticky_cache.remote())["cleared_entries"] == 4

        get(router.remove_servers.remote(four.names[2:]))
        get(router.add_servers.remote(new.handles))
        assert sorted(get(router.get_all_servers.remote())) == sorted([*four.names[:2], *new.names])
        moved = [name for name, (server, _) in zip("abcd", found, strict=True) if server in four.names[2:]]
        places = [await ask(router, name, context=50) for name in moved]
        assert [server for server, _ in places] == new.names * 2
        for name in "abcd":
            await end(router, name)
        status = get(router.get_status.remote())
        assert (status["conversations"], status["counts"]["ignored"]) == (0, 0)


async def test_a_dead_engine_gets_no_more_requests_and_an_added_one_does(tmp_path: Path) -> None:
    with engines(2) as two, engines(1) as new:
        router = make_router(tmp_path, two.handles)
        two.servers[0].stop()
        await until(router, lambda status: status["suspended"] == two.names[:1])

        found = [await ask(router, f"c{number}", number=number) for number in range(4)]
        assert {server for server, _ in found} == {two.names[1]}

        get(router.add_servers.remote(new.handles))
        get(router.remove_servers.remote(two.names))
        assert get(router.get_all_servers.remote()) == new.names
        assert await ask(router, "c0", context=50) == (new.names[0], new.handles[new.names[0]])


@pytest.mark.parametrize("capacity", [-5, "much", 2**60, None])
async def test_an_engine_that_reports_impossible_values_is_used_by_its_number_of_conversations(
    tmp_path: Path, capacity: object
) -> None:
    with engines(2, capacity=capacity) as two:
        router = make_router(tmp_path, two.handles)

        found = [await ask(router, f"c{number}", number=number) for number in range(4)]

        assert sorted(server for server, _ in found) == sorted([*two.names, *two.names])
        assert {tokens["capacity"] for tokens in get(router.get_status.remote())["tokens"].values()} == {None}


async def test_a_prefill_decode_pair_is_used_by_its_number_of_conversations_and_loses_no_request(
    tmp_path: Path,
) -> None:
    """The address that verl names is that of the half that prefills, which has no work while the other half decodes."""
    with engines(2, num_running_reqs=0, disaggregation={"mode": "prefill"}) as two:
        router = make_router(tmp_path, two.handles, poll_seconds=0.02)
        found = [await ask(router, f"c{number}", number=number) for number in range(2)]

        num_reads = two.num_reads
        await until(router, lambda _: two.num_reads > num_reads + 20)

        status = await router.get_status.remote()
        assert sorted(server for server, _ in found) == sorted(status["prefill_halves"]) == sorted(two.names)
        assert (status["total_inflight"], status["counts"]["lost"], status["max_running"]) == (2, 0, {})


async def test_without_engines_the_error_has_the_text_of_verls_own_router(tmp_path: Path) -> None:
    router = make_router(tmp_path, {})

    with pytest.raises(RuntimeError, match=r"^No available servers in load balancer$"):
        await ask(router, "w")
    assert get(router.get_total_inflight.remote()) == 0


def test_a_typo_in_the_yaml_raises_an_error_with_the_known_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"router YAML\.kv_forecast\.filll: unknown key; known: .* fill, "):
        make_router(tmp_path, {}, kv_forecast={"filll": 0.5})


def test_a_typo_on_the_command_line_stops_the_launch() -> None:
    from hydra import compose, initialize_config_module

    from verl_pivot.launch import check_config

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", ["+router=kv_forecast", "+pivot.router.kv_forecast.filll=0.5"])

    with pytest.raises(ConfigError, match=r"pivot\.router\.kv_forecast\.filll: unknown key; known: .* fill, "):
        check_config(config, [])


@pytest.mark.parametrize("reports_end", [True, False])
async def test_waiting_turns_take_none_of_the_calls_that_the_actor_runs_at_once(
    tmp_path: Path, reports_end: bool
) -> None:
    """With four calls at once, 1,000 calls that each wait for a server would let neither release nor end run."""
    from verl_pivot.routing.router_actor import start_actor

    names = [new_request_id() if reports_end else uuid4().hex for _ in range(1_000)]
    with engines(1, capacity=1_100) as one:
        settings = parse_router({"max_response_tokens": 1_000, "policy": "kv_admission"}, "test")
        router = RouterHandle(start_actor(one.handles, settings, max_concurrency=4)[0])

        async def play(name: str) -> None:
            server, _ = await router.acquire_server.remote(name, [1] * 100)
            router.release_server.remote(server, name)
            if reports_end:
                await router.end_conversation.remote(name, 10, None)

        await asyncio.wait_for(asyncio.gather(*map(play, names)), 120)
        await until(router, lambda status: status["total_inflight"] == 0)
        assert get(router.get_status.remote())["counts"]["released"] == 1_000


def watch_event_loop(actor: Any) -> None:
    """Let an actor note the CPU seconds of each turn of its event loop."""
    actor.turn_seconds = [0.0]

    async def watch() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            actor.turn_seconds.append(now - before)
            before = now

    loop = actor._started.get_loop()
    loop.call_soon_threadsafe(lambda: setattr(actor, "watching", loop.create_task(watch())))


async def test_no_number_of_waiting_turns_keeps_a_small_actor_busy_for_10_ms(tmp_path: Path) -> None:
    """A release waits for one turn of the actor's event loop at most; its CPU time does not depend on other load.

    The actor runs four calls at once. Meanwhile it polls its engines and publishes its gauges.
    """
    from verl_pivot.routing.router_actor import start_actor

    with engines(4, capacity=22_000) as four:
        settings = parse_router({"max_response_tokens": 1_000, "policy": "kv_admission", "poll_seconds": 0.5}, "test")
        router = RouterHandle(start_actor(four.handles, settings, max_concurrency=4)[0])
        names = [f"{number}" for number in range(80)]
        places = [await ask(router, name) for name in names]
        get(router.actors[0].__ray_call__.remote(watch_event_loop))

        waits = asked(router, (f"w{number}" for number in range(10_000)))
        await until(router, lambda status: status["waiting"] == 10_000)
        for name, (server, _) in zip(names, places, strict=True):
            router.release_server.remote(server_id=server, request_id=name + REPORTS_END)
            await end(router, name)
        await until(router, lambda status: status["waiting"] == 10_000 - 80)

        seconds = get(router.actors[0].__ray_call__.remote(lambda found: sorted(found.turn_seconds)[-10:]))
        assert 0.0 < seconds[-1] < 0.010, seconds
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def test_a_process_that_dies_while_its_turns_wait_gives_their_room_back(tmp_path: Path) -> None:
    """The actor's clock is moved on by the minute of silence after which a process counts as dead."""
    import ray

    @ray.remote
    class AgentLoops:
        async def play(self, router: Any, names: list[str]) -> None:
            await asyncio.gather(*(router.acquire_server.remote(name, [1] * 100) for name in names))

    def move_clock(actor: Any) -> int:
        clock = actor._desk._clock
        actor._desk._clock = lambda: clock() + 61.0
        return int(actor._desk.drop_silent())

    with engines(1, capacity=1_100) as one:
        router = make_router(tmp_path, one.handles, policy="kv_admission")
        await ask(router, "first")
        worker = AgentLoops.remote()  # type: ignore[attr-defined]
        waits = worker.play.remote(router, [new_request_id() for _ in range(5)])
        await until(router, lambda status: status["waiting"] == 5)

        ray.kill(worker)
        del waits
        assert get(router.actors[0].__ray_call__.remote(move_clock)) == 5

        await end(router, "first")
        assert await ask(router, "next") == (one.names[0], one.handles[one.names[0]])


async def play(router: Any, name: str) -> str:
    """Play a rollout of two turns; returns the server of the second one."""
    server = ""
    for context in (0, 50):
        server, _ = await ask(router, name, context)
        await asyncio.sleep(0.05)
        router.release_server.remote(server_id=server, request_id=name + REPORTS_END)
    await end(router, name)
    return server


def kill_process(actor: Any) -> None:
    """Kill the process of an actor, as the kernel does when memory is short."""
    os.kill(get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


async def test_a_router_whose_process_is_killed_during_a_step_is_restarted_with_its_newest_servers(
    tmp_path: Path,
) -> None:
    with engines(2, capacity=1_100) as two, engines(1, capacity=1_100) as new:
        router = make_router(tmp_path, two.handles, policy="kv_admission")
        get(router.add_servers.remote(new.handles))
        get(router.remove_servers.remote(two.names[:1]))
        rollouts = [asyncio.create_task(play(router, f"c{number}")) for number in range(40)]
        await until(router, lambda status: status["waiting"] and status["counts"]["ended"] > 2)

        kill_process(router.actors[0])

        served = await asyncio.wait_for(asyncio.gather(*rollouts), 120)
        assert set(served) == {two.names[1], *new.names}
        assert sorted(get(router.get_all_servers.remote())) == sorted(set(served))
        status = await router.get_status.remote()
        assert (status["conversations"], status["total_inflight"], status["waiting"]) == (0, 0, 0)
        get(router.audit.remote())


async def test_an_actor_that_has_died_for_good_leaves_its_rollouts_and_engines_to_the_others(tmp_path: Path) -> None:
    """This holds even if the first actor, which gives the engines to the others, restarts at the same time."""
    import ray

    with engines(3, capacity=1_100) as three:
        router = make_router(tmp_path, three.handles, policy="kv_admission", engines_per_shard=1)
        rollouts = [asyncio.create_task(play(router, f"c{number}")) for number in range(60)]
        await until(router, lambda status: status["waiting"] and status["counts"]["ended"] > 2)

        kill_process(router.actors[0])
        ray.kill(router.actors[1])
        await asyncio.wait_for(asyncio.gather(*rollouts), 120)
        await until(router, lambda status: status["active_servers"] == 3)

        assert sorted(get(router.get_all_servers.remote())) == sorted(three.names)
        found = await asyncio.gather(*asked(router, "abc"))
        assert sorted(server for server, _ in found) == sorted(three.names)
        get(router.remove_servers.remote(three.names))
        assert get(router.get_all_servers.remote()) == []


async def test_a_router_that_has_died_for_good_ends_every_wait_with_one_sentence(tmp_path: Path) -> None:
    import ray

    with engines(1, capacity=1_100) as one:
        router = make_router(tmp_path, one.handles, policy="kv_admission")
        rollouts = [asyncio.create_task(play(router, f"c{number}")) for number in range(5)]
        await until(router, lambda status: status["waiting"])

        ray.kill(router.actors[0])

        for error in await asyncio.wait_for(asyncio.gather(*rollouts, return_exceptions=True), 60):
            assert isinstance(error, EngineError)
            assert str(error).startswith("the router has died and Ray no longer restarts it")


async def test_verls_own_client_works_also_after_a_restart_and_the_end_is_reported(tmp_path: Path) -> None:
    import ray
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    @ray.remote
    class Engine:
        async def generate(self, request_id: str, prompt_ids: list[int], **rest: Any) -> TokenOutput:
            return TokenOutput(token_ids=[7], extra_fields={"global_steps": 3})

    with engines(2) as two:
        router = make_router(tmp_path, {name: Engine.remote() for name in two.names})  # type: ignore[attr-defined]
        client = LLMServerClient(OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "sglang"}}}), router)
        name = new_request_id()

        for num_tokens in (10, 30):
            output = await client.generate(name, prompt_ids=[1] * num_tokens, sampling_params={})
            assert output.token_ids == [7]
        cost = await end_conversation(client, name, 21, 3)

        assert cost is not None
        assert (cost.num_moves, cost.recomputed_tokens) == (0, 0)
        status = await router.get_status.remote()
        counts = {key: status["counts"][key] for key in ("acquired", "released", "returned", "ended", "ignored")}
        assert counts == {"acquired": 2, "released": 2, "returned": 1, "ended": 1, "ignored": 0}

        kill_process(router.actors[0])
        output = await client.generate(new_request_id(), prompt_ids=[1] * 10, sampling_params={})
        assert output.token_ids == [7]
        assert (await router.get_status.remote())["counts"]["acquired"] == 1


async def test_nothing_is_reported_to_other_routers() -> None:
    assert await end_conversation(object(), "w", 5, None) is None
