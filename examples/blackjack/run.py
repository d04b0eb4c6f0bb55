"""Gymnasium's Blackjack, learnt from its rewards alone: `python -m examples.blackjack --help`."""

from functools import partial
from pathlib import Path

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import console, train_arms  # noqa: E402
from examples.blackjack import report  # noqa: E402
from examples.blackjack.policy import make_policy, sft_config  # noqa: E402
from examples.blackjack.training import ARMS, HELD_OUT, make_arm  # noqa: E402
from examples.dumps import step_dumps  # noqa: E402
from examples.evaluated_training import EvaluatedTraining  # noqa: E402
from examples.options import Out, Seeds, Steps  # noqa: E402
from examples.success import Result, read_dump  # noqa: E402


def main(out: Out = Path("outputs/blackjack"), seeds: Seeds = 3, steps: Steps = 40) -> None:
    """Let a small policy that plays at random learn Gymnasium's Blackjack by GRPO, from the return of each hand.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.blackjack --seeds 1 --out outputs/blackjack-1
    """
    results: list[Result] = []
    missing: list[str] = []
    others = report.players(HELD_OUT)
    for arm, missing in train_arms(
        ARMS,
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that tosses a coin for each move",
        sft_config=sft_config,
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps),
    ):
        results.append(_result(arm))
        report.write(results, others, missing, out)
    report.show(results, others, missing, console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'blackjack.png'}.")


def _result(arm: EvaluatedTraining) -> Result:
    steps = step_dumps(arm.rollouts) if arm.is_trained else {}
    training = {step: read_dump(path) for step, path in steps.items()}
    return Result(arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated), training=training)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
