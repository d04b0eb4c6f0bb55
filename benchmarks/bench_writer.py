"""Output tokens/s of a real SGLang server for `synthesize`, beside a bare loop that sends the same requests.

Run by `make bench-synthesis`, or with other sizes by `python -m benchmarks.bench_writer --help`. The two run in turn,
with the same number of requests at a time and answers of the same length. The server's cache is flushed in between.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import typer
from rich.table import Table

from benchmarks.bench_profile import NEVER_END
from benchmarks.bench_synthesis import measured
from tests.support.tiny_model import write_model
from verl_pivot.commands.tables import table_console
from verl_pivot.engines.retries import Retries
from verl_pivot.engines.server import sglang_server
from verl_pivot.synthesis.writer import EndpointWriter
from verl_pivot.types import JsonObject

TARGET_SHARE = 0.9
_NUM_TOKENS = 1024
"""Tokens of each answer, which are the default limit of `Workshop.ask`."""


async def bare_loop(url: str, num_calls: int, concurrency: int) -> float:
    """Seconds of aiohttp alone, with bodies that are encoded already and answers that are read and thrown away."""
    bodies = [_body(number) for number in range(num_calls)]
    slots = asyncio.Semaphore(concurrency)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def send(body: bytes) -> None:
            async with slots, session.post(f"{url}/v1/chat/completions", data=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

        began = time.perf_counter()
        await asyncio.gather(*map(send, bodies))
        return time.perf_counter() - began


def _body(number: int) -> bytes:
    """A request like those of the step `bench_questions`."""
    message: JsonObject = {"role": "user", "content": f"Question 0 about item {number}. " * 20}
    body = {"model": "default", "messages": [message], "temperature": 1.0, "seed": number, "max_tokens": _NUM_TOKENS}
    return msgspec.json.encode(body)


async def flush(url: str) -> None:
    """Empty the server's prefix cache."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/flush_cache") as response:
        assert response.status == 200, await response.text()


def main(
    calls: Annotated[int, typer.Option(min=1, help="Answers per round.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 3,
) -> None:
    """Print output tokens/s of `synthesize` and of a bare loop, on one SGLang server."""
    console = table_console()
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model", corpus=["Question about item. " * 20])
        with sglang_server(str(model), log=folder / "server.log", extra_flags=NEVER_END, console=console) as url:
            for number in range(rounds):
                console.print(f"round {number + 1} of {rounds}")
                asyncio.run(flush(url))
                bare.append(asyncio.run(bare_loop(url, calls, concurrency)))
                asyncio.run(flush(url))
                writer = EndpointWriter(url, str(model), answer_format="text", retries=Retries())
                ours.append(measured(writer, calls, 1, concurrency).seconds)
    table = Table("what", "tokens/s", "vs. bare loop", "range", title=f"{calls} answers of {_NUM_TOKENS} tokens")
    shares = [theirs / own for own, theirs in zip(ours, bare, strict=True)]
    for what, seconds, of_bare in (("bare loop of aiohttp", bare, [1.0]), ("verl-pivot synthesize", ours, shares)):
        rate = f"{calls * _NUM_TOKENS / statistics.median(seconds):,.0f}"
        table.add_row(what, rate, f"{statistics.median(of_bare):.2f}", f"{min(of_bare):.2f} to {max(of_bare):.2f}")
    reached = statistics.median(shares) >= TARGET_SHARE
    table.caption = f"target: synthesize >= {TARGET_SHARE:.2f} of the bare loop; reached: {'yes' if reached else 'NO'}"
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
