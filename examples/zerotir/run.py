"""ZeroTIR with a policy that seldom writes code: `python -m examples.zerotir --help`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.grpo_roc.training import write_problems  # noqa: E402
from examples.options import Out, Seeds  # noqa: E402
from examples.quickstart.run import phase, run, train_shown  # noqa: E402
from examples.units import Unit, finish  # noqa: E402
from examples.zerotir.policy import make_policy, sft_config  # noqa: E402
from examples.zerotir.training import ZeroTIRTraining  # noqa: E402

console = table_console()
BLOCK_STEPS = 10
"""Number of steps in one block of the report."""


def main(
    out: Out = Path("outputs/zerotir"),
    seeds: Seeds = 3,
    steps: Annotated[int, typer.Option(min=2 * BLOCK_STEPS, help="Steps of each training.")] = 40,
) -> None:
    """Train by ZeroTIR a policy that seldom writes code, and see whether calls, length and accuracy rise together.

    Run the command again to continue: a finished training is not repeated. An interrupted one starts over, since its
    only checkpoint is the one after its last step.

    Example: python -m examples.zerotir --seeds 1 --out outputs/zerotir-1
    """
    seconds: dict[str, float] = {}
    trainings: list[ZeroTIRTraining] = []
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that seldom writes code", seconds):
            policy = make_policy(folder / "policy", sft_config(seed))
        training = make_training(policy, folder, seed, steps)
        unit = Unit(arm="zerotir", seed=seed, folder=training.folder, settings=training.settings)
        with phase(f"training {seed}", f"Seed {seed}: ZeroTIR in the stock trainer", seconds):
            finish(unit, partial(train_shown, training))
        trainings.append(training)
    runs = [training.folder for training in trainings]
    run("tools", "report", *runs, "--block", str(BLOCK_STEPS), "--plot", out / "zerotir.png")
    (out / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n")


def make_training(policy: Path, folder: Path, seed: int, num_steps: int) -> ZeroTIRTraining:
    """The training of a seed, which sees each problem once."""
    first = 100_000 * seed
    return ZeroTIRTraining(
        model=policy,
        rows=write_problems(folder / "problems.parquet", range(first, first + 8 * num_steps + 8)),
        validation=write_problems(folder / "validation.parquet", range(first + 90_000, first + 90_008)),
        folder=folder / "zerotir",
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=8,
        group_size=8,
    )


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
