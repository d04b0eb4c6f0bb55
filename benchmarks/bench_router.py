"""Milliseconds of the router's decisions, and of its releases while thousands of acquires wait.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_router --help`. Each routing policy is
timed alone, call by call. The router's actor runs on its own Ray instance, where verl creates it, and reads the loads
of its engines from HTTP servers on the loopback.
"""

import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from aiohttp import web
from rich.console import Console
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.routing.client import REPORTS_END
from verl_pivot.routing.routing_policy import ConversationEnd, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.settings import make_routing_policy, parse_router

ROUTING_POLICIES = ("static", "least_inflight", "cache_aware", "kv_admission", "kv_forecast")
TARGET_DECISION_MS = 1.0
TARGET_RELEASE_MS = 10.0
PROMPT_TOKENS = 1_024
BUDGET = 12_288


def main(
    engines: Annotated[int, typer.Option(min=1, help="Engines that each policy routes to.")] = 512,
    conversations: Annotated[
        int, typer.Option(min=1, help="Conversations under way, and acquires that wait.")
    ] = 16_384,
    turns: Annotated[int, typer.Option(min=1, help="Turns for which each policy is timed.")] = 20_000,
) -> None:
    """Print milliseconds of the calls of each policy, and of releases while all acquires wait."""
    console = table_console()
    table = Table(title=f"{engines} engines, {conversations} conversations: milliseconds", title_justify="left")
    for column in ("policy", "acquire median", "99 %", "release median", "99 %", "end median", "99 %"):
        table.add_column(column, justify="right" if column != "policy" else "left")
    for name in ROUTING_POLICIES:
        times = decide(name, engines, conversations, turns)
        table.add_row(name, *(f"{value:.3f}" for each in times.values() for value in quantiles(each)))
    console.print(table)
    console.print(f"target: median below {TARGET_DECISION_MS} ms\n")
    waiting(conversations, console)


class Quantiles(NamedTuple):
    """Quantiles of times, in milliseconds."""

    median: float
    percentile_99: float


def quantiles(seconds: list[float]) -> Quantiles:
    percentiles = statistics.quantiles(seconds, n=100, method="inclusive")
    return Quantiles(1e3 * statistics.median(seconds), 1e3 * percentiles[98])


def decide(name: str, num_engines: int, num_conversations: int, num_turns: int) -> dict[str, list[float]]:
    """{name of the call: [num_calls] seconds} of a policy with `num_conversations` under way."""
    policy = make_routing_policy(parse_router({"policy": name, "max_response_tokens": BUDGET}, "benchmark"))
    for number in range(num_engines):
        policy.add_server(f"10.0.{number // 256}.{number % 256}:30000", 400_000, 0.0)
    times: dict[str, list[float]] = {"acquire": [], "release": [], "end": []}
    load = _Load(policy, times)
    for _ in range(num_conversations):
        load.begin()
    for call in times.values():
        call.clear()
    for _ in range(num_turns):
        load.turn()
    return times


