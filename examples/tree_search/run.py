"""Whole tasks in a shop, with rollouts that a search chooses and with plain ones: see `--help`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.options import HeldOutTasks, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.quickstart.run import FIRST_EXPERT_SEED, phase  # noqa: E402
from examples.success import Result, read_dump  # noqa: E402
from examples.tool_rollout.training import TOOLS, write_tasks  # noqa: E402
from examples.tree_search.measures import read_evaluations, read_steps  # noqa: E402
from examples.tree_search.report import Trained, show_all, write  # noqa: E402
from examples.tree_search.training import ARMS, BASE, PLAIN, SEARCH, Arm  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402

NUM_TASKS = 2000
console = Console()


def main(
    out: Out = Path("outputs/tree-search"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of((BASE, PLAIN, SEARCH)),
    seeds: Seeds = 3,
    steps: Steps = 20,
    tasks: HeldOutTasks = 300,
) -> None:
    """Train a small policy on whole tasks by GRPO, with rollouts that a search chooses and with its own, and compare.

    Run the command again to continue: a finished unit, one arm with one seed, is not repeated, and one that was ended
    goes on from its last checkpoint.

    Example: python -m examples.tree_search --arms base,plain,tree_search --seeds 1 --out outputs/tree-search-1
    """
    chosen = chosen_names(arms, ARMS)
    seconds: dict[str, float] = {}
    units: list[Unit] = []
    results: list[Result] = []
    trainings: list[Trained] = []
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that a careless clerk taught bad habits", seconds):
            policy = make_policy(folder / "policy", SftConfig(seed=seed))
        for name in chosen:
            arm = make_arm(name, policy, folder, seed, steps, tasks)
            settings = {**arm.settings, "sft": asdict(SftConfig(seed=seed)), "tasks": tasks}
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings=settings))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(train_and_evaluate, arm, console))
            results.append(Result(arm=name, seed=seed, held_out=read_dump(arm.evaluated), training={}))
            if arm.is_trained:
                trainings.append(_trained(arm))
            write(results, trainings, gaps(units), out)  # after each unit, since all take an hour
    show_all(results, trainings, gaps(units), console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, num_steps: int, num_held_out: int) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy and see the same tasks."""
    first = FIRST_EXPERT_SEED * (seed + 1)
    return Arm(
        name=name,
        model=policy,
        rows=write_tasks(folder / "tasks.parquet", range(first, first + NUM_TASKS)),
        held_out=write_tasks(folder / "held_out.parquet", range(num_held_out), held_out=True),
        tools=TOOLS,
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
    )


def _trained(arm: Arm) -> Trained:
    return Trained(
        arm=arm.name, seed=arm.seed, steps=read_steps(arm.rollouts), evaluations=read_evaluations(arm.validation)
    )


def start() -> None:
    """Run `main` with the arguments of this process; killed in any way, it leaves no process behind."""
    run_supervised(lambda: typer.run(main))
