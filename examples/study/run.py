"""The study of the paper's claims at desk size: `python -m examples.study --help`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.options import chosen_names  # noqa: E402
from examples.quickstart.run import phase  # noqa: E402
from examples.study.arms import Arm, ArmKind, StudyOptions  # noqa: E402
from examples.study.claims import Design, read_design  # noqa: E402
from examples.study.domains.known import OUTSIDE  # noqa: E402
from examples.study.outcomes import StudyResults, read_results, write_results  # noqa: E402
from examples.study.page import page  # noqa: E402
from examples.study.plan import plan_lines  # noqa: E402
from examples.study.simulated import coverage_table  # noqa: E402
from examples.study.units import StudySeed  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.errors import PivotError  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402

console = Console()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Out = Annotated[Path, typer.Option(help="Folder for all output.")]
Arms = Annotated[str | None, typer.Option(help="Arms to run, with commas. By default those of `arms` in arms.yaml.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Number of seeds, the first ones of arms.yaml. By default all.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of each RL training, if not those of arms.yaml.")]
Held = Annotated[int | None, typer.Option(min=1, help="Held-out tasks of each group, if not those of arms.yaml.")]
Trajectories = Annotated[int | None, typer.Option(min=20, help="Expert trajectories, if not those of arms.yaml.")]
_OUT = Path("outputs/study")


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    out: Out = _OUT,
    arms: Arms = None,
    seeds: Seeds = None,
    steps: Steps = None,
    tasks: Held = None,
    trajectories: Trajectories = None,
) -> None:
    """Train every arm with every seed, and judge the paper's claims.

    Run the command again to continue: a finished unit is not repeated, and one
    that was ended goes on from its last checkpoint.

    Example: python -m examples.study --seeds 1 --arms sft,pivotrl --steps 20
    """
    changes = {"num_steps": steps, "num_held_out": tasks, "num_outside": tasks, "num_trajectories": trajectories}
    design, study = read_design(), _chosen(changes)
    context.obj = seeds_of = _seeds(design, study, changes, out, seeds)
    chosen = _arms(study, arms)
    context.meta["arms"] = chosen
    if context.invoked_subcommand is not None:
        return
    seconds: dict[str, float] = {}
    for each in seeds_of:
        _finish_seed(each, chosen, seconds)
        _write(design, seeds_of, out)  # after each seed, since all take hours
    console.print(f"\nWrote {out / 'outcomes.parquet'} and {out / 'page.md'}.")


@app.command()
def plan(context: typer.Context) -> None:
    """Print the units, the seconds of each, what is done and the hours left.

    Options stand before the command. A kind of unit is measured by those of it
    that one run finished.

    Example: python -m examples.study --seeds 1 plan
    """
    for line in plan_lines(_units(context.obj, context.meta["arms"])):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command("page")
def print_page(outcomes: Annotated[Path, typer.Argument(help="outcomes.parquet of a study.")]) -> None:
    """Print the tables and verdicts of a file of outcomes.

    Example: python -m examples.study page outputs/study/outcomes.parquet
    """
    typer.echo(page(read_design(), read_results(outcomes), OUTSIDE))


@app.command()
def simulate() -> None:
    """Print what the intervals cover in simulated studies of known truth.

    Example: python -m examples.study simulate
    """
    typer.echo(coverage_table(), nl=False)


def _chosen(changes: Mapping[str, int | None]) -> StudyOptions:
    return read_design().study.model_copy(update={name: value for name, value in changes.items() if value is not None})


def _seeds(
    design: Design, study: StudyOptions, changes: Mapping[str, int | None], out: Path, number: int | None
) -> list[StudySeed]:
    """The seeds to run; what the command changes in the design follows its hash.

    Raises:
        BadParameter: If there are fewer seeds.
    """
    if number is not None and number > len(study.seeds):
        raise typer.BadParameter(f"--seeds: arms.yaml has {len(study.seeds)} seeds, not {number}")
    changed = [f"{name}={value}" for name, value in changes.items() if value is not None]
    digest = " ".join([design.digest, *(["with", *changed] if changed else [])])
    return [
        StudySeed(seed=seed, folder=out, study=study, digest=digest, console=console) for seed in study.seeds[:number]
    ]


def _arms(study: StudyOptions, names: str | None) -> list[Arm]:
    if names is None:
        return list(study.arms)
    chosen = chosen_names(names, [arm.name for arm in study.all_arms])
    for arm in study.all_arms:
        if arm.name in chosen and arm.after is not None and arm.after not in chosen:
            raise typer.BadParameter(f"--arms: {arm.name} goes on from {arm.after}; name it too")
    return [arm for arm in study.all_arms if arm.name in chosen]


def _units(seeds: Sequence[StudySeed], arms: Sequence[Arm]) -> list[Unit]:
    """All units in the order in which they run."""
    return [unit for each in seeds for unit in (each.policy_unit, each.profile_unit, *(each.unit(arm) for arm in arms))]


def _finish_seed(each: StudySeed, arms: Sequence[Arm], seconds: dict[str, float]) -> None:
    with phase(f"policy {each.seed}", f"Seed {each.seed}: the base policy", seconds):
        finish(each.policy_unit, each.make_policy)
    if any(arm.kind in (ArmKind.TURNS, ArmKind.SFT) for arm in arms):
        with phase(f"profile {each.seed}", f"Seed {each.seed}: expert, profile and pivots", seconds):
            finish(each.profile_unit, each.make_profile)
    for arm in arms:
        with phase(f"{arm.name} {each.seed}", f"Seed {each.seed}: {arm.name}, in the stock trainer", seconds):
            finish(each.unit(arm), partial(each.run, arm))


def _write(design: Design, seeds: Sequence[StudySeed], out: Path) -> None:
    """Write the outcomes of all finished units, also of those that other commands ran, and the page."""
    found = [
        evaluation
        for each in seeds
        for arm in each.study.all_arms
        if _is_finished(each.unit(arm))
        for evaluation in each.results(arm)
    ]
    results = StudyResults(digest=seeds[0].digest, evaluations=found)
    write_results(results, out / "outcomes.parquet")
    notes = [note for note in gaps(_units(seeds, seeds[0].study.arms)) if not note.endswith("not run.")]  # on the page
    text = "\n".join([page(design, results, OUTSIDE), "", *(f"- {note}" for note in notes)])
    (out / "page.md").write_text(f"{text}\n")


def _is_finished(unit: Unit) -> bool:
    """Whether a run finished the unit with these settings."""
    progress = unit.progress
    return progress is not None and progress.seconds is not None and progress.settings == unit.settings


def start() -> None:
    """Run the study's command; killed in any way, it leaves no process behind.

    Raises:
        SystemExit: With one sentence for a mistake of the user.
    """
    try:
        run_supervised(app)
    except PivotError as error:
        raise SystemExit(str(error)) from error
