"""`verl-pivot report`: one HTML file, or JSON, with the metrics, settings, outcomes and some rollouts of trainings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import out_file, refuse_overwriting, refuse_repeats
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.inspect.queries import RunIndex
    from verl_pivot.inspect.report_numbers import TrainingReport
    from verl_pivot.profiling.stored_samples import StoredTurn

_MAX_RUNS = 12
"""Runs whose curves can be told apart: six colours, with and without dashes."""

_MAX_QUERY_SECONDS = 120.0
"""Seconds after which counting is given up; longer than for a page, since a report is written once."""


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, of its trainer.rollout_data_dir, or one dump; others are compared with the first.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(callback=out_file, help="The HTML file to write.")] = None,
    rollouts: Annotated[
        int,
        typer.Option(
            min=0, max=10, help="Number of worst rollouts of each run, of best rollouts, and of pivots to show."
        ),
    ] = 3,
    profile: Annotated[
        Path | None,
        typer.Option(help="profile.jsonl of the pivots: the hardest mixed turns are shown with their samples."),
    ] = None,
    trajectories: Annotated[
        Path | None, typer.Option(help="Trajectories of the profile; by default those found beside it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as one JSON object instead, without texts of rollouts.")
    ] = False,
) -> None:
    """Write one HTML file about one training or several side by side, for readers who do not have the run's files.

    It shows curves of metrics, settings and their differences, versions, outcomes over the steps, and the worst and
    best rollouts turn by turn. With --profile it also shows pivots with their samples. For several runs it compares the
    prompts that they share. The file has no script, loads no other file, and is smaller than 3 MB.

    \b
    Examples:
    verl-pivot report outputs/run --out report.html
    verl-pivot report seed-0 seed-1 --out seeds.html --rollouts 0
    verl-pivot report baseline outputs/run --json
    verl-pivot report outputs/run --profile profile.jsonl --out report.html
    """
    _check_out(out, as_json=as_json)
    refuse_overwriting([out] if out else [], [*runs, profile, trajectories])
    refuse_repeats(runs)
    if len(runs) > _MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are given: a report compares at most {_MAX_RUNS}; write several reports")
    if trajectories is not None and profile is None:
        raise ConfigError("--trajectories was given without --profile: name the profile, too")
    _refuse_earlier_stages(runs)
    from verl_pivot.inspect.queries import RunIndex
    from verl_pivot.runs.run import TrainingRun

    found = [TrainingRun(run) for run in runs]
    for run in found:
        run.check()
    index = RunIndex(found, _MAX_QUERY_SECONDS)
    report, pivots = _read(index, rollouts, profile, trajectories)
    if out is None:
        typer.echo(report.as_json())
        return

    from verl_pivot.data.files import replacing
    from verl_pivot.inspect.report import open_chosen
    from verl_pivot.inspect.report_page import report_page

    text = report_page(report, lambda chosen: open_chosen(index, chosen), pivots)
    with replacing(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    for problem in report.problems:
        typer.echo(problem, err=True)
    typer.echo(f"Wrote {out}: {_several(len(runs), 'run')}, {_several(index.num_rollouts, 'rollout')}.")


def _read(
    index: "RunIndex", num_shown: int, profile: Path | None, trajectories: Path | None
) -> "tuple[TrainingReport, list[StoredTurn]]":
    """Numbers of the report, and the pivots to show if there is a profile."""
    from verl_pivot.inspect.report import make_report

    report = make_report(index, num_rollouts=num_shown)
    if profile is None:
        return report, []
    import msgspec

    from verl_pivot.inspect.profile_pivots import read_pivots

    numbers, pivots = read_pivots(index, profile, trajectories, num_shown)
    return msgspec.structs.replace(report, profile=numbers), pivots


def _refuse_earlier_stages(paths: list[Path]) -> None:
    """Stop if a file comes from a stage before training, since its lines are no rollouts.

    Raises:
        ConfigError: If there is such a file; the message has the command that shows it.
    """
    from verl_pivot.inspect.candidate_files import kind_of

    for path in paths:
        if (kind := kind_of(path)) is not None:
            raise ConfigError(
                f"{path} comes from a stage before training ({kind}), but a report shows runs: give a run, with "
                f"--profile for its pivots, or look at the file with `verl-pivot inspect {path}`"
            )


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _check_out(out: Path | None, *, as_json: bool) -> None:
    """Stop if the options would write nothing, or a file that is no HTML page.

    Raises:
        ConfigError: If they would; the message names the option to change.
    """
    if out is None:
        if as_json:
            return
        raise ConfigError("give --out report.html, the file to write, or --json for the numbers alone")
    if as_json:
        raise ConfigError("--json prints the numbers and writes no file: leave out --json, or --out")
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(
            f"--out {out}: HTML is written, and its name must end in .html; give {out.with_suffix('.html')}"
        )
