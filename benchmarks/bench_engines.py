"""Seconds of the same conversations under each routing policy, on two real SGLang servers with a small KV cache.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_engines --help`. Conversations have
several turns, tools that take time, and lengths that no router knows; they go through verl's own client and router
actor. The number of recomputed tokens follows from the `cached_tokens` that the engines report.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import ray
import typer
import yaml
from omegaconf import OmegaConf
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.conversations import play
from tests.support.tiny_model import write_model
from verl_pivot.commands.tables import table_console
from verl_pivot.engines.server import sglang_server
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_conversations, shrink

STOCK = "verl's own"
OURS = "kv_forecast"
ROUTING_POLICIES = (STOCK, "static", "cache_aware", "kv_admission", OURS, "kv_forecast, stock loop")
"""Policies to compare. The last one has agent loops that, like verl's own, do not report the end of a conversation."""
MODEL = {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 3}
"""Sizes of a tiny model. On a CPU it prefills twelve tokens in the time that it needs to generate one, as a 14B model
does on one H100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Servers and conversations, the same for all policies."""

    urls: Sequence[str]
    handles: dict[str, Any]
    """{host:port: actor of a server}."""
    conversations: Sequence[SimulatedConversation]
    step_before: Sequence[SimulatedConversation]
    """Conversations of an earlier step, a third as many and with other prompts.

    A router learns lengths from them before it is measured.
    """
    budget: int
    """Tokens of the longest response."""
    folder: Path


@dataclass(slots=True, kw_only=True)
class RoutingCosts:
    """Costs of all conversations under one routing policy."""

    seconds: float = 0.0
    generated_tokens: int = 0
    sent_tokens: int = 0
    """Tokens that were sent to the engines: prompt and context of every turn."""
    cached_tokens: int = 0
    """Sent tokens that were found in a prefix cache."""
    recomputed_tokens: int = 0
    """Sent tokens that an engine had computed for an earlier turn, and that were not in the cache."""
    num_retractions: int = 0
    num_moves: int = 0
    """Turns that were served by another engine than the turn before."""


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts, with 8 conversations each.")] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with every policy once; medians are shown.")] = 3,
    capacity: Annotated[int, typer.Option(min=512, help="Size of each server's KV cache, in tokens.")] = 12_288,
    budget: Annotated[int, typer.Option(min=256, help="Tokens of the longest response; other lengths scale.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the conversations.")] = 0,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; a tiny model by default.")] = None,
    flag: Annotated[
        list[str] | None, typer.Option(help="Flag for SGLang, such as --flag=--load-format=dummy; repeatable.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Policy to measure; repeatable; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the costs of every round.")] = None,
) -> None:
    """Print seconds, retractions, recomputed tokens and cache hits of each routing policy."""
    console = table_console()
    scenario = step_scenario(prompts, budget)
    chosen = policy or list(ROUTING_POLICIES)
    os.environ["OMP_NUM_THREADS"] = "1"  # with more threads, the two servers starve each other
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags = (
                *("--max-total-tokens", str(capacity), "--max-running-requests", "64"),
                *("--preferred-sampling-params", '{"ignore_eos": true}', "--enable-metrics"),
                *(flag or ()),
            )
            checkpoint = str(model or write_model(folder / "model", sizes=MODEL))
            urls = [
                stack.enter_context(
                    sglang_server(checkpoint, log=folder / f"{number}.log", extra_flags=flags, console=console)
                )
                for number in range(2)
            ]
            actor = ray.remote(max_concurrency=10_000)(Engine)
            setup = Setup(
                urls=urls,
                handles={url.removeprefix("http://"): actor.remote(url) for url in urls},
                conversations=draw_conversations(scenario, seed),
                step_before=draw_conversations(shrink(scenario, 3), seed + 1_000_000),
                budget=scenario.budget,
                folder=folder,
            )
            results: dict[str, list[RoutingCosts]] = {name: [] for name in chosen}
            for number in range(rounds):
                for name in chosen:
                    results[name].append(asyncio.run(run(setup, name)))
                    console.print(f"round {number + 1}, {name}: {results[name][-1].seconds:.1f} s", style="dim")
    finally:
        ray.shutdown()
    show(results, len(setup.conversations), console)
    if out is not None:
        out.write_text(json.dumps({name: [asdict(each) for each in found] for name, found in results.items()}))


def step_scenario(prompts: int, budget: int) -> Scenario:
    """Scenario of one step: six turns on average, with lengths that are shares of `budget`, the longest response."""
    return Scenario(
        num_groups=prompts, group_size=8, prompt_tokens=3 * budget // 16, budget=budget, median_tokens=0.3 * budget,
        last_turn=0.12, observation_tokens=budget // 32, mean_wait_seconds=0.05,
    )  # fmt: skip


