"""`verl-pivot export`: pivots or trajectories -> a file for NeMo Gym, for verl's SFT trainer, or JSON lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.options import out_file, out_of_json_lines, out_of_parquet, refuse_overwriting
from verl_pivot.commands.tables import counts_table, table_console
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.data.files import RawRow
    from verl_pivot.exports.exporting import ExportReport


def export_command(
    file: Annotated[Path, typer.Argument(help="pivots.parquet or trajectories.jsonl, or an export of either.")],
    to: Annotated[
        Literal["nemo-gym", "verl", "jsonl"],
        typer.Option(
            help="nemo-gym: JSON lines, one per turn. verl: parquet, of pivots for RL or of trajectories for SFT. "
            "jsonl: JSON lines, one per row."
        ),
    ],
    out: Annotated[Path, typer.Option(callback=out_file, help="The file to write.")],
    agent: Annotated[
        str | None,
        typer.Option(
            help="With --to nemo-gym: name in agent_ref, as in your NeMo Gym configuration. By default the name that a "
            "row was imported with, or the agent nearest to its verifier."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="With --to nemo-gym: profile.jsonl of these turns, for their pass rates.")
    ] = None,
) -> None:
    """Write pivots or trajectories in a format of other programs. `verl-pivot import` reads every export back.

    Example: verl-pivot export pivots.parquet --to nemo-gym --profile profile.jsonl --out pivots.nemo-gym.jsonl
    """
    from verl_pivot.exports.exporting import export_jsonl, export_nemo_gym, export_verl, read_scores

    out = out_of_parquet(out) if to == "verl" else out_of_json_lines(out) or out
    refuse_overwriting([out], [file, profile])
    if to != "nemo-gym" and (agent or profile):
        raise ConfigError(f"--agent and --profile are for --to nemo-gym, not for --to {to}; leave them out")
    rows = _rows_with_progress(file)
    match to:
        case "nemo-gym":
            scores = None if profile is None else read_scores(profile, file)
            report = export_nemo_gym(rows, out, agent=agent, scores=scores)
        case "verl":
            report = export_verl(rows, out)
        case "jsonl":
            report = export_jsonl(rows, out)
    _print_export(report, out)


def _rows_with_progress(path: Path) -> "Iterator[RawRow]":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows, read_rows

    with progress_bar("rows", num_rows(path)) as on_rows:
        for row in read_rows(path):
            yield row
            on_rows(1)


def _print_export(report: "ExportReport", out: Path) -> None:
    table = counts_table(f"{report.num_written} rows in {out}")
    notes = {
        "trajectories that failed": (
            report.num_failed,
            "written, too; `verl-pivot import` without --outcome all leaves them out",
        ),
        "several calls at once": (
            report.num_batches,
            "written as function_call_batch, which NeMo Gym's environment reads and the validator of its skill refuses",
        ),
        "calls without a schema": (
            report.num_without_schema,
            "NeMo Gym's validator accepts them with --no-check-tool-names; `verl-pivot import --tools` adds schemas",
        ),
        "not in the profile": (report.num_without_profile, "written without pass rates"),
    }
    for result, (count, note) in notes.items():
        if count:
            table.add_row(result, str(count), note)
    for what, count in report.lost_fields.most_common():
        table.add_row(f"lost: {what}", str(count), "kept in the column verl_pivot, which `verl-pivot import` reads")
    if table.row_count:
        table_console().print(table)
    else:
        typer.echo(f"Wrote {report.num_written} rows to {out}; nothing was lost.")