class _Load:
    """Conversations with random turns: one turn in three is the last one, and a new conversation begins after it."""

    def __init__(self, policy: RoutingPolicy, times: dict[str, list[float]]) -> None:
        self._policy, self._times = policy, times
        self._rng = random.Random(0)
        self._contexts: dict[str, int] = {}
        self._running: list[tuple[str, str]] = []
        self._num_begun = 0
        self._now = 0.0

    def begin(self) -> None:
        name = f"c{self._num_begun}"
        self._contexts[name] = 0
        self._acquire(name, self._num_begun // 32)
        self._num_begun += 1

    def turn(self) -> None:
        """End one turn; its conversation asks for the next one, or ends and another begins."""
        self._now += 0.01
        place = self._rng.randrange(len(self._running))
        self._running[place], self._running[-1] = self._running[-1], self._running[place]
        name, server = self._running.pop()
        self._time(
            "release", lambda: self._policy.release(TurnRelease(conversation=name, server=server, now=self._now))
        )
        self._contexts[name] += self._rng.randrange(100, 2_000)
        if self._rng.random() < 1 / 3 or self._contexts[name] > BUDGET:
            over = ConversationEnd(conversation=name, response_tokens=self._contexts.pop(name), now=self._now)
            self._time("end", lambda: self._policy.end(over))
            self.begin()
        else:
            self._acquire(name, int(name[1:]) // 32)

    def _acquire(self, name: str, group: int) -> None:
        request = TurnRequest(
            conversation=name,
            group=f"g{group}",
            prompt_tokens=PROMPT_TOKENS,
            context_tokens=self._contexts[name],
            now=self._now,
        )
        self._time("acquire", lambda: self._policy.acquire(request))

    def _time(self, call: str, function: Callable[[], Any]) -> None:
        began = time.perf_counter()
        placements = function()
        self._times[call].append(time.perf_counter() - began)
        self._running += placements


@contextmanager
def running_router(num_engines: int, capacity: int, policy: str, engines_per_shard: int) -> Iterator[Any]:
    """Run a router with `num_engines` made-up engines on its own Ray instance; yields its handle."""
    import ray
    from verl.workers.rollout.router import get_router_handle

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    settings = {
        "router_class": "verl_pivot.routing.router_actor.KvRouter",
        "policy": policy,
        "max_response_tokens": BUDGET,
        "engines_per_shard": engines_per_shard,
    }
    try:
        with engine_loads(num_engines, capacity) as names, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "router.yaml"
            path.write_text(yaml.safe_dump(settings))
            router = get_router_handle(dict.fromkeys(names, "an engine"), router_config_path=str(path))
            ray.get(router.get_status.remote())
            yield router
    finally:
        ray.shutdown()


def waiting(num_waiting: int, console: Console, num_running: int = 512) -> None:
    """Print milliseconds to end a turn while `num_waiting` acquires wait, on a new router."""
    with running_router(num_running // 4, 4 * (PROMPT_TOKENS + BUDGET), "kv_admission", num_running) as router:
        asyncio.run(wait_and_release(router, num_running, num_waiting, console))


async def wait_and_release(router: Any, num_running: int, num_waiting: int, console: Console) -> None:
    """Print milliseconds to end a turn while `num_waiting` acquires wait; check that each acquire is served later."""
    prompt = list(range(PROMPT_TOKENS))

    async def acquire(name: str) -> str:
        return str((await router.acquire_server.remote(name + REPORTS_END, prompt))[0])

    async def end(name: str) -> None:
        await router.end_conversation.remote(name + REPORTS_END, 500, None)

    async def play(name: str) -> None:
        await acquire(name)
        await end(name)

    places = [await acquire(f"r{number}") for number in range(num_running)]
    rollouts = [asyncio.create_task(play(f"w{number}")) for number in range(num_waiting)]
    while (await router.get_status.remote())["waiting"] < num_waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    before, seconds = cpu_seconds(router), []
    for number, server in enumerate(places):
        began = time.perf_counter()
        router.release_server.remote(server, f"r{number}{REPORTS_END}")
        await end(f"r{number}")
        seconds.append(time.perf_counter() - began)
    median, percentile_99 = quantiles(seconds)
    console.print(
        f"{num_waiting} acquires wait; round trip to end a turn and its conversation: median {median:.2f} "
        f"ms, 99 % {percentile_99:.2f} ms; target {TARGET_RELEASE_MS} ms"
    )
    await asyncio.gather(*rollouts)
    status = await router.get_status.remote()
    assert (status["waiting"], status["conversations"], status["total_inflight"]) == (0, 0, 0), status
    await router.audit.remote()
    per_pair = (cpu_seconds(router) - before) / (num_waiting + num_running)
    console.print(f"every acquire was served; {1e3 * per_pair:.2f} ms of the actor's CPU time per conversation")


def cpu_seconds(router: Any) -> float:
    """CPU seconds that the router's actors have used together."""
    import ray

    return float(sum(ray.get([each.__ray_call__.remote(lambda _: time.process_time()) for each in router.actors])))


@contextmanager
def engine_loads(num: int, capacity: int) -> Iterator[list[str]]:
    """Run `num` made-up engines, which only answer requests for their loads; yields their addresses."""
    loop = asyncio.new_event_loop()
    rank = {"num_running_reqs": 1, "num_waiting_reqs": 0, "max_total_num_tokens": capacity}

    async def tell(request: web.Request) -> web.Response:
        return web.json_response({"loads": [rank]})

    async def begin() -> tuple[web.AppRunner, list[str]]:
        app = web.Application()
        app.router.add_get("/v1/loads", tell)
        runner = web.AppRunner(app)
        await runner.setup()
        for _ in range(num):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, [f"{host}:{port}" for host, port in runner.addresses]

    runner, names = loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield names
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    typer.run(main)
