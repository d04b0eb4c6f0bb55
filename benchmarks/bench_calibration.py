"""Error of the routing simulator: seconds of whole steps on one real SGLang server and on a simulated engine.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_calibration --help`. First the rates of
the simulated engine are measured on the server; then whole steps of conversations run on the server and in the
simulator. The rates are not fitted to those steps.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls  # type: ignore[import-untyped]

from benchmarks.bench_engines import MODEL, empty_cache
from benchmarks.conversations import prompt_of, tokens
from tests.support.tiny_model import write_model
from verl_pivot.commands.tables import table_console
from verl_pivot.engines.server import sglang_server
from verl_pivot.routing.baselines import Static
from verl_pivot.routing.simulator.engine import EngineRates
from verl_pivot.routing.simulator.step import simulate
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_conversations

TARGET_ERROR = 0.15
"""Target: the largest relative error of the simulated seconds of a step."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Steps of each scenario, each with its own seed.")] = 2,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; a tiny model by default.")] = None,
    capacity: Annotated[int, typer.Option(min=1024, help="Size of the server's KV cache, in tokens.")] = 12_288,
    budget: Annotated[int, typer.Option(min=512, help="Tokens of the longest response; other lengths scale.")] = 1024,
    flag: Annotated[
        list[str] | None, typer.Option(help="Flag for SGLang, such as --flag=--load-format=dummy; repeatable.")
    ] = None,
) -> None:
    """Print the measured rates, and seconds of whole steps on the server beside those in the simulator."""
    if capacity < 2 * budget:
        raise typer.BadParameter(f"--capacity must be at least twice --budget, which is {budget}; got {capacity}")
    console = table_console()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = (
            *("--max-total-tokens", str(capacity), "--max-running-requests", "128"),
            *("--preferred-sampling-params", '{"ignore_eos": true}'),
            *(flag or ()),
        )
        checkpoint = str(model or write_model(folder / "model", sizes=MODEL))
        with sglang_server(checkpoint, log=folder / "server.log", extra_flags=flags, console=console) as url:
            asyncio.run(calibrate(url, scenarios(capacity, budget), seeds, console))


