"""Turns/s of `verl-pivot profile --openai` beside a bare loop that sends the same bodies to the same endpoint.

Run by `make bench-profile`, or with other sizes by `python -m benchmarks.bench_openai --help`. The endpoint is a fake
in a process of its own: it answers each request after a given time and takes a given number of requests per second, as
vLLM on a few GPUs does. The profile also renders every prompt, scores every sample and writes its file.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple

import aiohttp
import msgspec
import typer
from aiohttp import web
from rich.console import Console
from rich.table import Table

from benchmarks.bench_profile import TARGET_SHARE, Workload, make_workload
from verl_pivot.commands.tables import table_console
from verl_pivot.engines.engine import Sampling
from verl_pivot.engines.openai_engine import OpenAIEngine, completion_body
from verl_pivot.engines.pool import EnginePool
from verl_pivot.profiling.profiler import Profiler, Totals, profile_turns, turn_seed
from verl_pivot.profiling.writer import open_profile

_ANSWER_SECONDS = 0.5


class Speed(NamedTuple):
    """Speed and CPU time of one way to send all requests."""

    turns_per_second: float
    cpu_seconds: float
    """CPU seconds of the client."""
    loop_cpu_seconds: float
    """CPU seconds of the client's event loop, which limit the requests that one process can send."""


class Stopwatch:
    """Clocks that are started and read in the thread of the event loop."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time(), time.thread_time()

    def speed(self, num_turns: int) -> Speed:
        """Speed and CPU time since the start, after `num_turns` turns."""
        now = time.perf_counter(), time.process_time(), time.thread_time()
        seconds, cpu_seconds, loop_cpu_seconds = (end - begin for begin, end in zip(self._begin, now, strict=True))
        return Speed(num_turns / seconds, cpu_seconds, loop_cpu_seconds)


def serve(requests_per_second: float, num_new_tokens: int, started: Connection) -> None:
    """Run the fake endpoint until the process is ended; sends its URL through `started` first."""
    ids = list(range(1000, 1000 + num_new_tokens))
    choice = {"index": 0, "text": "word " * num_new_tokens, "finish_reason": "stop", "token_ids": ids}
    usage = {"prompt_tokens": 1, "completion_tokens": num_new_tokens, "total_tokens": 1 + num_new_tokens}
    answer = msgspec.json.encode({"choices": [choice], "usage": usage})
    next_start = 0.0

    async def complete(request: web.Request) -> web.Response:
        nonlocal next_start
        await request.read()
        now = asyncio.get_running_loop().time()
        next_start = max(now, next_start + 1.0 / requests_per_second)
        await asyncio.sleep(next_start - now + _ANSWER_SECONDS)
        return web.Response(body=answer, content_type="application/json")

    async def run() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        started.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure_profile(url: str, work: Workload) -> Speed:
    """Measure the profiler, from rendering the prompts to writing the file."""
    path, totals = work.folder / "profile.jsonl", Totals()
    path.unlink(missing_ok=True)
    pool = EnginePool([OpenAIEngine(url, "policy", "none")], print)
    profiler = Profiler(renderer=work.renderer, pool=pool, settings=work.settings, seed=0, totals=totals)
    stopwatch = Stopwatch()
    with open_profile(path, work.settings) as writer:
        await profile_turns(work.turns, profiler, writer, concurrency=work.concurrency, on_turn=lambda: None)
    assert totals.num_turns == len(work.turns), totals
    return stopwatch.speed(totals.num_turns)


async def measure_bare_loop(url: str, bodies: Sequence[Sequence[bytes]], concurrency: int) -> Speed:
    """Measure aiohttp alone with bodies that are encoded already and answers that are read and thrown away.

    Args:
        url: Address of the endpoint.
        bodies: [num_turns, num_samples] encoded requests.
        concurrency: Turns that are sampled at once.
    """
    slots = asyncio.Semaphore(concurrency)
    headers = {"Content-Type": "application/json"}

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def send(body: bytes) -> None:
            async with session.post(f"{url}/v1/completions", data=body) as response:
                assert response.status == 200
                await response.read()

        async def send_turn(samples: Sequence[bytes]) -> None:
            async with slots:
                await asyncio.gather(*(send(body) for body in samples))

        stopwatch = Stopwatch()
        await asyncio.gather(*(send_turn(samples) for samples in bodies))
    return stopwatch.speed(len(bodies))


def bodies_of(work: Workload) -> list[list[bytes]]:
    """[num_turns, num_samples] bodies that the profile sends, without those of its prefills."""
    encoded = []
    for turn, prompt_ids in zip(work.turns, work.prompts, strict=True):
        prompt = msgspec.Raw(msgspec.json.encode(prompt_ids))
        sampling = replace(work.settings.sampling, seed=turn_seed(0, turn))
        encoded.append([completion_body("policy", prompt, sampling, k) for k in range(work.settings.num_samples)])
    return encoded


def table_of(bare: Sequence[Speed], profile: Sequence[Speed], work: Workload) -> Table:
    num_tokens = statistics.mean(map(len, work.prompts))
    shares = [ours.turns_per_second / theirs.turns_per_second for ours, theirs in zip(profile, bare, strict=True)]
    title = (
        f"{len(work.turns)} turns of {num_tokens:.0f} tokens on average, {work.settings.num_samples} samples each, "
        f"medians of {len(bare)} rounds"
    )
    table = Table("what", "turns/s", "vs. bare loop", "range", "client CPU/turn", "event loop CPU/turn", title=title)
    rows = (("bare loop of aiohttp", bare, [1.0]), ("verl-pivot profile --openai", profile, shares))
    for name, speeds, of_bare in rows:
        speed, cpu, loop_cpu = (statistics.median(values) for values in zip(*speeds, strict=True))
        table.add_row(
            name, f"{speed:.1f}", f"{statistics.median(of_bare):.2f}", f"{min(of_bare):.2f} to {max(of_bare):.2f}",
            f"{cpu / len(work.turns) * 1000:.1f} ms", f"{loop_cpu / len(work.turns) * 1000:.1f} ms",
        )  # fmt: skip
    reached = statistics.median(shares) >= TARGET_SHARE
    table.caption = f"target: profile >= {TARGET_SHARE:.2f} of the bare loop; reached: {'yes' if reached else 'NO'}"
    return table


def main(
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories to profile.")] = 60,
    turns_each: Annotated[int, typer.Option(min=1, help="Turns of each trajectory.")] = 10,
    prompt_words: Annotated[int, typer.Option(min=1, help="Words before the first turn of a trajectory.")] = 2000,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sample.")] = 300,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns that are sampled at once.")] = 128,
    requests_per_second: Annotated[float, typer.Option(help="Requests per second that the endpoint answers.")] = 160.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 3,
) -> None:
    """Print turns/s of the profile and of a bare loop, with one fake endpoint of limited speed."""
    console = table_console()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    endpoint = context.Process(target=serve, args=(requests_per_second, new_tokens, theirs), daemon=True)
    endpoint.start()
    bare, profile = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = make_workload(
            Path(folder), num_trajectories=trajectories, num_turns=turns_each, num_words=prompt_words,
            sampling=Sampling(max_new_tokens=new_tokens), concurrency=concurrency,
        )  # fmt: skip
        url: str = ours.recv()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            bare.append(asyncio.run(measure_bare_loop(url, bodies_of(work), concurrency)))
            profile.append(asyncio.run(measure_profile(url, work)))
    endpoint.terminate()
    Console(width=None if console.is_terminal else 120).print(table_of(bare, profile, work))


if __name__ == "__main__":
    typer.run(main)
