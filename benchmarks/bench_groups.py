"""Cost of control groups: calls per second of a sandbox service of root, relative to that of an ordinary user.

Run by `make bench-sandbox`. Root's service gives each program its own control group and user id (tier T1), and the
other gives neither (tier T2). Both services run at once, are measured in turn, and are otherwise the same.
"""

import asyncio
from typing import Annotated

import typer

from tests.support.sandbox_services import IS_ROOT, Kind, start_service
from verl_pivot.commands.tables import table_console
from verl_pivot.sandbox.bench.rates import BARE, SCIENCE, http_rate
from verl_pivot.sandbox.bench.report import BenchRow, at_least, median, median_ratio, number, table
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import Program

MIN_RATIO = 0.85
"""Smallest ratio of the two rates that reaches the target."""
PROGRAMS = {
    "science": SCIENCE,
    "bare": BARE,
    "sympy": "from sympy import *\nx = symbols('x')\nassert factor(x**2 - 4) == (x - 2)*(x + 2)\nprint(1)",
}


def main(
    num_calls: Annotated[int, typer.Option(min=1, help="Calls per round, submitted at once.")] = 1000,
    num_rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with both services in turn.")] = 5,
) -> None:
    """Compare the rates of a service with control groups and of one without."""
    console = table_console()
    if not IS_ROOT:
        console.print("groups: not measured, since only root can start a service with control groups on this machine")
        return
    plain, grouped = start_service(Kind.ZYGOTE), start_service(Kind.BY_ROOT)
    try:
        if grouped.tier != "T1":
            console.print(f"groups: not measured, since this machine gives no control groups (tier {grouped.tier})")
            return
        rows = asyncio.run(_measure(plain.client(), grouped.client(), num_calls, num_rounds))
    finally:
        plain.stop()
        grouped.stop()
    console.print(table(rows, f"control groups, {num_rounds} rounds of {num_calls} calls"))


async def _measure(plain: Sandbox, grouped: Sandbox, num_calls: int, num_rounds: int) -> list[BenchRow]:
    rows = []
    async with plain, grouped:
        for name, code in PROGRAMS.items():
            without: list[float] = []
            with_groups: list[float] = []
            for client in (plain, grouped):
                await http_rate(client, Program(code=code), 32)
            for _ in range(num_rounds):
                without.append(await http_rate(plain, Program(code=code), num_calls))
                with_groups.append(await http_rate(grouped, Program(code=code), num_calls))
            note = f"{number(median(with_groups))} and {number(median(without))} calls/s"
            ratio = median_ratio(with_groups, without)
            what = f"{name}: with control groups / without"
            rows.append(
                BenchRow(part="groups", name=what, value=ratio, unit="x", target=at_least(MIN_RATIO), note=note)
            )
    return rows


if __name__ == "__main__":
    typer.run(main)
