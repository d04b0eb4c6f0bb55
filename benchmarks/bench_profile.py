"""Output tokens/s of `verl-pivot profile` beside SGLang's own benchmark, and hits in the server's prefix cache.

Run by `make bench-profile`, or with other sizes by `python -m benchmarks.bench_profile --help`. Both send the same
prompts to the same server, one after the other, and the cache is flushed between them. Each sample has the same number
of tokens.
"""

import asyncio
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx
import typer
from rich.console import Console
from rich.table import Table

from tests.support.tiny_model import write_model
from verl_pivot.commands.tables import table_console
from verl_pivot.data.turns import turns
from verl_pivot.engines.engine import Sampling
from verl_pivot.engines.pool import EnginePool
from verl_pivot.engines.rendering import PromptRenderer
from verl_pivot.engines.server import server_environment, sglang_server
from verl_pivot.engines.sglang_engine import SGLangEngine
from verl_pivot.local.environment import has_accelerator
from verl_pivot.profiling.profiler import Profiler, Totals, profile_turns
from verl_pivot.profiling.profiles import ProfileSettings
from verl_pivot.profiling.writer import open_profile
from verl_pivot.types import Message, Role, Trajectory, Turn

TARGET_SHARE = 0.9
NEVER_END = ("--preferred-sampling-params", '{"ignore_eos": true}')
WORDS = [f"{first}{second}" for first in ("order", "item", "mail", "part", "name") for second in range(400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Turns and settings, the same for everything that is measured."""

    turns: tuple[Turn, ...]
    prompts: tuple[list[int], ...]
    """[num_turns, num_prompt_tokens] token ids."""
    settings: ProfileSettings
    renderer: PromptRenderer
    concurrency: int
    folder: Path


class Measured(NamedTuple):
    """Speed, cache hits and CPU time of one way to sample all turns."""

    tokens_per_second: float
    cache_share: float
    """Share of the prompt tokens that were found in the prefix cache."""
    cpu_seconds: float
    """CPU seconds of the client."""


def make_trajectory(number: int, num_turns: int, num_words: int) -> Trajectory:
    """A trajectory of random words, `num_words` of them before its turns; equal numbers give equal trajectories."""
    rng = random.Random(number)

    def say(num_words: int) -> str:
        return " ".join(rng.choices(WORDS, k=num_words))

    messages = [Message(role=Role.SYSTEM, content=say(num_words))]
    for _ in range(num_turns):
        messages += [Message(role=Role.USER, content=say(10)), Message(role=Role.ASSISTANT, content=say(5))]
    return Trajectory(id=f"t{number}", messages=tuple(messages))


def make_workload(
    folder: Path,
    *,
    num_trajectories: int,
    num_turns: int,
    sampling: Sampling,
    concurrency: int,
    num_words: int = 20,
    model: Path | None = None,
) -> Workload:
    model = model or write_model(folder / "model", corpus=[" ".join(WORDS)])
    renderer = PromptRenderer(str(model))
    every_turn = tuple(
        turn for i in range(num_trajectories) for turn in turns(make_trajectory(i, num_turns, num_words))
    )
    settings = ProfileSettings(
        model=str(model), input_sha256="0" * 64, num_samples=8, sampling=sampling, max_prompt_tokens=100_000,
        chat_template_kwargs={},
    )  # fmt: skip
    prompts = tuple(renderer.prompt_ids(turn) for turn in every_turn)
    return Workload(
        turns=every_turn, prompts=prompts, settings=settings, renderer=renderer, concurrency=concurrency, folder=folder
    )


def measure_sglang(url: str, work: Workload) -> float:
    """Output tokens/s that `sglang.bench_serving` reports."""
    rows, report = work.folder / "rows.jsonl", work.folder / "report.jsonl"
    sampling, k = work.settings.sampling, work.settings.num_samples
    parameters = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens, "ignore_eos": True}
    row = {"output_len": sampling.max_new_tokens, "extra_request_body": {"sampling_params": parameters}}
    rows.write_text("".join(f"{json.dumps({'prompt': prompt, **row})}\n" * k for prompt in work.prompts))
    report.unlink(missing_ok=True)
    flags = {
        "backend": "sglang", "base-url": url, "model": work.settings.model, "dataset-name": "autobench",
        "dataset-path": rows, "num-prompts": k * len(work.prompts), "max-concurrency": k * work.concurrency,
        "warmup-requests": 0, "output-file": report,
    }  # fmt: skip
    command = [sys.executable, "-m", "sglang.bench_serving", "--disable-stream", "--disable-tqdm"]
    command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    environment = server_environment(os.environ, work.settings.model, on_cpu=not has_accelerator())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr
    found = json.loads(report.read_text())
    assert found["total_output_tokens"] == k * len(work.prompts) * sampling.max_new_tokens, found
    return float(found["output_throughput"])


async def measure_profiler(url: str, work: Workload) -> Measured:
    """Measure the profiler, from rendering the prompts to writing the file."""
    path, totals = work.folder / "profile.jsonl", Totals()
    path.unlink(missing_ok=True)
    pool = EnginePool([SGLangEngine(url)], print)
    profiler = Profiler(renderer=work.renderer, pool=pool, settings=work.settings, seed=0, totals=totals)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    with open_profile(path, work.settings) as writer:
        await profile_turns(work.turns, profiler, writer, concurrency=work.concurrency, on_turn=lambda: None)
    seconds = time.perf_counter() - begin
    assert totals.num_tokens == len(work.turns) * work.settings.num_samples * work.settings.sampling.max_new_tokens
    share = totals.num_cached_tokens / totals.num_prompt_tokens
    return Measured(totals.num_tokens / seconds, share, time.process_time() - cpu_begin)


async def measure_order(url: str, work: Workload, order: Sequence[int]) -> Measured:
    """Measure sampling of the turns in this order, all samples of a turn at once and without a prefill before."""
    engine, k = SGLangEngine(url), work.settings.num_samples
    slots = asyncio.Semaphore(work.concurrency)
    num_tokens = num_cached = 0

    async def send(prompt: list[int]) -> None:
        nonlocal num_tokens, num_cached
        async with slots:
            completions = await engine.generate(prompt, work.settings.sampling, k)
        num_tokens += sum(completion.num_tokens for completion in completions)
        num_cached += sum(completion.num_cached_tokens for completion in completions)

    begin, cpu_begin = time.perf_counter(), time.process_time()
    await asyncio.gather(*(send(work.prompts[position]) for position in order))
    seconds = time.perf_counter() - begin
    await engine.close()
    num_prompt_tokens = k * sum(map(len, work.prompts))
    return Measured(num_tokens / seconds, num_cached / num_prompt_tokens, time.process_time() - cpu_begin)


def _flush(url: str) -> None:
    while httpx.post(f"{url}/flush_cache", trust_env=False, timeout=60.0).status_code != 200:
        time.sleep(0.2)


def run_rounds(url: str, work: Workload, num_rounds: int, say: Callable[[str], None]) -> dict[str, list[Measured]]:
    """{name of a case: [num_rounds] measurements}; every round measures each case once."""
    in_order = range(len(work.prompts))
    shuffled = random.Random(0).sample(in_order, len(in_order))

    def asynchronous(make: Callable[[], Awaitable[Measured]]) -> Callable[[], Measured]:
        async def run() -> Measured:
            return await make()

        return lambda: asyncio.run(run())

    cases: dict[str, Callable[[], Measured]] = {
        "sglang.bench_serving": lambda: Measured(measure_sglang(url, work), 0.0, 0.0),
        "verl-pivot profile": asynchronous(lambda: measure_profiler(url, work)),
        "in order, no prefill": asynchronous(lambda: measure_order(url, work, in_order)),
        "shuffled, no prefill": asynchronous(lambda: measure_order(url, work, shuffled)),
    }
    found: dict[str, list[Measured]] = {name: [] for name in cases}
    for number in range(num_rounds):
        for name, measure in cases.items():
            say(f"round {number + 1} of {num_rounds}: {name}")
            _flush(url)
            found[name].append(measure())
    return found


def table_of(found: dict[str, list[Measured]], work: Workload) -> Table:
    reference = [measured.tokens_per_second for measured in found["sglang.bench_serving"]]
    num_tokens = work.settings.num_samples * work.settings.sampling.max_new_tokens * len(work.turns)
    title = f"{len(work.turns)} turns, {num_tokens} tokens a round, medians of {len(reference)} rounds"
    table = Table("what", "tokens/s", "vs. bench_serving", "range", "prefix hits", "client CPU/turn", title=title)
    for name, rounds in found.items():
        shares = [one.tokens_per_second / other for one, other in zip(rounds, reference, strict=True)]
        speed, cache, cpu = (statistics.median(values) for values in zip(*rounds, strict=True))
        table.add_row(
            name, f"{speed:.0f}", f"{statistics.median(shares):.2f}", f"{min(shares):.2f} to {max(shares):.2f}",
            f"{cache:.1%}" if cache else "", f"{cpu / len(work.turns) * 1000:.1f} ms" if cpu else "",
        )  # fmt: skip
    ours = statistics.median(
        one.tokens_per_second / other for one, other in zip(found["verl-pivot profile"], reference, strict=True)
    )
    reached = "yes" if ours >= TARGET_SHARE else "NO"
    table.caption = f"target: profile >= {TARGET_SHARE:.2f} of bench_serving; reached: {reached}"
    return table


def main(
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories to profile.")] = 40,
    turns_each: Annotated[int, typer.Option(min=1, help="Turns of each trajectory.")] = 10,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sample.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns that are sampled at once.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; a tiny model by default.")] = None,
    server_flags: Annotated[str, typer.Option(help="Flags of SGLang, such as '--max-total-tokens 4096'.")] = "",
) -> None:
    """Print tokens/s of the profile and of SGLang's own benchmark, on one server."""
    console = table_console()
    with tempfile.TemporaryDirectory() as name, console.status("making the model") as status:
        folder, sampling = Path(name), Sampling(max_new_tokens=new_tokens)
        work = make_workload(
            folder, num_trajectories=trajectories, num_turns=turns_each, sampling=sampling, concurrency=concurrency,
            model=model,
        )  # fmt: skip
        status.stop()
        flags = (*NEVER_END, *shlex.split(server_flags))
        with sglang_server(work.settings.model, log=folder / "log", extra_flags=flags, console=console) as url:
            status.start()
            few = replace(work, turns=work.turns[:turns_each], prompts=work.prompts[:turns_each])
            asyncio.run(measure_profiler(url, few))  # the server's first requests are slow
            found = run_rounds(url, work, rounds, lambda what: status.update(what))
    Console(width=None if console.is_terminal else 120).print(table_of(found, work))


if __name__ == "__main__":
    typer.run(main)
