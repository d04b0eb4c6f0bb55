"""`verl-pivot index`: documents -> the index that the tool `search` of rollouts and the search service read."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from verl_pivot.commands.options import out_of_any_kind
from verl_pivot.errors import ConfigError
from verl_pivot.extras import require

MANY_DOCUMENTS = 1_000_000
"""Number of documents above which it is slow to compare a query with every vector."""


def index_command(
    documents: Annotated[
        Path, typer.Argument(help='JSON lines or parquet with the columns "text" (or "contents") and "title".')
    ],
    out: Annotated[
        Path,
        typer.Option(callback=out_of_any_kind, help="The folder to write; an index that is already there is replaced."),
    ],
    kind: Annotated[
        Literal["bm25", "dense", "hybrid"],
        typer.Option(help="Search by words (bm25), vectors (dense) or both (hybrid); a hybrid index serves all three."),
    ] = "bm25",
    encoder: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face encoder for the vectors; by default words give the vectors."),
    ] = None,
    prefixes: Annotated[
        Literal["e5", "bge", "none"] | None,
        typer.Option(
            help="Text that the encoder reads before queries and documents; by default chosen by its folder's name."
        ),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate", help="Compare a query only with documents near it; useful above a million documents."
        ),
    ] = False,
) -> None:
    """Index documents by their words (BM25), by vectors, or by both, for the tool `search` in rollouts.

    Without --encoder, vectors are computed from the words by truncated SVD (latent semantic analysis), which needs
    no model. --approximate needs the extra faiss, and misses some of the documents that a comparison with every
    vector finds.

    \b
    Examples:
    verl-pivot index wiki.jsonl --out outputs/wiki
    verl-pivot index wiki.jsonl --kind hybrid --out outputs/wiki
    verl-pivot index wiki.jsonl --out wiki --kind dense --encoder models/e5
    verl-pivot index wiki.jsonl --kind dense --approximate --out wiki
    """
    _check(kind, encoder, prefixes, approximate)
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.tools.search_files import Prefixes, SearchKind, encoder_facts
    from verl_pivot.tools.search_writing import write_index

    facts = None if encoder is None else encoder_facts(encoder, None if prefixes is None else Prefixes(prefixes))
    if facts is not None:
        typer.echo(f"Prefixes of the encoder: {facts.prefixes} (--prefixes).")
    with progress_bar("documents", num_rows(documents)) as on_done:
        report = write_index(documents, out, on_done, kind=SearchKind(kind), encoder=facts, approximate=approximate)
    typer.echo(f"Wrote {out}: {report.num_documents} documents.")
    if report.num_left_out:
        typer.echo(
            f"{report.num_left_out} rows hold no document and were left out. The first is {report.first_left_out}"
        )
    if report.num_cut:
        typer.echo(f"The encoder read only the beginning of {report.num_cut} documents, which are too long for it.")
    if report.num_documents > MANY_DOCUMENTS and kind != "bm25" and not approximate:
        typer.echo("Each query is compared with every vector; --approximate is faster with so many documents.")
    typer.echo(f"Next, in a tools file:\n- tool: search\n  index: {out}")


def _check(kind: str, encoder: Path | None, prefixes: str | None, approximate: bool) -> None:
    """Refuse options that would do nothing, and a missing extra, before the documents are read."""
    if encoder is not None and kind == "bm25":
        raise ConfigError("--encoder does nothing with --kind bm25; add --kind dense or --kind hybrid")
    if prefixes is not None and encoder is None:
        raise ConfigError("--prefixes does nothing without --encoder; leave it out")
    if approximate and kind == "bm25":
        raise ConfigError("--approximate does nothing with --kind bm25; add --kind dense or --kind hybrid")
    if approximate:
        require("faiss", "faiss")
