"""The study of the paper's claims at desk size: `python -m examples.study --help`."""

import errno
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.study.claims import TUNED_OTHERWISE, Design, read_design  # noqa: E402
from examples.study.domains.known import OUTSIDE  # noqa: E402
from examples.study.measures_file import MEASURES, read_measures  # noqa: E402
from examples.study.merging import merged  # noqa: E402
from examples.study.outcomes import OUTCOMES, StudyResults, read_results  # noqa: E402
from examples.study.page import page  # noqa: E402
from examples.study.plan import plan_lines  # noqa: E402
from examples.study.plot import PLOT  # noqa: E402
from examples.study.request import StudyRequest  # noqa: E402
from examples.study.simulated import coverage_table  # noqa: E402
from examples.study.study import Study, write_study  # noqa: E402
from examples.study.tuned import tuning_lines, write_tuned  # noqa: E402
from examples.study.tuning import tuning_outcome  # noqa: E402
from verl_pivot.errors import PivotError  # noqa: E402

console = table_console()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Out = Annotated[Path, typer.Option(help="Folder for all output.")]
Arms = Annotated[str | None, typer.Option(help="Arms to run, with commas. By default those of `arms` in arms.yaml.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds to run, with commas, of those in arms.yaml. By default all.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of each RL training, if not those of arms.yaml.")]
Held = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Held-out tasks of each group, if not those of arms.yaml.")
]
Trajectories = Annotated[int | None, typer.Option(min=20, help="Expert trajectories, if not those of arms.yaml.")]
Jobs = Annotated[int, typer.Option(min=1, help="Arms that are trained side by side; at most one for each core.")]
ModelFolder = Annotated[
    Path | None, typer.Option(help="Checkpoint with its tokenizer, from which all arms start. By default a tiny one.")
]
OnGpu = Annotated[bool, typer.Option("--gpu", help="Train on one GPU; without --model a random model is taught.")]
Tuned = Annotated[Path | None, typer.Option(help="tuned.yaml of `tune`, if not the one beside arms.yaml.")]
_OUT = Path("outputs/study")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    out: Out = _OUT,
    arms: Arms = None,
    seeds: Seeds = None,
    steps: Steps = None,
    tasks: Held = None,
    trajectories: Trajectories = None,
    jobs: Jobs = 1,
    model: ModelFolder = None,
    gpu: OnGpu = False,
    tuned: Tuned = None,
) -> None:
    """Train every arm with every seed, and judge the paper's claims.

    Run the command again to continue: a finished unit is not repeated, and an
    interrupted one continues from its last checkpoint.

    Example: python -m examples.study --seeds 1 --arms sft,pivotrl --steps 20
    Example: python -m examples.study --seeds 2,3
    Example: python -m examples.study --model Qwen2.5-0.5B-Instruct --gpu
    """
    context.obj = request = StudyRequest(
        out=out,
        arms=arms,
        seeds=seeds,
        steps=steps,
        tasks=tasks,
        trajectories=trajectories,
        jobs=jobs,
        model=model,
        gpu=gpu,
        tuned=tuned,
    )
    request.check()
    if context.invoked_subcommand is None:
        study = request.study(console)
        _say_tuned(study)
        run_study(study, request)


def run_study(study: Study, request: StudyRequest) -> None:
    """Train and measure the chosen seeds; the results of each are written at once, since all seeds take hours."""
    study.seeds[0].model.check_machine()
    for seed in study.seeds:
        study.train_seed(seed, request.jobs, console)
        study.write()
        study.measure_seed(seed)
        study.write()
    _say_written(study.out)


@app.command()
def plan(context: typer.Context) -> None:
    """Print the units, the seconds of each, what is done and the hours left.

    Put options before the command. The seconds of a kind of unit are the mean
    over its units that were finished in a single run.

    Example: python -m examples.study --seeds 1 plan
    """
    _print_plan(context.obj.study(console), context.obj)


