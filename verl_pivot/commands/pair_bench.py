"""Pairs of turns and a judge that sees both -> the report of `verl-pivot process bench --pairs`."""

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from verl_pivot.commands.options import option_name
from verl_pivot.commands.progress import progress_bar
from verl_pivot.commands.tables import printable, table_console
from verl_pivot.rewards.pair_bench import BothOrders, PairJudge, PairReport, bench_pairs, read_pairs

if TYPE_CHECKING:
    from verl_pivot.rewards.process_settings import ProcessSettings


def bench_turn_pairs(
    path: Path,
    settings: "ProcessSettings",
    *,
    concurrency: int,
    limit: int | None,
    temperature: float,
    seed: int,
    as_json: bool,
) -> None:
    """Ask a judge about the pairs in a file, and print the report.

    Args:
        path: A turns.pairs.parquet.
        settings: The judge.
        concurrency: Number of questions at a time.
        limit: Number of pairs to ask about, drawn at random; None: all.
        temperature: Temperature of the answers.
        seed: Seed of the answers, and of the draw.
        as_json: Whether the report is printed as one JSON object.
    """
    pairs = read_pairs(path)
    if limit is not None and limit < len(pairs):
        pairs = [pairs[index] for index in sorted(random.Random(seed).sample(range(len(pairs)), limit))]
    report = asyncio.run(_ask(pairs, settings, concurrency, temperature, seed))
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _print(report, str(settings.model))


async def _ask(
    pairs: list[BothOrders], settings: "ProcessSettings", concurrency: int, temperature: float, seed: int
) -> PairReport:
    judge = PairJudge(settings, written=option_name)
    try:
        with progress_bar("pairs", len(pairs)) as on_pairs:
            return await bench_pairs(
                pairs, judge, concurrency=concurrency, temperature=temperature, seed=seed, on_pairs=on_pairs
            )
    finally:
        await judge.close()


def _print(report: PairReport, model: str) -> None:
    from rich.table import Table

    title = f"{model} on {report.num_pairs} pairs of turns, each in both orders"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("", overflow="fold")
    table.add_row("valid answers", _shown(report.num_valid / (2 * report.num_pairs)), f"{report.num_valid} answers")
    table.add_row("pairs in order", _shown(report.accuracy), f"of the valid answers; {report.num_tied} tied")
    in_both = f"of {report.num_both_valid} pairs with two valid answers"
    table.add_row("in both orders", _shown(report.accuracy_in_both_orders), in_both)
    untied = "of answers without a tie; 0.5 means no bias to either position"
    table.add_row("first preferred", _shown(report.share_first), untied)
    cached = f"per answer; {report.num_cached} answers from the cache"
    table.add_row("seconds", _shown(report.seconds_per_answer), cached)
    tokens = report.prompt_tokens_per_answer + report.completion_tokens_per_answer
    table.add_row("tokens", f"{tokens:.0f}", f"per answer, {report.completion_tokens_per_answer:.0f} of them generated")
    table_console().print(table)
    for reason, number in list(report.invalid.items())[:5]:
        typer.echo(f"{number} x {printable(reason)}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
