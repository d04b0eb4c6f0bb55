"""The stock trainer on two engines with a small KV cache, by verl's own router and by ours. Run by `make bench-router`.

Rollouts are those of examples/grpo_roc: up to five turns with real tools. The policy is not changed (learning rate 0),
so that both arms roll out the same. What engines prefilled and found cached is read from SGLang's own log.
"""

import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.benchmarks.bench_engines import OURS, STOCK
from tests.launching import step_metrics
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.grpo_roc.__main__ import make_arm  # noqa: E402
from examples.grpo_roc.policy import make_policy, sft_config  # noqa: E402

ROUTERS = {STOCK: (), OURS: ("+router=kv_forecast",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of all steps of one training."""

    rollout_seconds: float
    """Of a step, the median without the first."""
    prefilled: int
    """Tokens."""
    cached: int
    """Tokens that did not have to be."""
    retracted: int
    moves: float


def main(
    steps: Annotated[int, typer.Option(min=2, help="Of each training.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="The routers take turns; medians are shown.")] = 1,
    capacity: Annotated[int, typer.Option(min=512, help="KV tokens of each engine.")] = 768,
    out: Annotated[Path, typer.Option(help="Folder; its policy is made once.")] = Path("outputs/bench-trainer"),
) -> None:
    """Print what rollouts took and what engines computed, by router."""
    console = Console()
    console.print("a policy with tools (two to three minutes unless it is there) ...", style="dim")
    policy = make_policy(out / "policy", sft_config(0))
    results: dict[str, list[Costs]] = {router: [] for router in ROUTERS}
    for number in range(rounds):
        for router, overrides in ROUTERS.items():
            log = out / f"{number}-{router.replace(' ', '-')}.log"
            console.print(f"training with {router}, log {log} ...", style="dim")
            results[router].append(train(policy, out, log, overrides, steps, capacity))
            console.print(results[router][-1], style="dim")
    show(results, f"{steps} steps of 64 rollouts, 2 engines of {capacity} tokens, {rounds} rounds", console)


def show(results: dict[str, list[Costs]], title: str, console: Console) -> None:
    """One row per router: medians over the rounds."""
    table = Table(title=title, title_justify="left")
    for column in ("router", "rollouts s", "prefilled", "hits", "retracted", "moves"):
        table.add_column(column, justify="right" if column != "router" else "left")
    for router, found in results.items():
        table.add_row(
            router,
            f"{statistics.median(each.rollout_seconds for each in found):.1f}",
            f"{statistics.median(each.prefilled for each in found):.0f}",
            f"{statistics.median(each.cached / (each.cached + each.prefilled) for each in found):.1%}",
            f"{statistics.median(each.retracted for each in found):.0f}",
            f"{statistics.median(each.moves for each in found):.0f}",
        )
    console.print(table)


def train(policy: Path, out: Path, log: Path, overrides: tuple[str, ...], steps: int, capacity: int) -> Costs:
    """One launch of the stock trainer."""
    arm = make_arm("grpo", policy, out, 0, steps)
    command = [
        *(sys.executable, *arm.command[1:], *overrides),
        "actor_rollout_ref.actor.optim.lr=0",
        *("ray_kwargs.ray_init.num_gpus=2", "trainer.n_gpus_per_node=2"),
        f"actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens={capacity}",
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.log_level=info",
        *("trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.logger=[console]"),
    ]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
    with log.open("wb") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True, env=environment)
    return read_costs(log.read_text())


def read_costs(text: str) -> Costs:
    metrics = step_metrics(text)
    prefills = re.findall(r"Prefill batch.*?#new-token: (\d+), #cached-token: (\d+)", text)
    return Costs(
        rollout_seconds=statistics.median(values["timing_s/gen"] for step, values in metrics.items() if step > 1),
        prefilled=sum(int(new) for new, _ in prefills),
        cached=sum(int(cached) for _, cached in prefills),
        retracted=sum(map(int, re.findall(r"#retracted_reqs: (\d+)", text))),
        moves=sum(values.get("routing/moves", 0.0) for values in metrics.values()),
    )


if __name__ == "__main__":
    typer.run(main)
