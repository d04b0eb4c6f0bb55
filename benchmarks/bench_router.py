"""Milliseconds of the router's decisions, of its releases while thousands of acquires wait, and of a step's turns.

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
from array import array
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
from verl_pivot.routing.router_state import RouterStatus
from verl_pivot.routing.routing_policy import ConversationEnd, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.settings import make_routing_policy, parse_router

ROUTING_POLICIES = ("static", "least_inflight", "cache_aware", "kv_admission", "kv_forecast")
TARGET_DECISION_MS = 1.0
TARGET_RELEASE_MS = 10.0
_SETTLE_SECONDS = 10.0
"""Seconds from the moment that all rollouts of a step have begun to the first measured turn."""
_PROMPT_TOKENS = 1_024
_BUDGET = 12_288


def main(
    engines: Annotated[int, typer.Option(min=1, help="Engines that each policy routes to.")] = 512,
    conversations: Annotated[
        int, typer.Option(min=1, help="Conversations under way, and acquires that wait.")
    ] = 16_384,
    turns: Annotated[int, typer.Option(min=1, help="Turns for which each policy is timed.")] = 20_000,
    rollouts: Annotated[int, typer.Option(min=0, help="Rollouts of a whole step, 131072 for 512 engines.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes of agent loops in that step.")] = 4,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time for which that step is measured.")] = 60.0,
    turn_seconds: Annotated[float, typer.Option(min=0.1, help="Mean time of a turn, and of its tools.")] = 30.0,
    engines_per_shard: Annotated[int, typer.Option(min=1, help="Engines of each actor in that step.")] = 64,
) -> None:
    """Print milliseconds of the calls of each policy, of releases while all acquires wait, and of a step's turns."""
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
    if rollouts:
        step(StepSize(engines, engines_per_shard, rollouts, processes, seconds, turn_seconds), console)


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


