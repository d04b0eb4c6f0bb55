"""Load of a whole step of rollouts on the router's actors: CPU time per turn, and milliseconds to get its server.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_router_step --help`; 131,072 rollouts on
512 engines are `--engines 512 --rollouts 131072`. Simulated agent loops make real Ray calls. They share the cores
with the actors, so the time that a turn spends in its actor is shown beside the time until it has its server.
"""

import asyncio
import random
import resource
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bench_router import BUDGET, PROMPT_TOKENS, quantiles, running_router
from verl_pivot.commands.tables import table_console
from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.routing.client import REPORTS_END
from verl_pivot.routing.router_messages import Answer, Message, TurnAsked
from verl_pivot.routing.router_state import RouterStatus

_SETTLE_SECONDS = 10.0
"""Seconds between the moment when all rollouts have begun or wait, and the first measured turn."""
_CAPACITY = 400_000
"""Size of an engine's KV cache, in tokens."""


class Usage(NamedTuple):
    """CPU seconds that a process has used so far, and its peak memory."""

    cpu_seconds: float
    memory_mb: float


class TurnTime(NamedTuple):
    """Time from the arrival of a turn's request in the actor to its answer."""

    seconds: float
    cpu_seconds: float
    """CPU time that the actor's process used meanwhile, also for other turns of the same call."""


def main(
    engines: Annotated[int, typer.Option(min=1, help="Made-up engines.")] = 64,
    engines_per_shard: Annotated[int, typer.Option(min=1, help="Engines of each actor.")] = 64,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts, which all begin at once.")] = 16_384,
    processes: Annotated[int, typer.Option(min=1, help="Processes of agent loops.")] = 2,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds for which turns are measured.")] = 30.0,
    turn_seconds: Annotated[float, typer.Option(min=0.1, help="Mean seconds of a turn, and of its tools.")] = 30.0,
) -> None:
    """Print CPU time and milliseconds of the turns of rollouts that have begun.

    Processes of agent loops play conversations without engines. All rollouts begin at once, and most wait for room.
    """
    import ray

    console, num_each = table_console(), rollouts // processes
    with running_router(engines, _CAPACITY, "kv_forecast", engines_per_shard) as router:

        def of_actors(function: Callable[[Any], Any]) -> list[Any]:
            return list(ray.get([actor.__ray_call__.remote(function) for actor in router.actors]))

        of_actors(watch)
        idle = measured(lambda: time.sleep(_SETTLE_SECONDS), of_actors)
        loops = [ray.remote(AgentLoops).remote(number, turn_seconds) for number in range(processes)]
        began = time.monotonic()
        rounds = [each.play.remote(router, num_each) for each in loops]
        while num_known(ray.get(router.get_status.remote())) < processes * num_each:
            raise_failure(rounds)
            time.sleep(1.0)
        console.print(f"all rollouts have begun or wait after {time.monotonic() - began:.0f} s")
        time.sleep(_SETTLE_SECONDS)
        ray.get([each.take_times.remote() for each in loops])
        of_actors(take_turn_times)
        loops_before = ray.get([each.usage.remote() for each in loops])
        busy = measured(lambda: time.sleep(seconds), of_actors)
        times = [each for found in ray.get([each.take_times.remote() for each in loops]) for each in found]
        turns = [each for found in of_actors(take_turn_times) for each in found]
        loops_after = ray.get([each.usage.remote() for each in loops])
        status = ray.get(router.get_status.remote())
        usages = of_actors(usage)
        raise_failure(rounds)
    if len(times) < 2:
        raise SystemExit("too few turns ended in the measured time: give more --rollouts, --seconds or --turn-seconds")
    shares = [1e2 * each / seconds for each in busy]
    by_loops = sum(
        after.cpu_seconds - before.cpu_seconds for before, after in zip(loops_before, loops_after, strict=True)
    )
    console.print(
        f"{engines} engines, {len(shares)} actors, {processes * num_each} rollouts of which {status['waiting']} wait, "
        f"{processes} processes: {len(times) / seconds:.0f} turns/s\n"
        f"each actor uses {min(shares):.1f} to {max(shares):.1f} % of a core, at most "
        f"{1e2 * max(idle) / _SETTLE_SECONDS:.1f} % without rollouts, and at most "
        f"{max(each.memory_mb for each in usages):.0f} MB of memory\n"
        f"CPU time per turn: {1e3 * sum(busy) / len(times):.3f} ms of the actors ({len(times) / sum(busy):.0f} turns "
        f"per CPU second), {1e3 * by_loops / len(times):.3f} ms of the agent loops, whose processes have at most "
        f"{max(each.memory_mb for each in loops_after):.0f} MB of memory each"
    )
    show(
        {
            "acquire to answer, in the agent loop": times,
            "in the actor": [each.seconds for each in turns],
            "in the actor, CPU": [each.cpu_seconds for each in turns],
        },
        console,
    )


