"""Verdicts per second of `code`, `sql` and `math`; the first two beside the same programs without a verifier.

Run by `make bench-verifiers`. Starts a sandbox by itself, and prints the medians of several rounds.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable

from rich.console import Console
from rich.table import Table

from tests.support.factories import make_turn
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import JsonObject, Message, Role
from verl_pivot.verifiers.code import CodeOptions, CodeVerifier
from verl_pivot.verifiers.math import MathOptions, MathVerifier
from verl_pivot.verifiers.registry import Verifier
from verl_pivot.verifiers.sql import SqlOptions, SqlVerifier

NUM_ROUNDS = 5
NUM_VERDICTS = 300
CODE = "print(sum(map(int, input().split())))"
TESTS: JsonObject = {"tests": [{"stdin": "1 2", "stdout": "3"}]}
QUERY = "SELECT name FROM t WHERE n > 3"
SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, name TEXT); INSERT INTO t VALUES (1, 5, 'a'), (2, 2, 'b');"


async def rate(work: Awaitable[object]) -> float:
    """Verdicts or programs per second."""
    begin = time.perf_counter()
    await work
    return NUM_VERDICTS / (time.perf_counter() - begin)


async def score_samples(verifier: Verifier, text: str) -> None:
    action = Message(role=Role.ASSISTANT, content=f"```\n{text}\n```")
    verdicts = await asyncio.gather(*(verifier(action, make_turn(expert=action)) for _ in range(NUM_VERDICTS)))
    assert all(verdict.score == 1.0 for verdict in verdicts), verdicts[0]


async def programs_alone(program: Program) -> None:
    results = await (await shared_sandbox()).run_many([program] * NUM_VERDICTS, deadline_seconds=300.0)
    assert all(result.status == "ok" for result in results), results[0]


async def measure() -> Table:
    code = CodeVerifier(CodeOptions.model_validate(TESTS))
    sql = SqlVerifier(SqlOptions(scripts=(SCRIPT,)))
    cases = {
        "code": (code, CODE, code._program(CODE, stdin="1 2", args=())),
        "sql": (sql, QUERY, sql._program(QUERY)),
    }
    table = Table("verifier", "verdicts/s", "programs/s", "share", title=f"medians of {NUM_ROUNDS} rounds")
    for name, (verifier, text, program) in cases.items():
        await score_samples(verifier, text)  # warms every path
        pairs = [
            (await rate(score_samples(verifier, text)), await rate(programs_alone(program))) for _ in range(NUM_ROUNDS)
        ]
        with_verifier, by_itself = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        share = statistics.median(one / other for one, other in pairs)
        table.add_row(name, f"{with_verifier:.0f}", f"{by_itself:.0f}", f"{share:.2f}")
    rates = [await rate(score_sums()) for _ in range(NUM_ROUNDS)]
    table.add_row("math", f"{statistics.median(rates):.0f}", "-", "-")
    return table


async def score_sums() -> None:
    """Score answers to different sums, each of which the sandbox has to compare."""
    verifier = MathVerifier(MathOptions())
    pairs = [(rf"\boxed{{{number}}}", rf"\boxed{{{number - 1} + 1}}") for number in range(NUM_VERDICTS)]
    verdicts = await asyncio.gather(*(verifier(_say(answer), make_turn(expert=_say(right))) for right, answer in pairs))
    assert all(verdict.score == 1.0 for verdict in verdicts), verdicts[0]


def _say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def main() -> None:
    console = Console()
    with console.status("some 8,000 verdicts, a few minutes"):
        table = asyncio.run(measure())
    console.print(table)


if __name__ == "__main__":
    main()
