"""Whole tasks in a shop whose turns have a cost, charged on success alone or always: see `--help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import console, train_arms  # noqa: E402
from examples.options import HeldOutTasks, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.success import Result, SuccessRow, read_dump, show, success_rows, write  # noqa: E402
from examples.turn_cost.training import ARMS, OUTCOME, make_arm  # noqa: E402
from verl_pivot.data.rollout_dumps import DumpedOutcome  # noqa: E402


def main(
    out: Out = Path("outputs/turn-cost"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 20,
    tasks: HeldOutTasks = 300,
) -> None:
    """Train a small policy on whole tasks whose turns cost nothing, little or much; compare successes and calls.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.turn_cost --arms base,free,all_0.5 --seeds 1 --out outputs/turn-cost-1
    """
    results: list[Result] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that a careless clerk taught bad habits",
        sft_config=lambda seed: SftConfig(seed=seed),
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps, num_held_out=tasks),
        settings=lambda arm: {"tasks": tasks, **ARMS[arm.name]._asdict()},
    ):
        results.append(Result(arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated, outcome), training={}))
        write(success_rows(results, list(ARMS)), missing, out)  # after each unit, since all units together take hours
        draw(success_rows(results, list(ARMS)), out / "turn_cost.png")
    show(success_rows(results, list(ARMS)), missing, console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'turn_cost.png'}.")


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
    """Run `main` with the command line's arguments."""
    typer.run(main)
