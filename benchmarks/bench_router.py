"""Milliseconds of the router's decisions, and of its releases while thousands of acquires wait.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_router --help`. Each routing policy is
timed alone, call by call. The router's actor runs on a Ray of its own, as verl makes it, and reads the loads of its
engines from HTTP servers on the loopback.
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

from verl_pivot.routing.client import REPORTS_END
from verl_pivot.routing.routing_policy import ConversationEnd, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.settings import make_routing_policy, parse_router

ROUTING_POLICIES = ("static", "least_inflight", "cache_aware", "kv_admission", "kv_forecast")
TARGET_DECISION_MS = 1.0
TARGET_RELEASE_MS = 10.0
_PROMPT_TOKENS = 1_024
_BUDGET = 12_288


def main(
    engines: Annotated[int, typer.Option(min=1, help="Engines that each policy routes to.")] = 512,
    conversations: Annotated[
        int, typer.Option(min=1, help="Conversations under way, and acquires that wait.")
    ] = 16_384,
    turns: Annotated[int, typer.Option(min=1, help="Turns for which each policy is timed.")] = 20_000,
) -> None:
    """Print milliseconds of the calls of each policy, and of releases while all the acquires wait."""
    console = Console()
    table = Table(title=f"{engines} engines, {conversations} conversations: milliseconds", title_justify="left")
    for column in ("policy", "acquire median", "99 %", "release median", "99 %", "end median", "99 %"):
        table.add_column(column, justify="right" if column != "policy" else "left")
    for name in ROUTING_POLICIES:
        times = decide(name, engines, conversations, turns)
        table.add_row(name, *(f"{value:.3f}" for each in times.values() for value in _quantiles(each)))
    console.print(table)
    console.print(f"target: median below {TARGET_DECISION_MS} ms\n")
    waiting(conversations, console)


class _Quantiles(NamedTuple):
    """Quantiles of times, in milliseconds."""

    median: float
    percentile_99: float


def _quantiles(seconds: list[float]) -> _Quantiles:
    return _Quantiles(1e3 * statistics.median(seconds), 1e3 * statistics.quantiles(seconds, n=100)[98])


def decide(name: str, num_engines: int, num_conversations: int, num_turns: int) -> dict[str, list[float]]:
    """{name of the call: [num_calls] seconds} of a policy with so many conversations under way."""
    policy = make_routing_policy(parse_router({"policy": name, "max_response_tokens": _BUDGET}, "benchmark"))
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
        if self._rng.random() < 1 / 3 or self._contexts[name] > _BUDGET:
            over = ConversationEnd(conversation=name, response_tokens=self._contexts.pop(name), now=self._now)
            self._time("end", lambda: self._policy.end(over))
            self.begin()
        else:
            self._acquire(name, int(name[1:]) // 32)

    def _acquire(self, name: str, group: int) -> None:
        request = TurnRequest(
            conversation=name,
            group=f"g{group}",
            prompt_tokens=_PROMPT_TOKENS,
            context_tokens=self._contexts[name],
            now=self._now,
        )
        self._time("acquire", lambda: self._policy.acquire(request))

    def _time(self, call: str, function: Callable[[], Any]) -> None:
        began = time.perf_counter()
        placements = function()
        self._times[call].append(time.perf_counter() - began)
        self._running += placements


def waiting(num_waiting: int, console: Console, num_running: int = 512) -> None:
    """Print milliseconds of releases while so many acquires wait; check that each acquire is served in the end."""
    import ray
    from verl.workers.rollout.router import get_router_handle

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    capacity = 4 * (_PROMPT_TOKENS + _BUDGET)
    try:
        with engine_loads(num_running // 4, capacity) as names, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "router.yaml"
            settings = {"policy": "kv_admission", "max_response_tokens": _BUDGET}
            path.write_text(yaml.safe_dump({"router_class": "verl_pivot.routing.router_actor.KvRouter", **settings}))
            actor = get_router_handle(dict.fromkeys(names, "an engine"), router_config_path=str(path))
            _wait_and_release(actor, num_running, num_waiting, console)
    finally:
        ray.shutdown()


def _wait_and_release(actor: Any, num_running: int, num_waiting: int, console: Console) -> None:
    import ray

    def ask(name: str) -> Any:
        return actor.acquire_server.remote(request_id=name + REPORTS_END, prompt_ids=list(range(_PROMPT_TOKENS)))

    running = {f"r{number}": ask(f"r{number}") for number in range(num_running)}
    places = dict(zip(running, ray.get(list(running.values())), strict=True))
    began = time.monotonic()
    acquires = [ask(f"w{number}") for number in range(num_waiting)]
    while ray.get(actor.get_status.remote())["waiting"] < num_waiting:
        time.sleep(0.2)
    console.print(f"{num_waiting} acquires wait, {time.monotonic() - began:.1f} s after the first was sent")
    seconds = []
    for name, (server, _) in places.items():
        began = time.perf_counter()
        ray.get(actor.release_server.remote(server_id=server, request_id=name + REPORTS_END))
        seconds.append(time.perf_counter() - began)
    median, percentile_99 = _quantiles(seconds)
    console.print(
        f"release, there and back: median {median:.2f} ms, 99 % {percentile_99:.2f} ms; target {TARGET_RELEASE_MS} ms"
    )
    began = time.monotonic()
    ended = [*(actor.end_conversation.remote(name + REPORTS_END, 500, None) for name in places)]
    pending = dict(zip(acquires, range(num_waiting), strict=True))
    while pending:
        done, _ = ray.wait(list(pending), num_returns=min(512, len(pending)), timeout=60)
        assert done, "an acquire was left waiting"
        ended += [actor.end_conversation.remote(f"w{pending.pop(each)}{REPORTS_END}", 500, None) for each in done]
    ray.get(ended)
    status = ray.get(actor.get_status.remote())
    assert (status["waiting"], status["conversations"], status["total_inflight"]) == (0, 0, 0), status
    ray.get(actor.audit.remote())
    console.print(f"every acquire had its turn within {time.monotonic() - began:.1f} s, and the accounts are empty")


@contextmanager
def engine_loads(num: int, capacity: int) -> Iterator[list[str]]:
    """Addresses of `num` made-up engines, which only answer questions for their loads."""
    loop = asyncio.new_event_loop()
    rank = {"num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": 0, "max_total_num_tokens": capacity}

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
