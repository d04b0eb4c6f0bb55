"""Queries per second of a search index over generated documents, and of the search service with that index.

Run by `make bench-search`, or with other sizes by `python -m benchmarks.bench_search --help`. Words are drawn by Zipf's
law, and a query has words of one document. The service is a process of its own on the same machine.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import typer
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.tools.search_files import SearchKind
from verl_pivot.tools.search_index import SearchIndex
from verl_pivot.tools.search_writing import write_index

TARGETS = {SearchKind.BM25: 400, SearchKind.DENSE: 200, SearchKind.HYBRID: None}
"""Queries per second that the index must reach; the service must reach the share `SHARE` of the index's rate."""
SHARE = 0.8
NUM_WORDS, WORDS_OF_DOCUMENT, WORDS_OF_QUERY = 50_000, 80, 6
NUM_FOUND = 3
"""Documents that each query returns."""


def main(
    documents: Annotated[int, typer.Option(min=1000, help="Documents of the index.")] = 100_000,
    queries: Annotated[int, typer.Option(min=64, help="Queries per round.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Queries per request.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 3,
) -> None:
    """Print queries per second of the index and of the service, for each kind of search."""
    table = Table(title=f"{documents} documents, {queries} queries in batches of {batch}: medians of {rounds} rounds")
    for column in ("kind", "index, queries/s", "target", "service, queries/s", "share", f"target {SHARE:.0%}"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    with tempfile.TemporaryDirectory() as folder:
        asked = _write(Path(folder), documents, queries)
        batches = [asked[begin : begin + batch] for begin in range(0, queries, batch)]
        for kind, target in TARGETS.items():
            index = SearchIndex(Path(folder) / "index", kind)
            with service_process(Path(folder) / "index", kind) as url:
                alone, served = [], []
                for _ in range(rounds):  # in turn, so that other load on the machine affects both
                    alone.append(queries / seconds_alone(index, batches))
                    served.append(queries / asyncio.run(seconds_served(url, batches, at_once)))
            rate, share = statistics.median(alone), statistics.median(served) / statistics.median(alone)
            reached = "" if target is None else f"{target}{'' if rate >= target else ', missed'}"
            row = (f"{rate:.0f}", reached, f"{statistics.median(served):.0f}", f"{share:.0%}")
            table.add_row(kind, *row, "reached" if share >= SHARE else "missed")
    table_console().print(table)


def _write(folder: Path, num_documents: int, num_queries: int) -> list[str]:
    """Write an index of generated documents; returns queries."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(NUM_WORDS)])
    weights = 1.0 / np.arange(1, NUM_WORDS + 1)
    drawn = rng.choice(NUM_WORDS, (num_documents, WORDS_OF_DOCUMENT), p=weights / weights.sum())
    with (folder / "documents.jsonl").open("w") as file:
        for number, row in enumerate(drawn):
            file.write(json.dumps({"title": f"Document {number}", "text": " ".join(words[row])}) + "\n")
    began = time.monotonic()
    write_index(folder / "documents.jsonl", folder / "index", lambda _: None, kind=SearchKind.HYBRID)
    print(f"index written in {time.monotonic() - began:.0f} s", file=sys.stderr)
    rows = drawn[rng.choice(num_documents, num_queries)]
    return [" ".join(words[rng.choice(row, WORDS_OF_QUERY, replace=False)]) for row in rows]


def seconds_alone(index: SearchIndex, batches: Sequence[Sequence[str]]) -> float:
    """Seconds until the index has answered all batches, one after the other."""
    began = time.monotonic()
    for batch in batches:
        index.search(batch, NUM_FOUND)
    return time.monotonic() - began


async def seconds_served(url: str, batches: Sequence[Sequence[str]], at_once: int) -> float:
    """Seconds until the service has answered one request for each batch."""
    room = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession() as http:

        async def ask(batch: Sequence[str]) -> None:
            body = {"queries": list(batch), "topk": NUM_FOUND, "return_scores": True}
            async with room, http.post(f"{url}/retrieve", json=body) as response:
                result = (await response.json())["result"]
                assert len(result) == len(batch), result

        began = time.monotonic()
        await asyncio.gather(*map(ask, batches))
        return time.monotonic() - began


@contextmanager
def service_process(index: Path, kind: SearchKind) -> Iterator[str]:
    """Run a search service in its own process; yields its URL."""
    words = ("search", "serve", "--index", str(index), "--kind", kind, "--port", "0")
    with subprocess.Popen(
        [sys.executable, "-m", "verl_pivot.cli", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None, "stdout is a pipe"
        said = process.stdout.readline()
        if not said:
            raise SystemExit("the service did not start: see its message above")
        try:
            yield said.split()[-1]
        finally:
            process.terminate()


if __name__ == "__main__":
    typer.run(main)
