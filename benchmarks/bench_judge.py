"""Seconds until a judge has scored many turns, beside the minimum that the judge's own speed allows.

Run by `make bench-judge`, or with other sizes by `python -m benchmarks.bench_judge --help`. The judge is a server in a
process of its own that takes a fixed time for each answer; client, prompts, cache and parser are those of training.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated

import typer
from rich.table import Table

from tests.support.scripted_engine import scripted_model
from verl_pivot.commands.tables import table_console
from verl_pivot.configuration import configs_dir
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TurnJudge

_BROKEN_EVERY = 100
"""One in so many connections breaks, in the row of the table about broken connections."""


def main(
    turns: Annotated[int, typer.Option(min=4, help="Judged turns, four in each trajectory.")] = 1024,
    at_once: Annotated[int, typer.Option(min=1, help="Requests to the judge at a time.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds that the judge takes for an answer.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
    rollout_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of the longest rollout of a step.")] = 6.0,
) -> None:
    """Print the seconds to judge all turns beside the minimum, and the seconds of a step with and without a judge."""
    ideal = turns / at_once * seconds
    table = Table(title=f"{turns} turns, {at_once} at once, {seconds:g} s each: medians of {rounds} rounds")
    for column in ("", "seconds", "times the minimum"):
        table.add_column(column, justify="right" if column else "left")
    for name, every in (("judged", 0), (f"judged, one of {_BROKEN_EVERY} connections breaks", _BROKEN_EVERY)):
        with judge_process(seconds, every) as url:
            measured = [asyncio.run(judge_all(url, turns // 4, at_once)) for _ in told(name, rounds)]
        table.add_row(name, f"{statistics.median(measured):.2f}", f"{statistics.median(measured) / ideal:.2f}")
    name = f"step of rollouts that take up to {rollout_seconds:g} s"
    with judge_process(seconds, 0) as url:
        steps = [
            [asyncio.run(step(asked, turns // 4, at_once, rollout_seconds)) for asked in (None, url)]
            for _ in told(name, rounds)
        ]
    without, judged = (statistics.median(each) for each in zip(*steps, strict=True))
    table.add_row(f"{name}, without a judge", f"{without:.2f}", "1.00")
    table.add_row(f"{name}, judged", f"{judged:.2f}", f"{judged / without:.2f}")
    table_console().print(table)


def told(name: str, rounds: int) -> Iterator[int]:
    """Numbers of the rounds; each is printed on stderr before the round begins."""
    for number in range(rounds):
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
        yield number


async def judge_all(url: str, num_trajectories: int, at_once: int) -> float:
    """Seconds until all turns are judged, of trajectories that end at the same time."""
    return await _judge(url, [0.0] * num_trajectories, at_once)


async def step(url: str | None, num_trajectories: int, at_once: int, longest: float) -> float:
    """Seconds until rollouts of different durations have ended and are judged.

    Args:
        url: Address of the judge; None to judge nothing.
        num_trajectories: Rollouts, of four judged turns each.
        at_once: Requests to the judge at a time.
        longest: Seconds of the longest rollout.
    """
    lengths = random.Random(0)
    rollouts = [longest, *(lengths.uniform(0.0, longest) for _ in range(num_trajectories - 1))]
    if url is not None:
        return await _judge(url, rollouts, at_once)
    began = time.monotonic()
    await asyncio.gather(*map(asyncio.sleep, rollouts))
    return time.monotonic() - began


async def _judge(url: str, rollouts: list[float], at_once: int) -> float:
    tokenizer = _tokenizer()
    with tempfile.TemporaryDirectory() as cache_dir:
        settings = ProcessSettings(
            base_url=url,
            model="judge",
            principles=str(configs_dir() / "principles" / "search.yaml"),
            max_concurrency=at_once,
            cache_dir=cache_dir,
        )
        judge = TurnJudge(settings, tokenizer)
        began = time.monotonic()

        async def roll(number: int, seconds: float) -> list[float | None]:
            await asyncio.sleep(seconds)
            judged = await judge.judge(f"Question {number}?", _turns(number))
            return [turn.score for turn in judged.turns]

        scores = await asyncio.gather(*(roll(number, each) for number, each in enumerate(rollouts)))
        seconds = time.monotonic() - began
        await judge.close()
    for number, each in enumerate(scores):
        grades = [None if score is None else round(score * 10) for score in each]
        assert grades == [_grade(number, turn) for turn in range(4)], f"trajectory {number} got {grades}"
    return seconds


def _grade(trajectory: int, turn: int) -> int:
    return (trajectory * 4 + turn) % 11


def _turns(trajectory: int) -> list[ShownTurn]:
    """Four turns of some hundred words, each with the grade that the judge is to give, and a final answer."""
    thoughts = "I think. " * 30
    found = "What the search engine found about it. " * 40
    judged = [
        ShownTurn(text=f"turn {trajectory}/{turn} grade {_grade(trajectory, turn)}. {thoughts}", observation=found)
        for turn in range(4)
    ]
    return [*judged, ShownTurn(text="The answer.")]


@cache
def _tokenizer() -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(scripted_model())
    return tokenizer


@contextmanager
def judge_process(seconds: float, broken_every: int) -> Iterator[str]:
    """Run a judge in its own process; yields its URL."""
    options = ("--seconds", str(seconds), "--broken-every", str(broken_every))
    command = [sys.executable, "-m", "benchmarks.judge_server", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "stdout is a pipe"
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit("the judge did not start: see its message above")
        yield url


if __name__ == "__main__":
    typer.run(main)
