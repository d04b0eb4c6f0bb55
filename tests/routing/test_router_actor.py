"""routing.router_actor: the actor behind verl's own factory and client, with engines whose loads the test sets."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from tests.support.fake_engine import Answer, FakeServer, fake_server
from verl_pivot.errors import ConfigError
from verl_pivot.routing.client import REPORTS_END, end_conversation, new_request_id, wait_for_place

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


@contextmanager
def engines(num: int, capacity: object = 10_000) -> Iterator[Engines]:
    """Fake engines that report a KV cache of `capacity` tokens."""
    rank = {"num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": 0, "max_total_num_tokens": capacity}

    def answer(path: str, body: object) -> Answer:
        assert path == "/v1/loads?include=core"
        return Answer(body={"loads": [rank]})

    with ExitStack() as stack:
        yield Engines([stack.enter_context(fake_server(answer)) for _ in range(num)])


def make_actor(folder: Path, servers: dict[str, Any], **settings: object) -> Any:
    """The router's actor, made by verl from a YAML."""
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


def ask(actor: Any, name: str, context: int = 0, number: int = 0) -> Any:
    return actor.acquire_server.remote(request_id=name + REPORTS_END, prompt_ids=[number] * (100 + context))


def get(*references: Any) -> Any:
    import ray

    found = ray.get(list(references), timeout=60)
    return found[0] if len(found) == 1 else found


def end(actor: Any, name: str) -> Any:
    return get(actor.end_conversation.remote(name + REPORTS_END, 10, None))


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_wait_for_room_in_the_kv_cache_that_engines_report(tmp_path: Path) -> None:
    import ray

    with engines(2, capacity=1_100) as two:
        actor = make_actor(tmp_path, two.handles, policy="kv_admission")

        first, second = get(ask(actor, "first"), ask(actor, "second"))
        assert {first[0], second[0]} == set(two.names)
        assert first[1] == two.handles[first[0]]
        third = ask(actor, "third")
        assert ray.wait([third], timeout=0.5) == ([], [third])
        status = get(actor.get_status.remote())
        assert (status["waiting"], status["total_inflight"]) == (1, 2)
        assert status["tokens"][first[0]] == {"committed": 100, "free": 1_000, "capacity": 1_100}

        actor.release_server.remote(server_id=first[0], request_id="first" + REPORTS_END)
        assert end(actor, "first").num_moves == 0
        assert get(third)[0] == first[0]


def test_a_dead_engine_gets_no_more_requests_and_an_added_one_does(tmp_path: Path) -> None:
    with engines(2) as two, engines(1) as new:
        actor = make_actor(tmp_path, two.handles)
        two.servers[0].stop()
        until(lambda: get(actor.get_status.remote())["suspended"] == two.names[:1])

        found = get(*(ask(actor, f"c{number}", number=number) for number in range(4)))
        assert {server for server, _ in found} == {two.names[1]}

        get(actor.add_servers.remote(new.handles))
        get(actor.remove_servers.remote(two.names))
        assert get(actor.get_all_servers.remote()) == new.names
        assert get(ask(actor, "c0", context=50))[0] == new.names[0]


@pytest.mark.parametrize("capacity", [-5, "much", 2**60, None])
def test_an_engine_that_reports_impossible_values_is_used_by_its_number_of_conversations(
    tmp_path: Path, capacity: object
) -> None:
    with engines(2, capacity=capacity) as two:
        actor = make_actor(tmp_path, two.handles)

        found = get(*(ask(actor, f"c{number}", number=number) for number in range(4)))

        assert sorted(server for server, _ in found) == sorted([*two.names, *two.names])
        assert {tokens["capacity"] for tokens in get(actor.get_status.remote())["tokens"].values()} == {None}


def test_without_engines_the_error_has_the_text_of_verls_own_router(tmp_path: Path) -> None:
    import ray

    actor = make_actor(tmp_path, {})

    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        ray.get(ask(actor, "w"), timeout=60)
    assert get(actor.get_total_inflight.remote()) == 0


def test_a_typo_in_the_yaml_raises_an_error_with_the_known_keys(tmp_path: Path) -> None:
    import ray

    actor = make_actor(tmp_path, {}, kv_forecast={"filll": 0.5})

    with pytest.raises(
        ray.exceptions.RayActorError, match=r"router YAML\.kv_forecast\.filll: unknown key; known: .* fill, "
    ):
        ray.get(actor.get_all_servers.remote(), timeout=60)


