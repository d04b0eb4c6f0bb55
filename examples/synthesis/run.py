"""Labels of the quickstart's shop, a fifth of them broken, and how many `closed_loop` repairs, without a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from examples.options import Out
from examples.synthesis.labels import repair_labels


def main(
    out: Out = Path("outputs/synthesis"),
    labels: Annotated[int, typer.Option(min=5, help="Labels, of which every fifth is broken.")] = 1000,
) -> None:
    """Break a fifth of the labels on purpose, and count the repairs by outcomes alone and with three judges.

    The policy is a clerk in Python who makes a mistake in a fifth of the calls; each judge is wrong about 15 % of the
    labels.

    Example: python -m examples.synthesis --labels 100 --out outputs/labels
    """
    reports = [repair_labels(out, labels, with_judges=with_judges) for with_judges in (False, True)]
    for report in reports:
        for line in report.lines():
            typer.echo(line)
    summary = out / "summary.json"
    summary.write_text(json.dumps([asdict(report) for report in reports], indent=1) + "\n")
    typer.echo(f"Wrote {summary}.")


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
