"""Whole tasks in a shop, with rollouts chosen by a tree search and with plain ones: see `--help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import console, train_arms  # noqa: E402
from examples.options import HeldOutTasks, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.success import Result, read_dump  # noqa: E402
from examples.tree_search.measures import read_evaluations, read_steps  # noqa: E402
from examples.tree_search.report import Trained, show_all, write  # noqa: E402
from examples.tree_search.training import ARMS, BASE, PLAIN, SEARCH, make_arm  # noqa: E402


def main(
    out: Out = Path("outputs/tree-search"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of((BASE, PLAIN, SEARCH)),
    seeds: Seeds = 3,
    steps: Steps = 20,
    tasks: HeldOutTasks = 300,
) -> None:
    """Train a small policy on whole tasks by GRPO, with rollouts chosen by a tree search and with plain ones.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.tree_search --arms base,plain,tree_search --seeds 1 --out outputs/tree-search-1
    """
    results: list[Result] = []
    trainings: list[Trained] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that a careless clerk taught bad habits",
        sft_config=lambda seed: SftConfig(seed=seed),
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps, num_held_out=tasks),
        settings=lambda arm: {"tasks": tasks},
    ):
        results.append(Result(arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated), training={}))
        if arm.is_trained:
            evaluations = read_evaluations(arm.validation)
            trained = Trained(arm=arm.name, seed=arm.seed, steps=read_steps(arm.rollouts), evaluations=evaluations)
            trainings.append(trained)
        write(results, trainings, missing, out)  # after each unit, since all units together take an hour
    show_all(results, trainings, missing, console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