def show(results: dict[str, list[RoutingCosts]], num_conversations: int, console: Console) -> None:
    """Print one row per policy: medians over the rounds."""
    title = f"{num_conversations} conversations, 2 servers, medians of {len(next(iter(results.values())))} rounds"
    table = Table(title=title, title_justify="left")
    for column in ("policy", "seconds", "tokens/s", "retracted", "recomputed", "prefix hits", "moves"):
        table.add_column(column, justify="right" if column != "policy" else "left")
    for name, found in results.items():
        table.add_row(
            name,
            f"{statistics.median(each.seconds for each in found):.1f}",
            f"{statistics.median(each.generated_tokens / each.seconds for each in found):.0f}",
            f"{statistics.median(each.num_retractions for each in found):.0f}",
            f"{statistics.median(each.recomputed_tokens / each.generated_tokens for each in found):.1%}",
            f"{statistics.median(each.cached_tokens / each.sent_tokens for each in found):.1%}",
            f"{statistics.median(each.num_moves for each in found):.0f}",
        )
    console.print(table)


async def run(setup: Setup, policy: str) -> RoutingCosts:
    """Costs of one step from empty caches, under a new router that has served one step before."""
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.router import get_router_handle

    router = get_router_handle(setup.handles, router_config_path=_router_file(setup, policy))
    await router.get_all_servers.remote()  # the router imports its modules now, so that this is not measured
    client = LLMServerClient(OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "sglang"}}}), router)
    async with httpx.AsyncClient(timeout=60.0) as http:
        await step(client, http, setup.urls, setup.step_before, reports_end=policy == OURS)
        costs = await step(client, http, setup.urls, setup.conversations, reports_end=policy == OURS)
    for each in getattr(router, "actors", [router]):
        ray.kill(each)
    return costs


async def step(
    client: Any,
    http: httpx.AsyncClient,
    urls: Sequence[str],
    conversations: Sequence[SimulatedConversation],
    *,
    reports_end: bool,
) -> RoutingCosts:
    """Play conversations that all begin at once, from empty caches."""
    for url in urls:
        await empty_cache(http, url)
    before = await _num_retractions(http, urls)
    costs = RoutingCosts()
    began = time.monotonic()
    await asyncio.gather(*(count(client, each, costs, reports_end) for each in conversations))
    costs.seconds = time.monotonic() - began
    costs.num_retractions = await _num_retractions(http, urls) - before
    return costs


async def count(client: Any, conversation: SimulatedConversation, costs: RoutingCosts, reports_end: bool) -> None:
    """Play a conversation, and add the costs of its turns to `costs`."""
    known, server = 0, None
    async for turn in play(client, conversation, {}, reports_end=reports_end):
        found = turn.output.extra_fields
        costs.generated_tokens += len(turn.output.token_ids)
        costs.sent_tokens += len(turn.sent)
        costs.cached_tokens += found["cached_tokens"]
        costs.recomputed_tokens += max(0, known - found["cached_tokens"])
        costs.num_moves += server not in (None, found["url"])
        server = found["url"]
        known = len(turn.sent) + len(turn.output.token_ids) - 1  # the last token's KV was never computed


class Engine:
    """Ray actor that replaces verl's actor around SGLang: the same `generate`, which calls a server over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.AsyncClient(
            timeout=600.0, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **others: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        body = {"input_ids": prompt_ids, "sampling_params": sampling_params}
        answer = await self._client.post(f"{self._url}/generate", json=body)
        answer.raise_for_status()
        content = answer.json()
        extra_fields = {"cached_tokens": content["meta_info"]["cached_tokens"], "url": self._url}
        return TokenOutput(token_ids=content["output_ids"], stop_reason="stop", extra_fields=extra_fields)


async def empty_cache(http: httpx.AsyncClient, url: str = "") -> None:
    """Empty a server's prefix cache when its requests have ended, which is a moment after they are answered."""
    (await http.post(f"{url}/flush_cache", params={"timeout": 30.0})).raise_for_status()


async def _num_retractions(http: httpx.AsyncClient, urls: Sequence[str]) -> int:
    total = 0.0
    for url in urls:
        text = (await http.get(f"{url}/metrics")).raise_for_status().text
        for family in text_string_to_metric_families(text):
            total += sum(s.value for s in family.samples if s.name == "sglang:num_retracted_requests_total")
    return int(total)


def _router_file(setup: Setup, policy: str) -> str | None:
    if policy == STOCK:
        return None
    path = setup.folder / "router.yaml"
    values = {
        "router_class": "verl_pivot.routing.router_actor.KvRouter",
        "policy": policy.split(",")[0],
        "max_response_tokens": setup.budget,
        "static": {"num_conversations": len(setup.conversations)},
    }
    path.write_text(yaml.safe_dump(values))
    return str(path)


if __name__ == "__main__":
    typer.run(main)
