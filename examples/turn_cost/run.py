"""Whole tasks in a shop whose turns cost something, on success alone or always: see `--help`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.options import HeldOutTasks, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.quickstart.run import FIRST_EXPERT_SEED, phase  # noqa: E402
from examples.success import Result, SuccessRow, read_dump, show, success_rows, write  # noqa: E402
from examples.tool_rollout.training import TOOLS, write_tasks  # noqa: E402
from examples.turn_cost.training import ARMS, OUTCOME, Arm, write_rewards  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.data.rollout_dumps import DumpedOutcome  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402

NUM_TASKS = 2000
console = Console()


def main(
    out: Out = Path("outputs/turn-cost"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 20,
    tasks: HeldOutTasks = 300,
) -> None:
    """Train a small policy on whole tasks whose turns cost nothing, little or much; compare successes and calls.

    Run the command again to continue: a finished unit, one arm with one seed, is not repeated, and one that was ended
    goes on from its last checkpoint.

    Example: python -m examples.turn_cost --arms base,free,all_0.5 --seeds 1 --out outputs/turn-cost-1
    """
    chosen = chosen_names(arms, ARMS)
    seconds: dict[str, float] = {}
    units: list[Unit] = []
    results: list[Result] = []
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that a careless clerk taught bad habits", seconds):
            policy = make_policy(folder / "policy", SftConfig(seed=seed))
        for name in chosen:
            arm = make_arm(name, policy, folder, seed, steps, tasks)
            settings = {**arm.settings, "sft": asdict(SftConfig(seed=seed)), "tasks": tasks, **ARMS[name]._asdict()}
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings=settings))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(train_and_evaluate, arm, console))
            results.append(Result(arm=name, seed=seed, held_out=read_dump(arm.evaluated, outcome), training={}))
            found = success_rows(results, list(ARMS))
            write(found, gaps(units), out)  # after each unit, since all take hours
            draw(found, out / "turn_cost.png")
    show(found, gaps(units), console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'turn_cost.png'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, num_steps: int, num_held_out: int) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy and see the same tasks."""
    first = FIRST_EXPERT_SEED * (seed + 1)
    return Arm(
        name=name,
        model=policy,
        rows=write_tasks(folder / "tasks.parquet", range(first, first + NUM_TASKS)),
        held_out=write_tasks(folder / "held_out.parquet", range(num_held_out), held_out=True),
        tools=TOOLS,
        rewards=write_rewards(folder / f"{name}.yaml", ARMS[name]),
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
    )


def outcome(row: DumpedOutcome) -> float | None:
    """The outcome of the task alone, without what its turns cost; None if it is undecided."""
    return row.reward_info[f"paid/{OUTCOME}"] if row.score is not None else None


def draw(rows: list[SuccessRow], path: Path) -> None:
    """Plot successes over calls: a point for each unit, one colour for each arm."""
    figure, panel = plt.subplots(figsize=(7, 5), layout="constrained")
    for number, arm in enumerate(each for each in ARMS if any(row.arm == each for row in rows)):
        own = [row for row in rows if row.arm == arm]
        panel.plot([row.calls for row in own], [row.success for row in own], "o", color=f"C{number}", label=arm)
    panel.set(xlabel="calls of a trajectory on a held-out task", ylabel="held-out tasks solved")
    panel.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def start() -> None:
    """Run `main` with the arguments of this process; killed in any way, it leaves no process behind."""
    run_supervised(lambda: typer.run(main))