@contextmanager
def running_router(num_engines: int, capacity: int, policy: str, engines_per_shard: int) -> Iterator[Any]:
    """The handle of a router on a Ray of its own, with so many made-up engines."""
    import ray
    from verl.workers.rollout.router import get_router_handle

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    settings = {
        "router_class": "verl_pivot.routing.router_actor.KvRouter",
        "policy": policy,
        "max_response_tokens": _BUDGET,
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
    """Print milliseconds of the ends of turns while so many acquires wait, on a router of its own."""
    with running_router(num_running // 4, 4 * (_PROMPT_TOKENS + _BUDGET), "kv_admission", num_running) as router:
        asyncio.run(wait_and_release(router, num_running, num_waiting, console))


async def wait_and_release(router: Any, num_running: int, num_waiting: int, console: Console) -> None:
    """Print milliseconds of the ends of turns while so many acquires wait; check that each is served in the end."""
    prompt = list(range(_PROMPT_TOKENS))

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
    median, percentile_99 = _quantiles(seconds)
    console.print(
        f"{num_waiting} acquires wait; the end of a turn and its conversation, there and back: median {median:.2f} "
        f"ms, 99 % {percentile_99:.2f} ms; target {TARGET_RELEASE_MS} ms"
    )
    await asyncio.gather(*rollouts)
    status = await router.get_status.remote()
    assert (status["waiting"], status["conversations"], status["total_inflight"]) == (0, 0, 0), status
    await router.audit.remote()
    per_pair = (cpu_seconds(router) - before) / (num_waiting + num_running)
    console.print(f"every acquire had its turn; {1e3 * per_pair:.2f} ms of the actor's CPU time for each")


def cpu_seconds(router: Any) -> float:
    """CPU seconds that the router's actors have used together."""
    import ray

    return float(sum(ray.get([each.__ray_call__.remote(lambda _: time.process_time()) for each in router.actors])))


class StepSize(NamedTuple):
    """Sizes of a step whose rollouts only take time."""

    engines: int
    engines_per_shard: int
    rollouts: int
    processes: int
    seconds: float
    turn_seconds: float


def step(size: StepSize, console: Console) -> None:
    """Print what a step of so many rollouts asks of the router's actors: CPU time of a turn, and time to the answer.

    Processes of agent loops play conversations without engines: a turn takes `turn_seconds` on average, also while
    tools work. All rollouts begin at once, and most wait for room.
    """
    import ray

    with running_router(size.engines, 400_000, "kv_forecast", size.engines_per_shard) as router:
        workers = [ray.remote(AgentLoops).remote(number, size.turn_seconds) for number in range(size.processes)]
        rounds = [each.play.remote(router, size.rollouts // size.processes) for each in workers]
        while num_known(ray.get(router.get_status.remote())) < size.rollouts:
            time.sleep(1.0)
        console.print(f"all {size.rollouts} rollouts are known after {cpu_seconds(router):.1f} CPU s of the actors")
        time.sleep(_SETTLE_SECONDS)
        ray.get([each.times.remote() for each in workers])
        before = cpu_seconds(router)
        time.sleep(size.seconds)
        after = cpu_seconds(router)
        times = [each for found in ray.get([each.times.remote() for each in workers]) for each in found]
        status = ray.get(router.get_status.remote())
        del rounds
    median, percentile_99 = _quantiles(times)
    console.print(
        f"{size.engines} engines, {len(router.actors)} actors, {size.rollouts} rollouts of which {status['waiting']} "
        f"wait, {size.processes} processes of agent loops: {len(times)} turns in {size.seconds:.0f} s, "
        f"{1e3 * (after - before) / len(times):.3f} ms of the actors' CPU time for each, "
        f"{len(times) / (after - before):.0f} turns per CPU second; acquire to answer: median {median:.1f} ms, 99 % "
        f"{percentile_99:.1f} ms"
    )


def num_known(status: RouterStatus) -> int:
    """Conversations that the router has been asked for, ended ones included."""
    return status["conversations"] + status["counts"]["ended"]


class AgentLoops:
    """A process of agent loops, whose turns only take time."""

    def __init__(self, number: int, turn_seconds: float) -> None:
        self._rng = random.Random(number)
        self._number = number
        self._turn_seconds = turn_seconds
        self._times: list[float] = []
        self._prompts: dict[int, array[int]] = {}

    async def play(self, router: Any, num_rollouts: int) -> None:
        """Play rollouts that all begin at once, 32 of each prompt."""
        await asyncio.gather(*(self._roll_out(router, number) for number in range(num_rollouts)))

    async def times(self) -> list[float]:
        """Seconds from acquire to answer of the turns that returned since the last call."""
        found, self._times = self._times, []
        return found

    def _prompt(self, number: int) -> "array[int]":
        """Token ids of a prompt, which its rollouts share."""
        if number not in self._prompts:
            self._prompts[number] = array("q", [self._number, number, *range(_PROMPT_TOKENS - 2)])
        return self._prompts[number]

    async def _roll_out(self, router: Any, number: int) -> None:
        name = f"p{self._number}-{number}{REPORTS_END}"
        ids = self._prompt(number // 32)
        is_last = False
        while not is_last:
            began = time.perf_counter()
            server, _ = await router.acquire_server.remote(name, ids)
            if len(ids) > _PROMPT_TOKENS:
                self._times.append(time.perf_counter() - began)
            await asyncio.sleep(self._rng.expovariate(1 / self._turn_seconds))
            router.release_server.remote(server, name)
            ids = ids + array("q", bytes(8 * self._rng.randrange(100, 2_000)))
            is_last = self._rng.random() < 1 / 3 or len(ids) > _BUDGET
            if not is_last:
                await asyncio.sleep(self._rng.expovariate(1 / self._turn_seconds))
        await router.end_conversation.remote(name, len(ids) - _PROMPT_TOKENS, None)


@contextmanager
def engine_loads(num: int, capacity: int) -> Iterator[list[str]]:
    """Addresses of `num` made-up engines, which only answer questions for their loads."""
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
