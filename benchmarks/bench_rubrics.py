"""Seconds until a judge has scored a group by many criteria, beside the minimum that its own speed allows.

Run by `make bench-rubrics`, or with other sizes by `python -m benchmarks.bench_rubrics --help`. The judge is a server
in a process of its own that takes a fixed time for each answer; client, prompts and parser are those of training.
"""

import asyncio
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.table import Table

from tests.support.fake_judge import judging
from tests.support.scripted_engine import scripted_model
from verl_pivot.commands.tables import table_console
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.rewards.rubric_group import QueryReport, RubricGroup
from verl_pivot.rewards.rubric_judge import JudgedReport, RubricJudge
from verl_pivot.rewards.rubric_settings import RubricSettings
from verl_pivot.rewards.rubrics import Criterion
from verl_pivot.types import JsonObject


def main(
    group: Annotated[int, typer.Option(min=1, help="Reports of a group.")] = 16,
    criteria: Annotated[int, typer.Option(min=1, help="Criteria, each in its own request.")] = 10,
    at_once: Annotated[int, typer.Option(min=1, help="Requests to the judge at a time.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds that the judge takes for an answer.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median over them is shown.")] = 5,
    serve: Annotated[bool, typer.Option(hidden=True, help="Serve the judge until the input ends.")] = False,
) -> None:
    """Print the seconds of a group beside the minimum: the judge's seconds times the number of waves of requests."""
    if serve:
        asyncio.run(_serve(seconds))
        return
    ideal = math.ceil(group * criteria / at_once) * seconds
    with _judge_process(seconds) as url:
        asyncio.run(_scored(url, group, criteria, at_once))  # warms up imports and the tokenizer
        measured = [asyncio.run(_scored(url, group, criteria, at_once)) for _ in range(rounds)]
    took = statistics.median(measured)
    table = Table(title=f"{group} reports, {criteria} criteria, {at_once} at once, {seconds:g} s each")
    for column in ("", "seconds", "times the minimum"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(f"median of {rounds}", f"{took:.3f}", f"{took / ideal:.2f}")
    table.add_row("best", f"{min(measured):.3f}", f"{min(measured) / ideal:.2f}")
    table_console().print(table)


async def _scored(url: str, num_reports: int, num_criteria: int, at_once: int) -> float:
    """Seconds to score one group, in its own event loop and with new connections."""
    settings = RubricSettings(base_url=url, model="j", max_concurrency=at_once, evolve=False)
    tokenizer: Tokenizer = _tokenizer()
    judge = RubricJudge(settings, tokenizer)
    fixed = tuple(Criterion(text=f"It names the fact number {number}.") for number in range(num_criteria))
    reports = [
        QueryReport(
            "q", 1, fixed, JudgedReport("Write a report.", "What was found. " * 200, f"Report {number}. " * 200)
        )
        for number in range(num_reports)
    ]
    began = time.monotonic()
    await RubricGroup(settings, judge, None).scored(reports)
    took = time.monotonic() - began
    await judge.close()
    return took


def _tokenizer() -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(scripted_model())
    return tokenizer


def _points(outside: str, inside: list[str]) -> JsonObject:
    return {"points": [{"number": 1, "points": len(inside[-1]) % 3}]}


async def _serve(seconds: float) -> None:
    async with judging(_points) as judge:
        judge.seconds = seconds
        print(judge.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def _judge_process(seconds: float) -> Iterator[str]:
    """Run a judge in its own process; yields its URL."""
    words = [sys.executable, "-m", "benchmarks.bench_rubrics", "--serve", "--seconds", str(seconds)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


if __name__ == "__main__":
    typer.run(main)
