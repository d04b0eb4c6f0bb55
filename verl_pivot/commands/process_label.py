"""`verl-pivot process label`: dumps of rollouts -> turns.parquet, each turn with the score that it should get."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from verl_pivot.commands.asked_judge import EndpointOptions, QuestionOptions, judge_of, judge_settings
from verl_pivot.commands.options import options_given, out_of_parquet, refuse_overwriting, with_option_groups
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.rewards.dumped_turns import DumpCounts
    from verl_pivot.rewards.labelled_turns import JudgedTurn
    from verl_pivot.rewards.principles import PrincipleSet
    from verl_pivot.rewards.process_settings import ProcessSettings
    from verl_pivot.rewards.turn_labelling import Labels

_OPTIONS_OF_JUDGE = (
    *("base_url", "model", "samples", "temperature", "seed", "cache", "api_key_variable", "answer_format"),
    *("max_tokens", "concurrency", "timeout_seconds", "max_retries"),
)
"""Parameters of the command that do nothing where no judge is asked."""


@with_option_groups
def label_command(
    ctx: typer.Context,
    dumps: Annotated[
        list[Path], typer.Argument(help="Dumps of rollouts with tools, <trainer.rollout_data_dir>/pivot/<step>.jsonl.")
    ],
    rows: Annotated[
        list[Path], typer.Option(help="Rows of the run, its data.train_files, which hold the tasks; repeatable.")
    ],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The turns.parquet to write.")],
    endpoint: EndpointOptions,
    question: QuestionOptions,
    by: Annotated[
        Literal["judge", "outcomes"],
        typer.Option(help="Where labels come from: a stronger judge, or the outcomes of rollouts with the same turn."),
    ] = "judge",
    samples: Annotated[int, typer.Option(min=1, help="Answers of the judge for each turn.")] = 5,
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of these answers.")] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of the first answer; the others have the following ones.")] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Difference from the label that process_score still pays.")
    ] = 0.1,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps answers, for the same command again; by default <out>.answers."),
    ] = None,
) -> None:
    """Label every sampled turn but the last of each rollout, for judges of turns.

    The label is the median of a stronger judge's scores, or with --by outcomes the mean outcome of the rollouts with
    the same turn after the same turns. A command that was stopped asks nothing again that was answered.

    \b
    Examples:
      verl-pivot process label rollouts/pivot/*.jsonl --rows qa.parquet \\
        --base-url http://judge:30000/v1 --model strong --out turns.parquet
      verl-pivot process label rollouts/pivot/*.jsonl --rows qa.parquet \\
        --by outcomes --out turns.parquet
    """
    refuse_overwriting(out, [*dumps, *rows])
    if by == "outcomes":
        if given := options_given(ctx, _OPTIONS_OF_JUDGE):
            raise ConfigError(f"--by outcomes asks no judge: leave {', '.join(given)} out")
        labelled = _by_outcomes(dumps, rows, question)
    else:
        settings = judge_settings(endpoint, question, cache or out.with_name(f"{out.name}.answers"))
        labelled = _by_judge(dumps, rows, settings, question, samples, temperature, seed)
    _write(out, labelled, tolerance)


class _Labelled(NamedTuple):
    labels: "Labels"
    counts: "DumpCounts"
    principle_set: "PrincipleSet"
    """What the questions say."""


def _read(dumps: list[Path], rows: list[Path], *, needs_outcome: bool) -> "tuple[list[JudgedTurn], DumpCounts]":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.errors import DataError
    from verl_pivot.rewards.dumped_turns import DumpCounts, dumped_turns, tasks_by_prompt

    tasks, counts = tasks_by_prompt(rows), DumpCounts()
    with progress_bar("rollouts", sum(num_rows(path) or 0 for path in dumps) or None) as on_rollouts:
        found = dumped_turns(dumps, tasks, counts, needs_outcome=needs_outcome, on_rollouts=on_rollouts)
        turns = list(found)
    if not turns:
        why = "; ".join(f"{reason}: {number}" for reason, number in counts.left_out.most_common())
        raise DataError(f"none of {counts.num_rollouts} rollouts has a turn that can be labelled ({why})")
    return turns, counts


def _by_outcomes(dumps: list[Path], rows: list[Path], question: QuestionOptions) -> _Labelled:
    from verl_pivot.rewards.turn_labelling import labels_by_outcomes

    principle_set = question.principle_set()
    turns, counts = _read(dumps, rows, needs_outcome=True)
    return _Labelled(labels_by_outcomes(turns, principle_set, question.fit()), counts, principle_set)


def _by_judge(
    dumps: list[Path],
    rows: list[Path],
    settings: "ProcessSettings",
    question: QuestionOptions,
    samples: int,
    temperature: float,
    seed: int,
) -> _Labelled:
    import asyncio

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.errors import VerifierError
    from verl_pivot.rewards.turn_labelling import labels_by_judge

    turns, counts = _read(dumps, rows, needs_outcome=False)

    async def ask() -> "Labels":
        judge = judge_of(settings, question)
        try:
            with progress_bar("answers", len(turns) * samples) as on_answers:
                return await labels_by_judge(
                    turns, judge, num_samples=samples, temperature=temperature, seed=seed, on_answers=on_answers
                )
        finally:
            await judge.close()

    try:
        return _Labelled(asyncio.run(ask()), counts, settings.principle_set())
    except VerifierError as error:
        raise VerifierError(
            f"{error}; the same command again goes on, with the answers in {settings.cache_dir}"
        ) from error


def _write(out: Path, labelled: _Labelled, tolerance: float) -> None:
    from verl_pivot.errors import VerifierError
    from verl_pivot.rewards.labelled_turns import write_turns

    labels = labelled.labels
    _print_counts(labels, labelled.counts)
    if not labels.turns:
        raise VerifierError(
            "no answer of the judge was valid, so that nothing is written; see --form and --answer-format"
        )
    write_turns(out, labels.turns, labels.questions, labelled.principle_set, tolerance)
    typer.echo(
        f"Wrote {out}: {len(labels.turns)} turns.\nNext, how good another judge is, and rows to train one:\n"
        f"verl-pivot process bench {out} --base-url URL --model M\n"
        f"verl-pivot import {out} --allow-no-tools --out trajectories.jsonl"
    )


def _print_counts(labels: "Labels", counts: "DumpCounts") -> None:
    from statistics import fmean

    from rich.console import Console

    from verl_pivot.commands.tables import counts_table, printable

    table = counts_table(f"{counts.num_rollouts} rollouts")
    for reason, number in counts.left_out.most_common():
        table.add_row("left out", str(number), reason)
    if labels.num_unlabelled:
        table.add_row("left out", str(labels.num_unlabelled), "turns without a valid answer")
    if labels.turns:
        mean, spread = (
            fmean(values) for values in zip(*((each.label, each.spread) for each in labels.turns), strict=True)
        )
        table.add_row("labelled", str(len(labels.turns)), f"turns; mean label {mean:.3f}, mean spread {spread:.3f}")
    if labels.num_asked:
        tokens = (
            f"{labels.num_prompt_tokens} + {labels.num_completion_tokens} tokens, {labels.num_cached} from the cache"
        )
        table.add_section()
        table.add_row("answers", str(labels.num_asked), tokens)
        table.add_row("invalid", str(labels.invalid.total()), "")
        for reason, number in labels.invalid.most_common(5):
            table.add_row("", str(number), printable(reason))
    Console().print(table)
