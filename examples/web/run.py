"""Web agents on MiniWoB++ with checklists and workflows, compared with the outcome alone: see `--help`."""

import hashlib
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.dumps import step_dumps  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.evaluation_results import undecided, undecided_in_training, undecided_share  # noqa: E402
from examples.options import FirstSeed, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.run import phase  # noqa: E402
from examples.results_file import RESULTS, Kept, KeptUnit, policy_digest, sources_digest, unplayed, without_seeds  # noqa: E402
from examples.scripted_judge import served  # noqa: E402
from examples.units import SpoiledError, Unit, finish, gaps  # noqa: E402
from examples.web import report  # noqa: E402
from examples.web.demonstrations import Demonstrations, make_demonstrations  # noqa: E402
from examples.web.measures import Played, read_dump, read_training  # noqa: E402
from examples.web.policy import make_policy, sft_config  # noqa: E402
from examples.web.rows import WebRows, make_rows  # noqa: E402
from examples.web.training import ARMS, Arm  # noqa: E402
from verl_pivot.browser.settings import find_browser  # noqa: E402
from verl_pivot.environments.miniwob import pages_folder  # noqa: E402
from verl_pivot.errors import ConfigError  # noqa: E402
from verl_pivot.types import JsonObject  # noqa: E402

console = table_console()
_MOST_UNDECIDED = 0.05
"""Largest share of a unit's trajectories that the system may leave undecided; long tasks are undecided more often."""
_SOURCES = ("agent.py", "demonstrations.py", "episodes.py", "judge.py", "page.py", "rows.py", "tasks.py", "tools.yaml")
"""Files that decide results although no setting of a unit shows their contents; their digest is a setting."""


def main(
    out: Out = Path("outputs/web"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    steps: Steps = 30,
) -> None:
    """Train a small policy on web pages by the outcome, by checklists, and with workflows, and compare them.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated, and an interrupted one
    resumes from its last checkpoint.

    Example: python -m examples.web --arms base,outcome,gain --seeds 1 --out outputs/web-1
    """
    chosen = chosen_names(arms, ARMS)
    _check_browser()
    seconds: dict[str, float] = {}
    with phase("rows", "Tasks of MiniWoB++ in the real browser: their sentences and checklists", seconds):
        tasks = make_rows(out / "rows")
    with phase("demonstrations", "Demonstrations of seen tasks, careful and careless, and workflows", seconds):
        demonstrations = make_demonstrations(out / "demonstrations")
    units: list[Unit] = []
    kept: list[KeptUnit[Played]] = []
    missing: list[str] = []
    for seed in range(first_seed, first_seed + seeds):
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that learns a careless agent's ways", seconds):
            policy = make_policy(out / f"seed-{seed}" / "policy", sft_config(seed), demonstrations)
        for name in chosen:
            arm = make_arm(name, policy, tasks, demonstrations, out / f"seed-{seed}" / name, seed, steps)
            own, recorded = _settings(arm), recorded_digests(tasks, demonstrations)
            unit: KeptUnit[Played] = KeptUnit(
                result=unplayed(name, seed),
                policy=policy_digest(policy),
                design=without_seeds(own, out),
                varying=recorded,
            )
            report.STUDY.check(unit, out)
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings={**own, **recorded}))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(_train_with_judge, arm))
            kept.append(replace(unit, result=_result(arm)))
            missing += undecided(name, seed, arm.evaluations)
            missing += undecided_in_training(name, seed, step_dumps(arm.rollouts).values())
            now = Kept(units=kept, gaps=[*gaps(units), *missing])
            found = report.STUDY.add(now, out)  # after each unit, since all units together take hours
    report.show(found.results, found.gaps, console)
    console.print(f"\nWrote {out / RESULTS} and {out / 'summary.json'}.")


def _check_browser() -> None:
    """Refuse to begin without a browser or the pages of MiniWoB++.

    Raises:
        SystemExit: If one is missing; names the command that installs it.
    """
    try:
        find_browser()
        pages_folder()
    except ConfigError as error:
        raise SystemExit(str(error)) from error


def make_arm(
    name: str, policy: Path, tasks: WebRows, demonstrations: Demonstrations, folder: Path, seed: int, num_steps: int
) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy and see the same tasks."""
    return Arm(
        name=name,
        model=policy,
        rows=tasks.training,
        held_out=tasks.held_out,
        tools=tasks.tools,
        workflows=demonstrations.workflows,
        folder=folder,
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=8,
        group_size=8,
    )


def _settings(arm: Arm) -> JsonObject:
    own: JsonObject = {"sft": asdict(sft_config(arm.seed)), "wrong_share": arm.kind.wrong_share}
    return {**arm.settings, **own, "sources": sources_digest(Path(__file__).parent, _SOURCES)}


def recorded_digests(tasks: WebRows, demonstrations: Demonstrations) -> JsonObject:
    """{name: digest} of the files recorded from the browser for this folder; another recording may differ."""
    files = {"rows": tasks.training, "held_out": tasks.held_out, "workflows": demonstrations.workflows}
    return {f"{name}_digest": hashlib.sha256(path.read_bytes()).hexdigest()[:12] for name, path in files.items()}


def _train_with_judge(arm: Arm) -> None:
    """Run the training command while the arm's judge is served."""
    if arm.kind.reward is None or arm.evaluated.is_file():
        train_and_evaluate(arm, console)
    else:
        arguments = (str(arm.kind.wrong_share),)
        with served("rules", "examples.web.judge", *arguments, log=arm.folder / "judge.log") as url:
            train_and_evaluate(replace(arm, judge_url=url), console)
    check_decided(arm)


def check_decided(arm: Arm) -> None:
    """Refuse a unit with so many undecided trajectories that it shows the machine's failures, not the policy's skill.

    Raises:
        SpoiledError: If so; says how to repeat the unit.
    """
    dumps = {"held-out rows": arm.evaluations.values(), "rollouts of the training": step_dumps(arm.rollouts).values()}
    for what, paths in dumps.items():
        if (share := undecided_share(paths)) > _MOST_UNDECIDED:
            raise SpoiledError(
                f"{share:.0%} of the {what} of {arm.name}, seed {arm.seed}, are undecided, more than "
                f"{_MOST_UNDECIDED:.0%}: remove {arm.folder}, and run it again on a machine without other work"
            )


def _result(arm: Arm) -> report.Result:
    return report.Result(
        arm=arm.name,
        seed=arm.seed,
        evaluations={step: read_dump(path) for step, path in arm.evaluations.items()},
        training=read_training(arm.rollouts),
    )


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
