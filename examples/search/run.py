"""Search-R1 with GRPO over facts of which half were taught: `python -m examples.search --help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import console, train_arms  # noqa: E402
from examples.evaluated_training import EvaluatedTraining  # noqa: E402
from examples.options import Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.search import report  # noqa: E402
from examples.search.measures import read_dump, read_training  # noqa: E402
from examples.search.policy import make_policy, sft_config  # noqa: E402
from examples.search.questions import Corpus, make_corpus  # noqa: E402
from examples.search.training import ARMS, Arm  # noqa: E402


def main(
    out: Out = Path("outputs/search"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 60,
) -> None:
    """Train by GRPO a small policy that was taught half of the facts, with and without a cost per search.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.search --arms base,search,cost --seeds 1 --out outputs/search-1
    """
    corpus = make_corpus(out / "world")
    results: list[report.Result] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that knows half of the facts",
        sft_config=sft_config,
        make_policy=make_policy,
        make_arm=partial(make_arm, corpus=corpus, num_steps=steps),
    ):
        results.append(_result(arm))
        report.write(
            results, report.rows(results, corpus.taught), missing, corpus.taught, out
        )  # after each unit, since all units together take hours
    report.show(report.rows(results, corpus.taught), missing, console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, corpus: Corpus, num_steps: int) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy and see the same questions."""
    return Arm(
        name=name,
        model=policy,
        rows=corpus.training,
        held_out=corpus.held_out,
        tools=corpus.tools[ARMS[name].kind],
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=16,
        group_size=5,
    )


def _result(arm: EvaluatedTraining) -> report.Result:
    return report.Result(
        arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated), training=read_training(arm.rollouts)
    )


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