def scenarios(capacity: int, budget: int) -> dict[str, Scenario]:
    """{name: scenario} of one engine, named after the load: few conversations, many, many turns, or long responses."""
    common = Scenario(
        num_engines=1, capacity=capacity, group_size=8, prompt_tokens=budget // 8, budget=budget,
        median_tokens=0.3 * budget, observation_tokens=budget // 64, mean_wait_seconds=0.05, has_exact_limits=True,
    )  # fmt: skip
    num_longest = capacity // budget  # conversations of the longest length that fit into the cache
    return {
        "room for all": replace(common, num_groups=num_longest // 2, median_tokens=0.15 * budget),
        "pressure": replace(common, num_groups=num_longest),
        "many turns": replace(common, num_groups=5 * num_longest // 6, last_turn=0.1),
        "long": replace(common, num_groups=2 * num_longest // 3, median_tokens=0.6 * budget),
    }


async def calibrate(url: str, steps: dict[str, Scenario], seeds: int, console: Console) -> None:
    """Measure the rates, then whole steps, and print both."""
    table = Table(title="seconds of a step on one engine", title_justify="left")
    for column in ("scenario", "seed", "real", "simulated", "error"):
        table.add_column(column, justify="right" if column != "scenario" else "left")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as http:
        first = next(iter(steps.values()))
        rates = await measure_rates(http, first.capacity, first.budget)
        console.print({name: float(f"{value:.3g}") for name, value in asdict(rates).items()})
        errors = []
        for name, scenario in steps.items():
            for seed in range(seeds):
                conversations = draw_conversations(scenario, seed)
                real = await seconds_of(http, conversations)
                policy = Static(num_conversations=len(conversations))
                simulated = simulate(scenario, conversations, policy, rates).makespan_seconds
                errors.append(simulated / real - 1)
                console.print(f"{name}, seed {seed}: {real:.1f} s, simulated {simulated:.1f} s", style="dim")
                table.add_row(name, str(seed), f"{real:.1f}", f"{simulated:.1f}", f"{errors[-1]:+.1%}")
    console.print(table)
    worst = max(map(abs, errors))
    console.print(f"mean error {np.mean(np.abs(errors)):.1%}, largest {worst:.1%}; target {TARGET_ERROR:.0%}")


async def measure_rates(http: httpx.AsyncClient, capacity: int, budget: int) -> EngineRates:
    """Rates that fit the measured seconds best, by least squares with no rate below 0.

    The measurements are prefills of several lengths, and decoding steps of batches in which all requests have contexts
    of the same length.
    """
    await generate(http, tokens("warm", 64), 8)
    prefills, seconds = [], []
    for length in (budget // 16, budget // 4, budget // 2, budget):
        for attempt in range(4):
            began = time.monotonic()
            await generate(http, tokens(f"prefill {length} {attempt}", length), 1)
            prefills.append([1.0, length])
            seconds.append(time.monotonic() - began)
    (batch, token), _ = nnls(np.array(prefills), np.array(seconds))
    steps, decoding = [], []
    for context in (budget // 32, budget // 5, budget // 2, 3 * budget // 4, budget):
        for running in (1, 4, 8, 12, 16, 24, 40, 64):
            if running * (context + 64) > capacity:
                break
            await empty_cache(http)
            prompts = await _contexts(http, running, context)
            for _ in range(3):
                short = await _together(http, prompts, 1)  # both calls find their prompts in the cache
                long = await _together(http, prompts, 61)
                steps.append([60.0, 60.0 * running, running * (60.0 * context + 60 * 61 / 2)])
                decoding.append(long - short)
    (step, row, context_rate), _ = nnls(np.array(steps), np.array(decoding))
    return EngineRates(
        step_seconds=step,
        request_seconds=row,
        context_token_seconds=context_rate,
        prefill_token_seconds=token,
        prefill_batch_seconds=batch,
    )


async def _contexts(http: httpx.AsyncClient, running: int, context: int) -> list[list[int]]:
    """[running, context] token ids of prompts that the server has in its cache.

    The server generates them side by side, so that their KV is as scattered in its memory as that of conversations.
    """
    starts = [tokens(f"decode {running} {context} {number}", 16) for number in range(running)]
    rest = await asyncio.gather(*(generate(http, start, context - 15) for start in starts))
    return [start + more[:-1] for start, more in zip(starts, rest, strict=True)]


async def _together(http: httpx.AsyncClient, prompts: Sequence[list[int]], num_tokens: int) -> float:
    """Seconds until the server has generated `num_tokens` for each prompt, all prompts at once."""
    began = time.monotonic()
    await asyncio.gather(*(generate(http, prompt, num_tokens) for prompt in prompts))
    return time.monotonic() - began


async def seconds_of(http: httpx.AsyncClient, conversations: Sequence[SimulatedConversation]) -> float:
    """Seconds to play all conversations at once on the server, from an empty cache."""
    await empty_cache(http)
    began = time.monotonic()
    await asyncio.gather(*(play(http, each) for each in conversations))
    return time.monotonic() - began


async def play(http: httpx.AsyncClient, conversation: SimulatedConversation) -> None:
    """Play one conversation on the server with the turns, lengths and waits of the simulator."""
    ids = prompt_of(conversation)
    for number, turn in enumerate(conversation.turns):
        ids += await generate(http, ids, turn.generated)
        ids += tokens(f"observation {conversation.id} {number}", turn.observed)
        await asyncio.sleep(turn.wait_seconds)


async def generate(http: httpx.AsyncClient, ids: list[int], num_tokens: int) -> list[int]:
    """[num_tokens] ids that the server generates after the prompt `ids`."""
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": num_tokens}}
    answer = (await http.post("/generate", json=body)).raise_for_status().json()
    found: list[int] = answer["output_ids"]
    assert len(found) == num_tokens, answer["meta_info"]
    return found


if __name__ == "__main__":
    typer.run(main)
