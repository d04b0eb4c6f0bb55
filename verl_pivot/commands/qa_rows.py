"""`verl-pivot qa-rows`: questions with accepted answers -> rows for rollouts with tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import out_of_parquet, refuse_overwriting
from verl_pivot.commands.tables import counts_table, printable, table_console

if TYPE_CHECKING:
    from verl_pivot.exports.qa_rows import QuestionCounts


def qa_rows_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON lines, JSON or parquet of HotpotQA, NQ, TriviaQA, MuSiQue, 2WikiMultihopQA, PopQA, Bamboogle or "
            'Search-R1, or your own with "question" and "answers".'
        ),
    ],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The qa.parquet to write.")],
    normalisation: Annotated[
        Literal["l0", "search_r1"],
        typer.Option(
            help="How the verifier qa normalises answers before comparing them; answers that become empty are left out."
        ),
    ] = "l0",
    instructions: Annotated[str, typer.Option(help="Text after each question in the prompt; by default none.")] = "",
    data_source: Annotated[
        str | None,
        typer.Option(help="Name by which verl chooses the reward of a row; by default a name for exact match."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows to write, drawn at random.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw of --limit.")] = 0,
) -> None:
    """Write questions with accepted answers as rows that a policy answers with tools.

    A question that stands in several rows is written once, as in its first row.

    \b
    Examples:
    verl-pivot qa-rows hotpot_train.json nq.jsonl --out qa.parquet
    verl-pivot qa-rows musique_dev.jsonl --limit 500 --out validation.parquet
    verl-pivot qa-rows nq.jsonl --out qa.parquet \\
      --instructions "Give the answer alone between <answer> and </answer>."
    """
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.exports.qa_rows import write_qa_rows

    refuse_overwriting([out], files)
    with progress_bar("questions", sum(num_rows(path) or 0 for path in files) or None) as on_done:
        counts = write_qa_rows(
            files,
            out,
            normalisation=normalisation,
            instructions=instructions,
            data_source=data_source,
            limit=limit,
            seed=seed,
            on_rows=on_done,
        )
    _print_counts(counts)
    typer.echo(f"Wrote {out}: {counts.written.total()} rows.")
    tool_format = "" if instructions else " +tool_format=search_r1"
    typer.echo(
        "Next, with the tool search in tools.yaml:\n"
        f"python -m verl.trainer.main_ppo <your overrides> +method=tool_rollout{tool_format} \\\n"
        f"    {next_override('data.train_files', out)} pivot.rollout.tools=tools.yaml"
    )


def _print_counts(counts: "QuestionCounts") -> None:
    table = counts_table(f"{counts.num_read} rows")
    for reason, number in counts.refused.most_common():
        table.add_row(reason, str(number), printable(counts.first_refused[reason]))
    if counts.num_duplicates:
        table.add_row("duplicate", str(counts.num_duplicates), "the question occurs in an earlier row")
    if counts.num_beyond_limit:
        table.add_row("not drawn", str(counts.num_beyond_limit), "beyond --limit")
    table.add_section()
    for data_source, number in counts.written.most_common():
        table.add_row("written", str(number), printable(data_source))
    table_console().print(table)
    if counts.num_answers_left_out:
        typer.echo(f"{counts.num_answers_left_out} accepted answers were left out: normalisation leaves no letters.")
