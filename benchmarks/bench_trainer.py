"""Seconds of rollouts in the stock trainer with verl's own router and with kv_forecast, for the same conversations.

Run by `make bench-router`, or with other sizes by `python -m benchmarks.bench_trainer --help`. Two engines with a small
KV cache serve the conversations. The learning rate is 0, so that the policy does not change. The numbers of prefilled
and cached tokens come from SGLang's own log. Trainings that an earlier run of the same command has finished are not
repeated: their results are in the folder `--out`.
"""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pyarrow
import pyarrow.parquet
import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.bench_engines import MODEL, OURS, STOCK, step_scenario
from benchmarks.conversations import to_json
from tests.support.launching import step_metrics, training
from tests.support.tiny_model import write_model
from verl_pivot.commands.tables import table_console
from verl_pivot.local.trial_report import LOG_NAME
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_conversations

ROUTERS = {STOCK: (), OURS: ("+router=kv_forecast",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCosts:
    """Costs of the rollouts in one training, over all its steps."""

    rollout_seconds: float
    """Median of the seconds of a step's rollouts, without the first step."""
    prefilled_tokens: int
    cached_tokens: int
    """Tokens found in a prefix cache, which were not prefilled."""
    num_retractions: int

    @property
    def cache_share(self) -> float:
        """Share of the prompt tokens that were found in a prefix cache."""
        return self.cached_tokens / (self.cached_tokens + self.prefilled_tokens)


def main(
    steps: Annotated[int, typer.Option(min=2, help="Steps of each training.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Trainings with each router, in turn.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step, with 8 conversations each.")] = 15,
    budgets: Annotated[
        str, typer.Option(help="Tokens of the longest response, comma-separated, one table each. A turn has 1/23.")
    ] = "448,1056",
    capacity: Annotated[int, typer.Option(min=1, help="Longest responses that fit into an engine's KV cache.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the conversations.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for logs and results.")] = Path("outputs/bench-trainer"),
) -> None:
    """Print seconds of the rollouts and tokens that the engines computed, for each router and length of turns."""
    out.mkdir(parents=True, exist_ok=True)
    model = write_model(out / "model", sizes=MODEL)
    for budget in map(int, budgets.split(",")):
        scenario = step_scenario(prompts * steps, budget)
        compare(model, scenario, capacity * budget, steps, rounds, seed, out / f"{budget}-seed{seed}")


def compare(model: Path, scenario: Scenario, capacity: int, steps: int, rounds: int, seed: int, folder: Path) -> None:
    """Train with each router in turn, and print the table."""
    console = table_console()
    folder.mkdir(parents=True, exist_ok=True)
    conversations = draw_conversations(scenario, seed)
    rows = write_rows(folder / "rows.parquet", conversations)
    batch_size = len(conversations) // steps
    command = launch_of(model, rows, scenario, capacity, batch_size=batch_size, steps=steps)
    results: dict[str, list[TrainingCosts]] = {router: [] for router in ROUTERS}
    for number in range(rounds):
        for router, overrides in ROUTERS.items():
            own = folder / f"{number}-{len(overrides)}"
            console.print(f"training with {router}, log {own / LOG_NAME} ...", style="dim")
            loops = write_loops(folder / f"loops-{len(overrides)}.yaml", reports_end=router == OURS)
            chosen = [*overrides, f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}"]
            results[router].append(train([*command, *chosen], own))
            console.print(results[router][-1], style="dim")
    turn_tokens = statistics.fmean(turn.generated for each in conversations for turn in each.turns)
    title = (
        f"{steps} steps of {batch_size} conversations, turns of {turn_tokens:.0f} tokens, "
        f"engines of {capacity} KV tokens, medians of {rounds} rounds"
    )
    show(results, title, console)


def launch_of(model: Path, rows: Path, scenario: Scenario, capacity: int, *, batch_size: int, steps: int) -> list[str]:
    """Overrides that the launches with both routers share.

    Each rollout has its own row, so the estimator is one that does not compare the rollouts of a group.
    """
    return [
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, rows, batch_size=batch_size, n=1, num_steps=steps),
        *(f"data.val_files={rows}", "trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("algorithm.adv_estimator=reinforce_plus_plus", "data.shuffle=False", "actor_rollout_ref.actor.optim.lr=0"),
        *(f"data.max_prompt_length={scenario.budget}", f"data.max_response_length={scenario.budget}"),
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch_size}",
        *("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.agent.default_agent_loop=seeded"),
        *("ray_kwargs.ray_init.num_gpus=2", "trainer.n_gpus_per_node=2"),
        f"actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens={capacity}",
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.log_level=info",
    ]


def write_rows(path: Path, conversations: Sequence[SimulatedConversation]) -> Path:
    """Write a row in verl's columns for each conversation; SeededLoop makes the prompt's tokens from it."""
    rows = [
        {
            "data_source": "seeded",
            "prompt": [{"role": "user", "content": str(each.id)}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": each.id, "conversation": to_json(each)},
        }
        for each in conversations
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path.absolute()


def write_loops(path: Path, *, reports_end: bool) -> Path:
    """Write verl's file of agent loops, with SeededLoop alone."""
    loop = {"name": "seeded", "_target_": "benchmarks.seeded_loop.SeededLoop", "reports_end": reports_end}
    path.write_text(yaml.safe_dump([loop]))
    return path.absolute()


def show(results: dict[str, list[TrainingCosts]], title: str, console: Console) -> None:
    """Print one row per router: medians over the rounds, and the speed-up over verl's own router in each round."""
    table = Table(title=title, title_justify="left")
    for column in ("router", "rollouts, s", "prefilled", "prefix hits", "retracted", "speed-up", "in each round"):
        table.add_column(column, justify="left" if column == "router" else "right", no_wrap=column == "router")
    for router, found in results.items():
        ratios = [base.rollout_seconds / each.rollout_seconds for base, each in zip(results[STOCK], found, strict=True)]
        table.add_row(
            router,
            f"{statistics.median(each.rollout_seconds for each in found):.1f}",
            f"{statistics.median(each.prefilled_tokens for each in found):.0f}",
            f"{statistics.median(each.cache_share for each in found):.1%}",
            f"{statistics.median(each.num_retractions for each in found):.0f}",
            f"{statistics.median(ratios):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in ratios),
        )
    console.print(table)


def train(overrides: Sequence[str], folder: Path) -> TrainingCosts:
    """Launch the stock trainer once, with its log in `folder`, unless an earlier run has finished the same launch."""
    done = folder / "costs.json"
    if done.exists() and (kept := json.loads(done.read_text()))["overrides"] == list(overrides):
        return TrainingCosts(**kept["costs"])
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides, f"hydra.run.dir={folder}"]
    subprocess.run(command, check=True, env=environment)
    costs = read_costs((folder / LOG_NAME).read_text(errors="replace"))
    done.write_text(json.dumps({"overrides": overrides, "costs": asdict(costs)}))
    return costs


def read_costs(text: str) -> TrainingCosts:
    """Read the costs from the output of a training."""
    metrics = step_metrics(text)
    prefills = re.findall(r"Prefill batch.*?#new-token: (\d+), #cached-token: (\d+)", text)
    return TrainingCosts(
        rollout_seconds=statistics.median(values["timing_s/gen"] for step, values in metrics.items() if step > 1),
        prefilled_tokens=sum(int(new) for new, _ in prefills),
        cached_tokens=sum(int(cached) for _, cached in prefills),
        num_retractions=sum(map(int, re.findall(r"#retracted_reqs: (\d+)", text))),
    )


if __name__ == "__main__":
    typer.run(main)
