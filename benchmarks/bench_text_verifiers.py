"""Verdicts per second on one core, of the verifiers that compare texts, except `tool_call`.

Run by `make bench-verifiers`, or with other sizes by `python -m benchmarks.bench_text_verifiers --help`. Seconds are
CPU seconds, so that other work on the machine changes them little. No verdict uses the sandbox.
"""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from tests.support.factories import make_turn
from verl_pivot.commands.tables import table_console
from verl_pivot.types import JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.registry import get_verifier

PATH = "/repo/total.py"
FUNCTION = """def total_{number}(numbers):
    # of whole cents
    result = 0
    for number in numbers:
        if number > {number}:
            result += number
    return result


"""
FILE = "".join(FUNCTION.format(number=number) for number in range(28))[:-1]
"""A file of 251 lines."""
COMMAND = "rm -rf build/old && grep -n 'def main' src/app.py | head -n 5 > out.txt"
SCREEN = Message(role=Role.USER, content="New Terminal Output:\n\nroot@box:/app# ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A verifier, the expert's action, and actions of the policy to compare with it."""

    verifier: str
    options: JsonObject
    expert: Message
    actions: tuple[Message, ...]
    target: int | None = None
    """Verdicts per second that must be reached; None without a target."""


def text(content: str) -> Message:
    return Message(role=Role.ASSISTANT, content=content)


def block(command: str) -> Message:
    return text(f"```bash\n{command}\n```")


def batch(*keystrokes: str) -> Message:
    commands = [{"keystrokes": keys, "duration": 0.1} for keys in keystrokes]
    return text(json.dumps({"analysis": "a", "plan": "b", "commands": commands}))


def edit(new: str) -> Message:
    arguments: JsonObject = {"command": "str_replace", "path": PATH, "old_str": "number > 12", "new_str": new}
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="editor", arguments=arguments),))


COMPARISONS = {
    "qa": Comparison(
        verifier="qa",
        options={},
        expert=text("<answer>The Eiffel Tower</answer>"),
        actions=(text("It is <answer>Eiffel tower</answer>."), text("<answer>Louvre</answer>"), text("no")),
        target=57_000,
    ),
    "search_query": Comparison(
        verifier="search_query",
        options={},
        expert=text("<search>year the Eiffel Tower was built</search>"),
        actions=(
            text("<search>Eiffel Tower built year</search>"),
            text("<search>year the CN Tower was built</search>"),
        ),
    ),
    "constraints": Comparison(
        verifier="constraints",
        options={"words": {"at_most": 20}, "pattern": "(?s).*built.*", "keywords": ["Eiffel Tower"]},
        expert=text("The Eiffel Tower was built in 1889."),
        actions=(text("The Eiffel Tower was built in 1889."), text("It was built in 1889."), text("I do not know.")),
    ),
    "shell, form": Comparison(
        verifier="shell",
        options={},
        expert=block(COMMAND),
        actions=(block(COMMAND), *(block(COMMAND.replace("build/old", f"build/{number}")) for number in range(50))),
        target=4_400,
    ),
    "terminus, form": Comparison(
        verifier="terminus",
        options={},
        expert=batch("ls -la src\n", f"{COMMAND}\n"),
        actions=tuple(batch("ls -la src\n", f"{COMMAND.replace('old', str(number))}\n") for number in range(50)),
        target=6_400,
    ),
    "terminus, similarity": Comparison(
        verifier="terminus",
        options={"mode": "similarity"},
        expert=batch("ls -la src\n", "make\n"),
        actions=tuple(batch("ls -la src\n", f"make {number}\n") for number in range(50)),
        target=6_400,
    ),
    "edit, 251 lines of Python": Comparison(
        verifier="edit",
        options={"files": {PATH: FILE}},
        expert=edit("number >= 12"),
        actions=(
            *(edit(f"(number >= 12)  # {number}") for number in range(2_000)),
            *(edit(f"number > {number}") for number in range(2_000)),
        ),
        target=1_000,
    ),
}


def main(
    verdicts: Annotated[int, typer.Option(min=1, help="Verdicts of each verifier in a round.")] = 4_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
) -> None:
    """Print verdicts per CPU second of each verifier."""
    table = Table("verifier", "per second", "target", title=f"one core, median of {rounds} rounds")
    for name, comparison in COMPARISONS.items():
        rate = statistics.median(asyncio.run(measure(comparison, verdicts)) for _ in range(rounds))
        table.add_row(name, f"{rate:,.0f}", _target(rate, comparison.target))
    table_console().print(table)


def _target(rate: float, target: int | None) -> str:
    return "" if target is None else f">= {target:,}: {'yes' if rate >= target else 'NO'}"


async def measure(comparison: Comparison, num_verdicts: int) -> float:
    """Verdicts per CPU second."""
    verifier = get_verifier(comparison.verifier, comparison.options)
    turn = make_turn(state=[SCREEN], expert=comparison.expert)
    begin = time.process_time()
    for index in range(num_verdicts):
        await verifier(comparison.actions[index % len(comparison.actions)], turn)
    return num_verdicts / (time.process_time() - begin)


if __name__ == "__main__":
    typer.run(main)
