"""Verdicts per second of `code`, `sql`, `shell` by execution and `math`, and CPU seconds of the first ones' programs.

Run by `make bench-verifiers`, or with other sizes by `python -m benchmarks.bench_execution --help`. It starts a sandbox
by itself.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from tests.support.factories import make_turn
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers.code import CodeOptions, CodeVerifier
from verl_pivot.verifiers.math import MathOptions, MathVerifier
from verl_pivot.verifiers.registry import Verifier
from verl_pivot.verifiers.shell import ShellOptions, ShellVerifier
from verl_pivot.verifiers.shell_effects import ShellEffects
from verl_pivot.verifiers.sql import SqlOptions, SqlVerifier

CODE = "print(sum(map(int, input().split())))"
FUNCTION = "def total(numbers):\n    return sum(numbers)"
ASSERTS: JsonObject = {"asserts": ["assert total([1, 2]) == 3", "assert total([]) == 0"]}
TESTS: JsonObject = {"tests": [{"stdin": "1 2", "stdout": "3"}]}
SETUP = "printf 'b\\na\\nc\\n' > names"
QUERY = "SELECT name FROM t WHERE n > 3"
SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, name TEXT); INSERT INTO t VALUES (1, 5, 'a'), (2, 2, 'b');"


class Case(NamedTuple):
    """One verifier with an action to score, and the program that it runs for it."""

    name: str
    verifier: Verifier
    code: str
    """Code block of the action."""
    expert: str
    """Code block of the expert's."""
    program: Program
    """The program that the verifier runs for this action."""


def main(
    verdicts: Annotated[int, typer.Option(min=1, help="Verdicts of each verifier in a round.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
) -> None:
    """Print verdicts per second of each verifier, and its share of the rate of the programs alone."""
    console = Console()
    with console.status("a few minutes"):
        table = asyncio.run(measure(verdicts, rounds))
    console.print(table)


async def measure(num_verdicts: int, num_rounds: int) -> Table:
    code = CodeVerifier(CodeOptions.model_validate(TESTS))
    asserts = CodeVerifier(CodeOptions.model_validate(ASSERTS))
    sql, duckdb = (SqlVerifier(SqlOptions(scripts=(SCRIPT,), dialect=dialect)) for dialect in ("sqlite", "duckdb"))
    shell, effects = ShellVerifier(ShellOptions(mode="execution", setup=SETUP)), ShellEffects(SETUP, 2, 10.0)
    cases = (
        Case("code, tests", code, CODE, CODE, code._program(CODE, stdin="1 2", args=())),
        Case("code, asserts", asserts, FUNCTION, FUNCTION, asserts._assert_program(FUNCTION)),
        Case("sql, sqlite", sql, QUERY, QUERY, sql._program(QUERY)),
        Case("sql, duckdb", duckdb, QUERY, QUERY, duckdb._program(QUERY)),
        Case(
            "shell, execution",
            shell,
            "cat names | sort",
            "sort names",
            effects._program("cat names | sort", num_runs=1),
        ),
    )
    title = f"medians of {num_rounds} rounds; CPU of one program, with its variants"
    table = Table("verifier", "verdicts/s", "programs/s", "share", "CPU ms", title=title)
    for case in cases:
        await score_samples(case, num_verdicts)  # fills caches and starts what the first verdict starts
        rates = [
            (
                await per_second(num_verdicts, score_samples(case, num_verdicts)),
                await per_second(num_verdicts, run_programs(case.program, num_verdicts)),
            )
            for _ in range(num_rounds)
        ]
        with_verifier, alone = (statistics.median(column) for column in zip(*rates, strict=True))
        share = statistics.median(verdicts / programs for verdicts, programs in rates)
        cpu = f"{1000 * await cpu_seconds(case.program):.1f}"
        table.add_row(case.name, f"{with_verifier:.0f}", f"{alone:.0f}", f"{share:.2f}", cpu)
    sums = [await per_second(num_verdicts, score_sums(num_verdicts)) for _ in range(num_rounds)]
    table.add_row("math", f"{statistics.median(sums):.0f}", "-", "-", "-")
    return table


async def per_second(num: int, work: Awaitable[object]) -> float:
    """Rate at which `work` does its `num` verdicts or programs."""
    begin = time.perf_counter()
    await work
    return num / (time.perf_counter() - begin)


def check_accepted(verdicts: Sequence[Verdict]) -> None:
    """Raise an AssertionError that names the first verdict on a right action which does not accept it."""
    others = [verdict for verdict in verdicts if verdict.score != 1.0]
    assert not others, f"{len(others)} of {len(verdicts)} right actions are not accepted, such as {others[0]}"


async def score_samples(case: Case, num_verdicts: int) -> None:
    """Score the same right action many times."""
    action, expert = (_action(f"```\n{each}\n```") for each in (case.code, case.expert))
    verdicts = await asyncio.gather(*(case.verifier(action, make_turn(expert=expert)) for _ in range(num_verdicts)))
    check_accepted(verdicts)


async def run_programs(program: Program, num_programs: int) -> None:
    """Run the program of such an action as many times, without the verifier."""
    results = await (await shared_sandbox()).run_many([program] * num_programs, deadline_seconds=300.0)
    assert all(result.status == "ok" for result in results), results[0]


async def cpu_seconds(program: Program) -> float:
    """User and system seconds of a program in the sandbox, the least of some runs."""
    results = await (await shared_sandbox()).run_many([program] * 9, deadline_seconds=300.0)
    return min(result.timing.cpu_seconds or 0.0 for result in results)


async def score_sums(num_verdicts: int) -> None:
    """Score answers to different sums, each of which the sandbox has to compare."""
    verifier = MathVerifier(MathOptions())
    pairs = [
        (_action(rf"\boxed{{{number}}}"), _action(rf"\boxed{{{number - 1} + 1}}"))
        for number in range(2, num_verdicts + 2)
    ]
    verdicts = await asyncio.gather(*(verifier(action, make_turn(expert=expert)) for expert, action in pairs))
    check_accepted(verdicts)


def _action(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


if __name__ == "__main__":
    typer.run(main)
