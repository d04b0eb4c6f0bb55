"""`verl-pivot index`: documents -> the index that the tool `search` of rollouts reads."""

from pathlib import Path
from typing import Annotated

import typer


def index_command(
    documents: Annotated[
        Path, typer.Argument(help='JSON lines or parquet with the columns "text" (or "contents") and "title".')
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; an index that is already there is replaced.")],
) -> None:
    """Index documents by their words (BM25), for the tool `search` in rollouts.

    Example: verl-pivot index wiki.jsonl --out outputs/wiki
    """
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.tools.search import write_index

    with progress_bar("documents", num_rows(documents)) as on_done:
        report = write_index(documents, out, on_done)
    typer.echo(f"Wrote {out}: {report.num_documents} documents.")
    if report.num_left_out:
        typer.echo(
            f"{report.num_left_out} rows hold no document and were left out. The first is {report.first_left_out}"
        )
    typer.echo(f"Next, in a tools file:\n- tool: search\n  index: {out}")
