"""Pages for requests, scored in a real browser, with and without the rules of ReLook: see `--help`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import console, train_arms  # noqa: E402
from examples.options import Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.render import report  # noqa: E402
from examples.render.policy import make_policy, sft_config  # noqa: E402
from examples.render.training import ARMS, make_arm  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402


def main(
    out: Out = Path("outputs/render"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 25,
) -> None:
    """Train a small policy that writes pages and looks at them in a real browser, by assertions on what is seen.

    Run the command again to continue: a finished unit, one arm with one seed, is not repeated, and one that was ended
    goes on from its last checkpoint.

    Example: python -m examples.render --arms base,relook --seeds 1 --out outputs/render-1
    """
    results: list[report.Result] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        seeds,
        out,
        about_policy="a tiny Qwen2 that writes and revises careless pages",
        sft_config=sft_config,
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps),
    ):
        held_out = report.read_dump(arm.evaluated)
        training = report.read_training(arm.rollouts) if arm.is_trained else {}
        results.append(report.Result(arm=arm.name, seed=arm.seed, held_out=held_out, training=training))
        report.REPORT.write(results, missing, out, report.PLOT)  # after each unit, since all take hours
    report.REPORT.show(results, missing, console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def start() -> None:
    """Run `main` with the arguments of this process; killed in any way, it leaves no process behind."""
    run_supervised(lambda: typer.run(main))
