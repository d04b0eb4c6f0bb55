"""`verl-pivot filter`: trajectories.jsonl and rules -> trajectories worth training on, and why others were dropped."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from verl_pivot.commands.options import out_of_json_lines, refuse_overwriting
from verl_pivot.commands.tables import counts_table, printable, table_console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from verl_pivot.quality.filtering import FilterOutcome

T = TypeVar("T")


def filter_command(
    trajectories: Annotated[Path, typer.Argument(help="trajectories.jsonl from `verl-pivot import`.")],
    out: Annotated[Path, typer.Option(callback=out_of_json_lines, help="The filtered.jsonl to write.")],
    rules: Annotated[
        Path | None, typer.Option(help="YAML list of filters; by default those of configs/quality.yaml.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="profile.jsonl from `verl-pivot profile`, which the filters difficulty and solved need."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    filter_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers filters of your own; repeatable.")
    ] = None,
) -> None:
    """Drop wrong, incoherent, wasteful, repeated, leaked or too easy trajectories, and report the reason of each drop.

    Example: verl-pivot filter trajectories.jsonl --rules quality.yaml --out filtered.jsonl
    """
    from verl_pivot.data.files import num_rows
    from verl_pivot.quality.filtering import filter_trajectories
    from verl_pivot.quality.profile_totals import read_totals
    from verl_pivot.quality.rules import read_rules, shipped_rules
    from verl_pivot.quality.writing import FilterOutputs, write_outcome, write_profile

    paths = FilterOutputs(kept=out)
    outputs = [out, paths.dropped, paths.report, paths.picture, *([paths.profile] if profile else [])]
    refuse_overwriting(outputs, [trajectories, profile, rules, *(filter_module or [])])
    checked = read_rules(rules or shipped_rules(), filter_module or [])
    outcome = filter_trajectories(
        trajectories,
        checked,
        profile=None if profile is None else read_totals(profile, trajectories),
        workers=len(os.sched_getaffinity(0)) if workers is None else workers,
        track=_track,
        total=num_rows(trajectories),
    )
    _print_outcome(outcome)
    write_outcome(trajectories, outcome, paths, checked, _track)
    if profile is not None:
        write_profile(profile, outcome, paths)
    typer.echo(f"Wrote {', '.join([str(out), *(path.name for path in outputs[1:])])}.")


def _track(items: "Iterable[T]", doing: str, total: int | None) -> "Iterable[T]":
    from rich.progress import track

    return track(items, description=doing, total=total, transient=True)


def _print_outcome(outcome: "FilterOutcome") -> None:
    table = counts_table(f"{len(outcome.ids)} trajectories")
    for step in outcome.steps:
        table.add_row(step.label.replace("_", " "), str(step.num_dropped), printable(step.note))
        for reason, count in sorted(step.num_by_reason.items(), key=lambda item: -item[1]):
            table.add_row(f"  {reason.replace('_', ' ')}", str(count), printable(step.examples[reason]))
    table.add_section()
    table.add_row("kept", str(outcome.num_kept), "")
    table_console().print(table)
