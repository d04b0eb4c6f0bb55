"""Choices among actions and a judge of checklists -> the report of `verl-pivot process bench --form checklist`."""

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from verl_pivot.commands.asked_judge import EndpointOptions, QuestionOptions, checklist_judge_of
from verl_pivot.commands.progress import progress_bar
from verl_pivot.commands.tables import printable, table_console
from verl_pivot.rewards.choice_bench import ActionChoice, ChoiceReport, bench_choices, read_choices

if TYPE_CHECKING:
    from verl_pivot.rewards.process_settings import ProcessSettings


def bench_checklists(
    path: Path,
    settings: "ProcessSettings",
    endpoint: EndpointOptions,
    question: QuestionOptions,
    *,
    limit: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Ask a judge about the choices in a file, and print the report.

    Args:
        path: File of choices.
        settings: The judge.
        endpoint: Options of the judge.
        question: Options of the judge's questions.
        limit: Number of choices to ask about, drawn at random; None: all.
        seed: Seed of the draw.
        as_json: Whether the report is printed as one JSON object.
    """
    rows = list(read_choices(path))
    if limit is not None and limit < len(rows):
        rows = [rows[index] for index in sorted(random.Random(seed).sample(range(len(rows)), limit))]
    report = asyncio.run(_ask(rows, settings, endpoint, question))
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _print(report, str(endpoint.model))


async def _ask(
    rows: list[ActionChoice], settings: "ProcessSettings", endpoint: EndpointOptions, question: QuestionOptions
) -> ChoiceReport:
    judge = checklist_judge_of(settings, question)
    try:
        with progress_bar("choices", len(rows)) as on_choices:
            return await bench_choices(rows, judge, concurrency=endpoint.concurrency, on_choices=on_choices)
    finally:
        await judge.close()


def _print(report: ChoiceReport, model: str) -> None:
    from rich.table import Table

    table = Table(title=f"{model} on {report.num_choices} choices", title_justify="left", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("", overflow="fold")
    table.add_row("valid answers", f"{report.num_valid / report.num_choices:.3f}", f"{report.num_valid} choices")
    tied = f"of the valid choices; {report.num_tied} tied with another"
    table.add_row("right action first", _shown(report.accuracy), tied)
    table.add_row("reciprocal rank", _shown(report.mean_reciprocal_rank), "mean; the right action ranks last in a tie")
    table.add_row("whole trajectories", _shown(report.trajectory_accuracy), "with every choice right")
    table_console().print(table)
    for reason, number in list(report.invalid.items())[:5]:
        typer.echo(f"{number} x {printable(reason)}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
