"""Whole tasks in a shop, by GRPO on trajectories with tools: `python -m examples.tool_rollout --help`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.options import HeldOutTasks, Out, Seed  # noqa: E402
from examples.quickstart import report  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.quickstart.run import FIRST_EXPERT_SEED, measure_checkpoint, phase, train_shown  # noqa: E402
from examples.quickstart.training import read_steps  # noqa: E402
from examples.tool_rollout.training import ToolTraining, write_tasks  # noqa: E402

console = table_console()


def main(
    out: Out = Path("outputs/tool-rollout"),
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 40,
    tasks: HeldOutTasks = 300,
) -> None:
    """Let a small policy work on whole tasks with tools, reward the outcome, and measure the gain.

    A finished phase is not repeated: run the command again to continue, or remove the folder of --out to start over.

    Example: python -m examples.tool_rollout --seed 1 --out outputs/tool-rollout-1
    """
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    with phase("policy", "1. A tiny Qwen2, brought to partial skill by SFT, as in the quickstart", seconds):
        policy = make_policy(out / "policy", SftConfig(seed=seed))

    with phase("base evaluation", f"2. The base policy on {tasks} held-out tasks", seconds):
        base = measure_checkpoint(policy, out / "base.server.log", seed, tasks)

    first = FIRST_EXPERT_SEED * (seed + 1)
    training = ToolTraining(
        model=policy,
        rows=write_tasks(out / "tasks.parquet", range(first, first + 2000)),
        validation=write_tasks(out / "validation.parquet", range(32), held_out=True),
        folder=out / "training",
        seed=seed,
        num_steps=steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
    )
    with phase("training", "3. GRPO on whole trajectories, in the stock trainer", seconds):
        train_shown(training)
    with phase("trained evaluation", "4. The trained policy on the same tasks", seconds):
        trained = measure_checkpoint(training.trained, out / "trained.server.log", seed, tasks)

    summary = report.Summary(seed=seed, base=base, trained=trained, seconds=seconds, steps=read_steps(training.log))
    report.write(summary, out, name="tool_rollout", title="GRPO on whole trajectories")
    report.show(summary, console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'tool_rollout.png'}.")


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
