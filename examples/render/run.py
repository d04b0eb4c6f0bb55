"""Pages for requests, scored in a real browser, with and without the rules of ReLook: see `--help`."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import ToolArm, console, train_arms  # noqa: E402
from examples.dumps import step_dumps  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.evaluation_results import undecided, undecided_in_training  # noqa: E402
from examples.options import FirstSeed, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.render import report  # noqa: E402
from examples.render.policy import make_policy, sft_config  # noqa: E402
from examples.render.training import ARMS, hidden_settings, make_arm  # noqa: E402
from examples.results_file import RESULTS, Kept, KeptUnit, policy_digest, unplayed, without_seeds  # noqa: E402


def main(
    out: Out = Path("outputs/render"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    steps: Steps = 20,
) -> None:
    """Train a small policy that writes pages and looks at them in a real browser, by assertions on what is shown.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated, and an interrupted one
    resumes from its last checkpoint.

    Example: python -m examples.render --arms base,relook --seeds 1 --out outputs/render-1
    """
    kept: list[KeptUnit[report.Design]] = []
    lost: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(first_seed, first_seed + seeds),
        out,
        about_policy="a tiny Qwen2 that writes and revises careless pages",
        sft_config=sft_config,
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps),
        train=partial(_check_and_train, out=out),
        settings=hidden_settings,
    ):
        result = report.Result(
            arm=arm.name,
            seed=arm.seed,
            evaluations={arm.evaluated_steps[-1]: report.read_dump(arm.evaluated)},
            training=report.read_training(arm.rollouts) if arm.is_trained else {},
        )
        kept.append(replace(_unit(arm, out), result=result))
        lost += undecided(arm.name, arm.seed, {arm.evaluated_steps[-1]: arm.evaluated})
        lost += undecided_in_training(arm.name, arm.seed, step_dumps(arm.rollouts).values() if arm.is_trained else ())
        found = report.STUDY.add(Kept(units=kept, gaps=[*missing, *lost]), out)  # after each unit, as all take hours
    report.STUDY.show(found.results, found.gaps, console)
    console.print(f"\nWrote {out / RESULTS} and {out / 'summary.json'}.")


def _check_and_train(arm: ToolArm, out: Path) -> None:
    report.STUDY.check(_unit(arm, out), out)
    train_and_evaluate(arm, console)


def _unit(arm: ToolArm, out: Path) -> KeptUnit[report.Design]:
    """The unit without results, as it is before its training."""
    own = {**arm.settings, "sft": asdict(sft_config(arm.seed)), **hidden_settings(arm)}
    design = without_seeds(own, out)
    return KeptUnit(result=unplayed(arm.name, arm.seed), policy=policy_digest(arm.model), design=design)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
