"""Verdicts of `tool_call` per minute and core, by mode, beside decoding the same calls as JSON.

Run by `make bench-verifiers`. Prints the median of several rounds.
"""

import asyncio
import json
import statistics
import time

from rich.console import Console
from rich.table import Table

from tests.hostile.test_tool_call_attacks import ARGUMENTS, ATTACKS, RIGHT, turn_of
from verl_pivot.data.actions import parse_action
from verl_pivot.types import Message
from verl_pivot.verifiers.scoring import score_completion

MODES = ("functional", "strict", "name_only", "nemo_gym", "toolrl")
NUM_ROUNDS = 5
NUM_VERDICTS = 20_000
TARGET_PER_MINUTE = 100_000
TEXTS = [text for text in [RIGHT, *ATTACKS.values()] if len(text) < 10_000]


async def measure(mode: str) -> float:
    """Verdicts per minute, parsing of the completion's text included."""
    turn = turn_of(mode)
    begin = time.perf_counter()
    for index in range(NUM_VERDICTS):
        await score_completion(TEXTS[index % len(TEXTS)], True, turn)
    return NUM_VERDICTS / (time.perf_counter() - begin) * 60


def measure_json() -> float:
    """JSON texts decoded per minute."""
    text = json.dumps(ARGUMENTS)
    begin = time.perf_counter()
    for _ in range(NUM_VERDICTS):
        json.loads(text)
    return NUM_VERDICTS / (time.perf_counter() - begin) * 60


def main() -> None:
    assert isinstance(parse_action(RIGHT, ended=True), Message)
    table = Table("what", "per minute", "target", title=f"one core, median of {NUM_ROUNDS} rounds")
    for mode in MODES:
        rate = statistics.median(asyncio.run(measure(mode)) for _ in range(NUM_ROUNDS))
        is_reached = "yes" if rate >= TARGET_PER_MINUTE else "NO"
        table.add_row(f"verdicts, {mode}", f"{rate:,.0f}", f">= {TARGET_PER_MINUTE:,}: {is_reached}")
    table.add_row("json.loads of the arguments", f"{statistics.median(measure_json() for _ in range(5)):,.0f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