def test_a_typo_on_the_command_line_stops_the_launch() -> None:
    from hydra import compose, initialize_config_module

    from verl_pivot.launch import check_config

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", ["+router=kv_forecast", "+pivot.router.kv_forecast.filll=0.5"])

    with pytest.raises(ConfigError, match=r"pivot\.router\.kv_forecast\.filll: unknown key; known: .* fill, "):
        check_config(config, [])


def test_thousands_of_waiting_requests_do_not_block_a_release(tmp_path: Path) -> None:
    """More than 1,000, Ray's default limit of concurrent calls, at which the release would never run."""
    import ray

    with engines(1, capacity=1_100) as one:
        actor = make_actor(tmp_path, one.handles, policy="kv_admission")
        get(ask(actor, "first"))
        waiting = [ask(actor, f"w{number}") for number in range(2_000)]
        until(lambda: get(actor.get_status.remote())["waiting"] == 2_000)

        end(actor, "first")
        assert len(ray.wait(waiting, timeout=30)[0]) == 1

        for number in range(2_000):
            actor.end_conversation.remote(f"w{number}{REPORTS_END}", 10, None)
        until(lambda: get(actor.get_status.remote())["waiting"] == 0)


def test_waiting_turns_take_none_of_the_calls_that_the_actor_runs_at_once(tmp_path: Path) -> None:
    """With four calls at once, 200 calls of `acquire_server` that wait would let neither release nor end run."""
    import ray

    from verl_pivot.routing.place_desk import PlaceRequest
    from verl_pivot.routing.router_actor import KvRouter

    names = [new_request_id() for _ in range(200)]
    requests = [PlaceRequest(request_id=name, num_tokens=100, digest=name) for name in names]
    with engines(1, capacity=1_100) as one:
        values = {"max_response_tokens": 1_000, "policy": "kv_admission"}
        actor = KvRouter.options(max_concurrency=4).remote(one.handles, values)
        get(actor.request_places.remote("worker", requests))

        for name in names:
            assert get(actor.ended_waits.remote("worker")) == [name]
            assert get(actor.acquire_server.remote(name, [1] * 100))[0] == one.names[0]
            actor.release_server.remote(server_id=one.names[0], request_id=name)
            get(actor.end_conversation.remote(name, 10, None))

        assert get(actor.get_status.remote())["conversations"] == 0
        ray.kill(actor)


async def test_verls_own_client_works_with_the_router_and_the_end_is_reported(tmp_path: Path) -> None:
    import ray
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    @ray.remote
    class Engine:
        async def generate(self, request_id: str, prompt_ids: list[int], **rest: Any) -> TokenOutput:
            return TokenOutput(token_ids=[7], extra_fields={"global_steps": 3})

    with engines(2) as two:
        actor = make_actor(tmp_path, {name: Engine.remote() for name in two.names})
        client = LLMServerClient(OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "sglang"}}}), actor)
        name = new_request_id()

        for num_tokens in (10, 30):
            await wait_for_place(client, name, [1] * num_tokens)
            output = await client.generate(name, prompt_ids=[1] * num_tokens, sampling_params={})
            assert output.token_ids == [7]
        cost = await end_conversation(client, name, 21, 3)

        assert cost is not None
        assert (cost.num_moves, cost.recomputed_tokens) == (0, 0)
        status = await asyncio.wrap_future(actor.get_status.remote().future())
        counts = {key: status["counts"][key] for key in ("acquired", "released", "returned", "ended", "ignored")}
        assert counts == {"acquired": 2, "released": 2, "returned": 1, "ended": 1, "ignored": 0}


async def test_the_tokens_of_a_request_that_waits_inside_the_call_do_not_stay(tmp_path: Path) -> None:
    """Of 100,000 tokens Ray keeps some 1,400 KiB by itself; with Python's list and numbers it would be 4,300 KiB."""

    def resident_kib(pid: int) -> int:
        (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS")]
        return int(line.split()[1])

    with engines(1, capacity=101_100) as one:
        actor = make_actor(tmp_path, one.handles, policy="kv_admission")
        get(actor.acquire_server.remote(request_id="first" + REPORTS_END, prompt_ids=[1] * 100))
        pid = get(actor.__ray_call__.remote(lambda _: os.getpid()))
        before = resident_kib(pid)
        for number in range(40):
            actor.acquire_server.remote(request_id=f"w{number}{REPORTS_END}", prompt_ids=list(range(100_000)))
        until(lambda: get(actor.get_status.remote())["waiting"] == 40)

        assert resident_kib(pid) - before < 40 * 2_500


async def test_nothing_is_reported_to_other_routers() -> None:
    assert await end_conversation(object(), "w", 5, None) is None