@app.command()
def tune(
    context: typer.Context,
    only_plan: Annotated[bool, typer.Option("--plan", help="Print the units and hours, and run nothing.")] = False,
) -> None:
    """Try the settings of arms.yaml with each core arm, and keep the best.

    It trains on the tuning seed, which is not reported, and compares the
    settings on tasks that no training uses and that are not held out. The
    result is tuned.yaml in the folder of --out. Run the command again to
    continue.

    Example: python -m examples.study --jobs 2 tune
    """
    request: StudyRequest = context.obj
    tuning = request.tuning(console)
    if only_plan:
        _print_plan(tuning, request)
        return
    (seed,) = tuning.seeds
    seed.model.check_machine()
    tuning.train_seed(seed, request.jobs, console)
    rates, missing = tuning_outcome(tuning)
    path = request.out / "tuned.yaml"
    write_tuned(rates, path)
    for line in (*tuning_lines(rates, [arm.name for arm in tuning.design.study.arms]), *missing):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nWrote {path}. For the study: cp {path} examples/study/tuned.yaml")


@app.command(hidden=True)
def unit(
    context: typer.Context,
    arm: Annotated[str, typer.Argument(help="Name of the arm, or of a try of it.")],
    of_seed: Annotated[int, typer.Option(help="Seed, also the tuning seed.")],
) -> None:
    """Run one arm with one seed, as --jobs does in a process for each arm.

    Example: python -m examples.study unit pivotrl --of-seed 1
    """
    request: StudyRequest = context.obj
    is_tuning = of_seed == read_design(is_tuning=True).study.tuning_seed
    study = request.tuning(console) if is_tuning else request.study(console)
    found = [(seed, each) for seed in study.seeds for each in study.arms if (seed.seed, each.name) == (of_seed, arm)]
    if not found:
        raise typer.BadParameter(f"the study has no unit {arm} of seed {of_seed}")
    study.finish_arm(*found[0])


@app.command("page")
def print_page(
    context: typer.Context,
    outcomes: Annotated[Path, typer.Argument(help="outcomes.parquet of a study, with measures.json beside it.")],
) -> None:
    """Print the tables and verdicts of a study from its files.

    Example: python -m examples.study page outputs/study/outcomes.parquet
    """
    results, measures = read_results(outcomes), read_measures(outcomes.parent / MEASURES)
    typer.echo(page(_design_of(results, context.obj), results, measures, OUTSIDE))


@app.command()
def merge(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(help="Folders of --out, such as one for each machine.")],
) -> None:
    """Merge several folders, each with other seeds, into one study.

    It reads only outcomes.parquet and measures.json of each folder, and writes
    these, the page and the plot into the folder of --out.

    Example: python -m examples.study --out outputs/merged merge outputs/a outputs/b
    """
    request: StudyRequest = context.obj
    results, measures = merged(folders, request.out)
    write_study(_design_of(results, request), results, measures, request.out)
    _say_written(request.out)


@app.command()
def simulate() -> None:
    """Print how often the intervals hold the true value in simulated studies.

    Example: python -m examples.study simulate
    """
    typer.echo(coverage_table(), nl=False)


def _design_of(results: StudyResults, request: StudyRequest) -> Design:
    """The design with which these results are shown."""
    design = read_design(tuned=request.tuned)
    return design if results.about.is_tuned else design.untuned


def _say_written(out: Path) -> None:
    files = f"{out / OUTCOMES}, {out / MEASURES}, {out / 'page.md'} and {out / PLOT}"
    console.print(f"\nWrote {files}.", highlight=False, markup=False, soft_wrap=True)


def _say_tuned(study: Study) -> None:
    if study.design.is_tuned_otherwise:
        console.print(f"{TUNED_OTHERWISE} Run tune again.", soft_wrap=True)


def _print_plan(study: Study, request: StudyRequest) -> None:
    _say_tuned(study)
    for line in plan_lines(study.stages, study.kinds, request.jobs):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def start() -> None:
    """Run the study's command.

    Raises:
        SystemExit: With one sentence, after a mistake of the user, or if files cannot be written.
    """
    try:
        app()
    except PivotError as error:
        raise SystemExit(str(error)) from error
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise SystemExit(
            f"{error.filename or 'the folder of --out'} cannot be written ({error.strerror}): make room or choose "
            "another --out, and run the command again, which goes on from what is finished"
        ) from error
