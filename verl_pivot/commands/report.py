"""`verl-pivot report`: one HTML file, or JSON, with the metrics, settings, outcomes and some rollouts of trainings."""

from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.options import refuse_overwriting, refuse_repeats
from verl_pivot.errors import ConfigError

_MAX_RUNS = 12
"""Runs whose curves can be told apart: six colours, with and without dashes."""


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, of its trainer.rollout_data_dir, or one dump; others are compared with the first.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write.")] = None,
    rollouts: Annotated[
        int, typer.Option(min=0, max=10, help="Show so many of the worst rollouts of each run, and of the best.")
    ] = 3,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as one JSON object instead, without texts of rollouts.")
    ] = False,
) -> None:
    """Write one HTML file about a training, or several beside each other, for somebody who has not got their files.

    It has curves of metrics, settings and which of them differ, versions, outcomes over the steps, the worst and the
    best rollouts turn by turn, and of several runs the differences on the prompts that they share. The file has no
    script, asks for nothing from anywhere, and is smaller than 3 MB.

    \b
    Examples:
    verl-pivot report outputs/run --out report.html
    verl-pivot report seed-0 seed-1 --out seeds.html --rollouts 0
    verl-pivot report baseline outputs/run --json
    """
    if out is None and not as_json:
        raise ConfigError("give --out report.html, the file to write, or --json for the numbers alone")
    if out is not None:
        _check_out(out, runs, as_json=as_json)
    refuse_repeats(runs)
    if len(runs) > _MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are given: a report compares at most {_MAX_RUNS}; write several")
    from verl_pivot.runs.run import TrainingRun

    found = [TrainingRun(run) for run in runs]
    for run in found:
        run.check()

    from verl_pivot.inspect.queries import RunIndex
    from verl_pivot.inspect.report import make_report, open_chosen

    index = RunIndex(found)
    report = make_report(index, num_rollouts=rollouts)
    if out is None:
        typer.echo(report.as_json())
        return

    from verl_pivot.data.files import replacing
    from verl_pivot.inspect.report_page import report_page

    text = report_page(report, lambda chosen: open_chosen(index, chosen))
    with replacing(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    for problem in report.problems:
        typer.echo(problem, err=True)
    typer.echo(f"Wrote {out}: {_several(len(runs), 'run')}, {_several(index.num_rollouts, 'rollout')}.")


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _check_out(out: Path, runs: list[Path], *, as_json: bool) -> None:
    """Stop where the file would not be written, or not be opened as a page.

    Raises:
        ConfigError: With the option to change.
    """
    if as_json:
        raise ConfigError("--json prints the numbers and writes no file: leave out --json, or --out")
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(
            f"--out {out}: HTML is written, and its name must end in .html; give {out.with_suffix('.html')}"
        )
    refuse_overwriting(out, runs)
