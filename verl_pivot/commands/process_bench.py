"""`verl-pivot process bench`: labelled turns and a judge -> how good the judge is, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.asked_judge import (
    EndpointOptions,
    QuestionOptions,
    judge_of,
    judge_settings,
    refuse_void_of_form,
)
from verl_pivot.commands.options import options_given, with_home, with_option_groups
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.rewards.judge_bench import JudgeReport
    from verl_pivot.rewards.judge_quality import PairAgreement


@with_option_groups
def bench_command(
    ctx: typer.Context,
    turns: Annotated[
        Path,
        typer.Argument(help="Labelled turns from `verl-pivot process label`; with --form checklist, rows of choices."),
    ],
    endpoint: EndpointOptions,
    question: QuestionOptions,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="TURNS is a turns.pairs.parquet: ask about both turns of a pair at once.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only about N turns or pairs, drawn at random.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of the answers.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the answers, and of the draw of --limit.")] = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            callback=with_home, help="Folder that keeps the answers, so that a rerun reuses them; by default none."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
) -> None:
    """Ask a judge once about each labelled turn, and compare its scores with the labels.

    With --form checklist each row is a choice with the columns task, earlier, candidates and right; the report says how
    often the right action gets the highest progress. With --pairs the judge sees two turns of a task in one question,
    in both orders; the report says how often the judge orders them as their labels do.

    \b
    Examples:
      verl-pivot process bench turns.parquet \\
        --base-url http://judge:30000/v1 --model my-judge
      verl-pivot process bench turns.parquet --base-url URL --model M --json
      verl-pivot process bench turns.pairs.parquet --pairs \\
        --base-url URL --model M
      verl-pivot process bench choices.jsonl --form checklist \\
        --base-url URL --model M
    """
    import asyncio
    import json
    import random

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.rewards.judge_bench import bench_judge
    from verl_pivot.rewards.labelled_turns import read_turns

    if pairs and (given := options_given(ctx, _IN_ROWS)):
        raise ConfigError(f"{given[0]} does nothing with --pairs, whose rows hold the questions: leave it out")
    refuse_void_of_form(ctx, question.form)
    settings = judge_settings(endpoint, question, cache)
    if pairs:
        from verl_pivot.commands.pair_bench import bench_turn_pairs

        bench_turn_pairs(
            turns, settings, concurrency=endpoint.concurrency, limit=limit, temperature=temperature, seed=seed,
            as_json=as_json,
        )  # fmt: skip
        return
    if settings.has_checklist:
        from verl_pivot.commands.choice_bench import bench_checklists

        if given := options_given(ctx, ("principles", "max_added_principles", "temperature")):
            raise ConfigError(f"{given[0]} does nothing with --form {question.form}: leave it out")
        bench_checklists(turns, settings, endpoint, question, limit=limit, seed=seed, as_json=as_json)
        return
    rows = list(read_turns(turns))
    if limit is not None and limit < len(rows):
        rows = [rows[index] for index in sorted(random.Random(seed).sample(range(len(rows)), limit))]

    async def ask() -> "JudgeReport":
        judge = judge_of(settings, question)
        try:
            with progress_bar("turns", len(rows)) as on_turns:
                return await bench_judge(
                    rows, judge, concurrency=endpoint.concurrency, temperature=temperature, seed=seed, on_turns=on_turns
                )
        finally:
            await judge.close()

    report = asyncio.run(ask())
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _print(report, str(endpoint.model))


_IN_ROWS = ("form", "principles", "max_added_principles", "max_question_tokens", "tokenizer")
"""Options that do nothing with --pairs, since each row of pairs holds its whole question."""


def _print(report: "JudgeReport", model: str) -> None:
    from rich.table import Table

    from verl_pivot.commands.tables import printable, table_console

    table = Table(title=f"{model} on {report.num_turns} turns", title_justify="left", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("", overflow="fold")
    table.add_row("valid answers", f"{report.num_valid / report.num_turns:.3f}", f"{report.num_valid} turns")
    table.add_row("pairs in order", *_shown_pairs(report.pairs))
    table.add_row("pairs of a task", *_shown_pairs(report.pairs_of_task))
    table.add_row("rank correlation", _shown(report.rank_correlation), "Spearman")
    table.add_row("mean error", _shown(report.mean_absolute_error), "mean difference of score and label")
    table.add_row("calibration error", _shown(report.calibration_error), "expected calibration error, ten bins")
    table.add_row("seconds", _shown(report.seconds_per_turn), f"per turn; {report.num_cached} answers from the cache")
    tokens = report.prompt_tokens_per_turn + report.completion_tokens_per_turn
    table.add_row("tokens", f"{tokens:.0f}", f"per turn, {report.completion_tokens_per_turn:.0f} of them generated")
    console = table_console()
    console.print(table)
    for reason, number in list(report.invalid.items())[:5]:
        typer.echo(f"{number} x {printable(reason)}")
    bins = Table(title="Calibration", title_justify="left")
    for name in ("score", "turns", "mean score", "mean label"):
        bins.add_column(name, justify="right")
    for each in report.calibration:
        shown = f"{each.least:.1f} - {each.most:.1f}"
        bins.add_row(shown, str(each.num_turns), f"{each.mean_score:.3f}", f"{each.mean_label:.3f}")
    console.print(bins)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _shown_pairs(pairs: "PairAgreement") -> tuple[str, str]:
    return _shown(pairs.accuracy), f"of {pairs.num_pairs} pairs with different labels; {pairs.num_tied} tied"
