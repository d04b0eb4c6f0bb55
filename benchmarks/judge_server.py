"""Judge that takes a fixed time for each answer: prints its URL, and ends when its standard input ends."""

import asyncio
import sys
from typing import Annotated

import typer

from tests.support.fake_judge import grading, judging


def main(
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds that the judge takes for an answer.")] = 0.2,
    broken_every: Annotated[int, typer.Option(min=0, help="One in so many connections breaks; 0: none.")] = 0,
) -> None:
    """Serve until the input ends.

    Example: sleep 60 | python -m benchmarks.judge_server --seconds 0.2
    """
    asyncio.run(_serve(seconds, broken_every))


async def _serve(seconds: float, broken_every: int) -> None:
    async with judging(grading) as judge:
        judge.seconds = seconds
        if broken_every:
            judge.breaks = lambda number: number % broken_every == broken_every // 2
        print(judge.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    typer.run(main)
