"""GRPO-RoC compared with GRPO on problems that code solves: `python -m examples.grpo_roc --help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.grpo_roc import report  # noqa: E402
from examples.grpo_roc.measures import Rollout, read_steps  # noqa: E402
from examples.grpo_roc.policy import make_policy, sft_config  # noqa: E402
from examples.grpo_roc.training import ARMS, DEFAULT_ARMS, Arm, write_problems  # noqa: E402
from examples.options import Out, Seeds, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.run import phase, train_shown  # noqa: E402
from examples.quickstart.training import kept_steps  # noqa: E402
from examples.units import Unit, finish  # noqa: E402

console = table_console()


def main(
    out: Out = Path("outputs/grpo-roc"),
    seeds: Seeds = 3,
    arms: Annotated[str, names_option("Arms to run, of which the first is the baseline", ARMS)] = all_of(DEFAULT_ARMS),
    steps: Annotated[int, typer.Option(min=report.LAST_STEPS, help="Steps of each training.")] = 30,
) -> None:
    """Train a small policy that makes tool errors by GRPO and by both modes of GRPO-RoC, and compare the errors.

    The arm grpo_roc_partial continues unfinished rollouts in the next step. To compare its learning curves with those
    of plain GRPO-RoC, give `--arms grpo_roc_paper,grpo_roc_partial`.

    A finished phase is not repeated: run the command again to continue, or remove the folder of --out to start over.

    Example: python -m examples.grpo_roc --seeds 1 --out outputs/grpo-roc-1
    """
    seconds: dict[str, float] = {}
    chosen = chosen_names(arms, ARMS, least=2)  # one arm has nothing to be compared with
    rollouts: dict[str, list[list[Rollout]]] = {name: [] for name in chosen}
    step_seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that learns a careless programmer's ways", seconds):
            policy = make_policy(folder / "policy", sft_config(seed))
        for name in chosen:
            arm = make_arm(name, policy, folder, seed, steps)
            unit = Unit(arm=name, seed=seed, folder=arm.folder, settings=arm.settings)
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(unit, partial(train_shown, arm))
            rollouts[name].append(read_steps(arm.rollouts))
            step_seconds[name] += (step["timing_s/gen"] for step in kept_steps(arm))

    summary = report.Summary.of(rollouts, step_seconds)
    report.write(summary, rollouts, seconds, out)
    report.show(summary, console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'grpo_roc.png'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, num_steps: int) -> Arm:
    """One arm of a seed; all arms of a seed see the same problems, each problem once."""
    first = 100_000 * seed
    return Arm(
        name=name,
        model=policy,
        rows=write_problems(folder / "problems.parquet", range(first, first + 4000)),
        validation=write_problems(folder / "validation.parquet", range(first + 4000, first + 4008)),
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=5e-4,
        batch_size=8,
        group_size=8,
    )


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
