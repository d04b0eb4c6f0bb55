"""Short reports, trained on fixed or on evolving criteria, with a judge that can be fooled: see `--help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import ToolArm, console, train_arms  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.options import Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.rubrics import report  # noqa: E402
from examples.rubrics.corpus import make_corpus  # noqa: E402
from examples.rubrics.policy import make_policy, sft_config  # noqa: E402
from examples.rubrics.training import ARMS, make_arm, with_judge  # noqa: E402
from examples.scripted_judge import served  # noqa: E402


def main(
    out: Out = Path("outputs/rubrics"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 40,
) -> None:
    """Train a small policy that writes reports, with a judge that takes the name of a fact for the fact.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.rubrics --seeds 1 --out outputs/rubrics-1
    """
    corpus = make_corpus(out / "world")
    results: list[report.Result] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that writes careless reports",
        sft_config=sft_config,
        make_policy=make_policy,
        make_arm=partial(make_arm, corpus=corpus, num_steps=steps),
        train=_train,
    ):
        held_out = report.read_dump(arm.evaluated, corpus.people)
        training = report.read_training(arm.rollouts, corpus.people) if arm.is_trained else {}
        results.append(report.Result(arm=arm.name, seed=arm.seed, held_out=held_out, training=training))
        report.REPORT.write(results, missing, out)  # after each unit, since all units together take hours
    report.REPORT.show(results, missing, console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def _train(arm: ToolArm) -> None:
    """Run the training command while the judge is served."""
    arm.folder.mkdir(parents=True, exist_ok=True)
    with served("of the reports", "examples.rubrics.judge", log=arm.folder / "judge.log") as url:
        train_and_evaluate(with_judge(arm, url), console)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