def raise_failure(rounds: Sequence[Any]) -> None:
    """Raise the error of a process of agent loops that has failed, if there is one."""
    import ray

    ended, _ = ray.wait(rounds, num_returns=len(rounds), timeout=0.0)
    ray.get(ended)


def show(times: dict[str, list[float]], console: Console) -> None:
    """Print one row per kind of time."""
    table = Table(title="milliseconds of the turns of rollouts that have begun", title_justify="left")
    for column in ("", "median", "99 %", "longest"):
        table.add_column(column, justify="right" if column else "left")
    for name, seconds in times.items():
        table.add_row(name, *(f"{each:.2f}" for each in (*quantiles(seconds), 1e3 * max(seconds))))
    console.print(table)


def measured(work: Callable[[], None], of_actors: Callable[[Callable[[Any], Any]], list[Any]]) -> list[float]:
    """[num_actors] CPU seconds that each actor uses while `work` runs."""
    before = of_actors(usage)
    work()
    after = of_actors(usage)
    return [late.cpu_seconds - early.cpu_seconds for early, late in zip(before, after, strict=True)]


def usage(_: object) -> Usage:
    """CPU seconds and peak memory of this process."""
    return Usage(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def watch(actor: Any) -> None:
    """Make an actor record the time from request to answer of each turn, for rollouts that have begun."""
    desk = actor._desk
    asked: dict[tuple[str, int], TurnTime] = {}
    actor.turn_times = []

    async def take_many(take: Callable[..., Any], name: str, messages: Sequence[Message]) -> list[RoutingCost | None]:
        now = TurnTime(time.monotonic(), time.process_time())
        for each in messages:
            if isinstance(each, TurnAsked) and each.request_id in actor._router.conversations:
                asked[name, each.number] = now
        found: list[RoutingCost | None] = await take(name, messages)
        return found

    def note(name: str, answers: list[Answer] | None) -> list[Answer] | None:
        for each in answers or []:
            if (began := asked.pop((name, each.number), None)) is not None:
                times = TurnTime(time.monotonic() - began.seconds, time.process_time() - began.cpu_seconds)
                actor.turn_times.append(times)
        return answers

    known, waited = desk.known_answers, desk.answers

    async def answers(name: str) -> list[Answer] | None:
        return note(name, await waited(name))

    desk.take_many = partial(take_many, desk.take_many)
    desk.known_answers, desk.answers = lambda name: note(name, known(name)), answers


def take_turn_times(actor: Any) -> list[TurnTime]:
    """The times that an actor has recorded since the last call."""
    found: list[TurnTime] = actor.turn_times
    actor.turn_times = []
    return found


def num_known(status: RouterStatus) -> int:
    """Conversations that the router has been asked for, ended ones included."""
    return status["conversations"] + status["counts"]["ended"]


class AgentLoops:
    """A process of agent loops, whose turns only wait."""

    def __init__(self, number: int, turn_seconds: float) -> None:
        self._rng = random.Random(number)
        self._number = number
        self._turn_seconds = turn_seconds
        self._times: list[float] = []

    async def play(self, router: Any, num_rollouts: int) -> None:
        """Play rollouts that all begin at once, 32 of each prompt."""
        await asyncio.gather(*(self._roll_out(router, number) for number in range(num_rollouts)))

    async def take_times(self) -> list[float]:
        """Seconds from acquire to answer of the turns that returned since the last call."""
        found, self._times = self._times, []
        return found

    async def usage(self) -> Usage:
        """CPU seconds and peak memory of this process."""
        return usage(self)

    async def _roll_out(self, router: Any, number: int) -> None:
        name = f"p{self._number}-{number}{REPORTS_END}"
        num_tokens = PROMPT_TOKENS
        is_last = False
        while not is_last:
            began = time.perf_counter()
            server, _ = await router.acquire_server.remote(name, self._token_ids(number // 32, num_tokens))
            if num_tokens > PROMPT_TOKENS:
                self._times.append(time.perf_counter() - began)
            await asyncio.sleep(self._rng.expovariate(1 / self._turn_seconds))
            router.release_server.remote(server, name)
            num_tokens += self._rng.randrange(100, 2_000)
            is_last = self._rng.random() < 1 / 3 or num_tokens > BUDGET
            if not is_last:
                await asyncio.sleep(self._rng.expovariate(1 / self._turn_seconds))
        await router.end_conversation.remote(name, num_tokens - PROMPT_TOKENS, None)

    def _token_ids(self, prompt: int, num_tokens: int) -> "array[int]":
        """Token ids of a request, made for each call to save memory; requests of one prompt begin with equal ids."""
        return array("q", [self._number, prompt]) + array("q", bytes(8 * (num_tokens - 2)))


if __name__ == "__main__":
    typer.run(main)
