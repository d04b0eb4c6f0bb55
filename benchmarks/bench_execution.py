"""Verdicts per second of the verifiers `code`, `sql`, `shell` (by execution) and `math`, and their CPU time.

Run by `make bench-verifiers`, or with other sizes by `python -m benchmarks.bench_execution --help`. It starts a sandbox
by itself.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from tests.support.factories import make_turn
from verl_pivot.commands.tables import table_console
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers.code import CodeOptions, CodeVerifier
from verl_pivot.verifiers.math import MathOptions, MathVerifier
from verl_pivot.verifiers.math_batches import MAX_PAIRS, FormulaPair, batch_program
from verl_pivot.verifiers.registry import Verifier
from verl_pivot.verifiers.sandboxed import execute
from verl_pivot.verifiers.shell import ShellOptions, ShellVerifier
from verl_pivot.verifiers.shell_effects import ShellEffects
from verl_pivot.verifiers.sql import SqlOptions, SqlVerifier, sql_program

CODE = "print(sum(map(int, input().split())))"
FUNCTION = "def total(numbers):\n    return sum(numbers)"
ASSERTS: JsonObject = {"asserts": ["assert total([1, 2]) == 3", "assert total([]) == 0"]}
TESTS: JsonObject = {"tests": [{"stdin": "1 2", "stdout": "3"}]}
SETUP = "printf 'b\\na\\nc\\n' > names"
QUERY = "SELECT name FROM t WHERE n > 3"
SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, name TEXT); INSERT INTO t VALUES (1, 5, 'a'), (2, 2, 'b');"


class Case(NamedTuple):
    """A verifier, an action to score, and the program that the verifier runs for the action."""

    name: str
    verifier: Verifier
    code: str
    """Code block of the action."""
    expert: str
    """Code block of the expert's action."""
    program: Program
    """The program that the verifier runs for this action."""


def main(
    verdicts: Annotated[int, typer.Option(min=1, help="Verdicts of each verifier in a round.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 5,
) -> None:
    """Print verdicts per second of each verifier, and their ratio to the rate of its programs alone."""
    console = table_console()
    with console.status("measuring takes a few minutes"):
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
        Case("sql, sqlite", sql, QUERY, QUERY, sql_program(SqlOptions(scripts=(SCRIPT,)), [QUERY])),
        Case(
            "sql, duckdb", duckdb, QUERY, QUERY, sql_program(SqlOptions(scripts=(SCRIPT,), dialect="duckdb"), [QUERY])
        ),
        Case(
            "shell, execution",
            shell,
            "cat names | sort",
            "sort names",
            effects._program("cat names | sort", num_runs=1),
        ),
    )
    title = f"medians of {num_rounds} rounds; share: verdicts / programs; CPU ms: of one program"
    table = Table("verifier", "verdicts/s", "programs/s", "share", "CPU ms", "undecided", title=title)
    for case in cases:
        await score_samples(case, num_verdicts)  # fills caches, and starts the sandbox
        rates = [
            (
                await timed(num_verdicts, score_samples(case, num_verdicts)),
                await timed(num_verdicts, run_programs(case.program, num_verdicts)),
            )
            for _ in range(num_rounds)
        ]
        with_verifier, alone = (
            statistics.median(each.per_second for each in column) for column in zip(*rates, strict=True)
        )
        share = statistics.median(verdicts.per_second / programs.per_second for verdicts, programs in rates)
        cpu = f"{1000 * await cpu_seconds(case.program):.1f}"
        undecided = sum(verdicts.num_undecided for verdicts, _ in rates)
        table.add_row(case.name, f"{with_verifier:.0f}", f"{alone:.0f}", f"{share:.2f}", cpu, str(undecided))
    sums = [await timed(num_verdicts, score_sums(num_verdicts)) for _ in range(num_rounds)]
    undecided = sum(each.num_undecided for each in sums)
    rate = statistics.median(each.per_second for each in sums)
    table.add_row("math", f"{rate:.0f}", "-", "-", f"{1000 * await cpu_seconds_of_sum():.1f}", str(undecided))
    return table


class Round(NamedTuple):
    """One round of verdicts or programs."""

    per_second: float
    num_undecided: int


async def timed(num: int, work: Awaitable[int]) -> Round:
    """Rate at which `work` completes its `num` verdicts or programs, and how many verdicts are undecided."""
    begin = time.perf_counter()
    undecided = await work
    return Round(num / (time.perf_counter() - begin), undecided)


def num_undecided(verdicts: Sequence[Verdict]) -> int:
    """Number of undecided verdicts on right actions, which may occur on a machine without a free core.

    Raises:
        AssertionError: If a verdict refuses a right action.
    """
    refused = [verdict for verdict in verdicts if verdict.score not in (1.0, None)]
    assert not refused, f"{len(refused)} of {len(verdicts)} right actions are refused, such as {refused[0]}"
    return sum(verdict.score is None for verdict in verdicts)


async def score_samples(case: Case, num_verdicts: int) -> int:
    """Score the same right action many times, and count undecided verdicts."""
    action, expert = (_action(f"```\n{each}\n```") for each in (case.code, case.expert))
    verdicts = await asyncio.gather(*(case.verifier(action, make_turn(expert=expert)) for _ in range(num_verdicts)))
    return num_undecided(verdicts)


async def run_programs(program: Program, num_programs: int) -> int:
    """Run a program many times without the verifier; returns 0, since no program is undecided."""
    results = await execute([program] * num_programs)
    assert all(result.status == "ok" for result in results), results[0]
    return 0


async def cpu_seconds(program: Program) -> float:
    """User and system CPU seconds of a program in the sandbox, the smallest of several runs."""
    results = await (await shared_sandbox()).run_many([program] * 9, deadline_seconds=300.0)
    return min(result.timing.cpu_seconds or 0.0 for result in results)


async def cpu_seconds_of_sum() -> float:
    """User and system CPU seconds per pair of formulas, in a program that compares as many pairs as it may."""
    pairs = [FormulaPair(str(n), f"{n - 1} + 1", digits=6, seconds=10.0) for n in range(2, MAX_PAIRS + 2)]
    return await cpu_seconds(batch_program(pairs)) / MAX_PAIRS


async def score_sums(num_verdicts: int) -> int:
    """Score answers to different sums, each of which the sandbox has to compare, and count undecided verdicts."""
    verifier = MathVerifier(MathOptions())
    pairs = [
        (_action(rf"\boxed{{{number}}}"), _action(rf"\boxed{{{number - 1} + 1}}"))
        for number in range(2, num_verdicts + 2)
    ]
    verdicts = await asyncio.gather(*(verifier(action, make_turn(expert=expert)) for expert, action in pairs))
    return num_undecided(verdicts)


def _action(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


if __name__ == "__main__":
    typer.run(main)
