"""Milliseconds of the verifier `render` with one screenshot, alone and several at a time, in a real browser.

Run by `make bench-render`, or with other sizes by `python -m benchmarks.bench_render --help`.
"""

import asyncio
import statistics
import time
from typing import Annotated

import typer
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.types import JsonObject, Message, Role, Turn
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.render import RenderVerifier

TARGET_MS = 150.0
_ROWS = "".join(f"<tr><td>Item {number}</td><td>{number}.50</td></tr>" for number in range(30))
HTML = (
    "<style>table {border-collapse: collapse} td {padding: 4px; border: 1px solid #ccc}</style>"
    f"<h1>Prices %d</h1><nav><a href=#a>One</a> <a href=#b>Two</a></nav><table>{_ROWS}</table>"
    "<script>document.title = 'Prices'</script>"
)
OPTIONS: JsonObject = {
    "seconds": [0],
    "assertions": [
        {"selector": "h1", "visible": True, "above": "table"},
        {"selector": "td", "count": 60},
        {"selector": "nav", "visible": True, "above": "table", "inside": "body"},
    ],
}


def main(
    pages: Annotated[int, typer.Option(min=2, help="Pages per round.")] = 200,
    at_once: Annotated[int, typer.Option(min=1, help="Pages at a time in the last round.")] = 64,
) -> None:
    """Print the times; exit with code 1 if the median of one page at a time misses the target."""
    table = Table(title=f"`render`, one screenshot of 1280 x 720, {pages} pages")
    for column in ("pages at a time", "p50 ms", "p95 ms", "pages per second"):
        table.add_column(column)
    medians = [asyncio.run(_round(pages, number, table)) for number in (1, 8, at_once)]
    table_console().print(table)
    typer.echo(f"target: at most {TARGET_MS:.0f} ms p50, one page at a time")
    raise typer.Exit(0 if medians[0] <= TARGET_MS else 1)


async def _round(num_pages: int, at_once: int, table: Table) -> float:
    """Add a row to the table; returns the median milliseconds of a page in a browser that runs already."""
    await _milliseconds(0)
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> float:
        async with room:
            return await _milliseconds(number)

    began = time.perf_counter()
    taken = sorted(await asyncio.gather(*(one(number) for number in range(1, num_pages + 1))))
    seconds = time.perf_counter() - began
    p95 = taken[int(0.95 * (len(taken) - 1))]
    table.add_row(str(at_once), f"{statistics.median(taken):.0f}", f"{p95:.0f}", f"{num_pages / seconds:.1f}")
    return statistics.median(taken)


async def _milliseconds(number: int) -> float:
    action = Message(role=Role.ASSISTANT, content=f"```html\n{HTML % number}\n```")
    turn = Turn(trajectory_id="p", index=0, state=(Message(role=Role.USER, content="Show prices."),), expert=action)
    verifier = get_verifier("render", OPTIONS)
    assert isinstance(verifier, RenderVerifier)
    began = time.perf_counter()
    verdict = await verifier(action, turn)
    if verdict.score != 1.0:
        raise SystemExit(f"a page was not accepted: {verdict}")
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    typer.run(main)
