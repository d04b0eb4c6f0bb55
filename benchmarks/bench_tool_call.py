"""Verdicts of the verifier `tool_call` per minute on one core, by mode, beside decoding the same calls as JSON.

Run by `make bench-verifiers`, or with other sizes by `python -m benchmarks.bench_tool_call --help`.
"""

import asyncio
import json
import statistics
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.support.tool_call_attacks import ARGUMENTS, ATTACKS, RIGHT, turn_of
from verl_pivot.data.actions import parse_action
from verl_pivot.types import Message
from verl_pivot.verifiers.scoring import score_completion

MODES = ("functional", "strict", "name_only", "nemo_gym", "toolrl")
TARGET_PER_MINUTE = 100_000
COMPLETIONS = [text for text in [RIGHT, *ATTACKS.values()] if len(text) < 10_000]


def main(
    verdicts: Annotated[int, typer.Option(min=1, help="Verdicts of each mode in a round.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
) -> None:
    """Print verdicts per minute of each mode, and how many texts of arguments json.loads decodes in that time."""
    assert isinstance(parse_action(RIGHT, ended=True), Message), RIGHT
    table = Table("what", "per minute", "target", title=f"one core, median of {rounds} rounds")
    for mode in MODES:
        rate = statistics.median(asyncio.run(measure(mode, verdicts)) for _ in range(rounds))
        is_reached = "yes" if rate >= TARGET_PER_MINUTE else "NO"
        table.add_row(f"verdicts, {mode}", f"{rate:,.0f}", f">= {TARGET_PER_MINUTE:,}: {is_reached}")
    rate = statistics.median(measure_json(verdicts) for _ in range(rounds))
    table.add_row("json.loads of the arguments", f"{rate:,.0f}", "")
    Console().print(table)


async def measure(mode: str, num_verdicts: int) -> float:
    """Verdicts per minute; parsing the text of the completion is included."""
    turn = turn_of(mode)
    begin = time.perf_counter()
    for index in range(num_verdicts):
        await score_completion(COMPLETIONS[index % len(COMPLETIONS)], True, turn)
    return num_verdicts / (time.perf_counter() - begin) * 60


def measure_json(num_texts: int) -> float:
    """JSON texts decoded per minute."""
    text = json.dumps(ARGUMENTS)
    begin = time.perf_counter()
    for _ in range(num_texts):
        json.loads(text)
    return num_texts / (time.perf_counter() - begin) * 60


if __name__ == "__main__":
    typer.run(main)
