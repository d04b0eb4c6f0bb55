"""`verl-pivot search serve`: an index -> a search service that speaks Search-R1's and ReSearch's protocol."""

from pathlib import Path
from typing import Annotated, Literal

import typer

search_app = typer.Typer(help="Serve a search index over HTTP.", no_args_is_help=True)


@search_app.callback()
def search() -> None:
    """Serve a search index over HTTP."""


@search_app.command("serve")
def serve_command(
    index: Annotated[Path, typer.Option(help="Folder that `verl-pivot index` wrote.")],
    kind: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        typer.Option(help="Kind of search; by default the one that the index was made for."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    num_documents: Annotated[
        int, typer.Option(min=1, max=100, help="Documents per query if the request gives no number.")
    ] = 3,
) -> None:
    """Answer queries in the protocols of Search-R1 and ReSearch.

    The paths are /retrieve, and /search, /batch_search and /health. Whoever reaches the port may search: there is no
    password. Ctrl-C ends the service.

    \b
    Examples:
    verl-pivot search serve --index wiki
    verl-pivot search serve --index wiki --kind hybrid --host 0.0.0.0 --port 8000
    """
    from verl_pivot.commands.serving import serve_until_told
    from verl_pivot.tools.search_files import SearchKind
    from verl_pivot.tools.search_index import SearchIndex
    from verl_pivot.tools.search_service import SearchService

    opened = SearchIndex(index, None if kind is None else SearchKind(kind))
    service = SearchService(opened, num_documents=num_documents)

    def on_ready(url: str) -> None:
        typer.echo(f"Serving {opened.facts.num_documents} documents by {opened.kind} at {url}")

    serve_until_told(service.app, host, port, on_ready)
