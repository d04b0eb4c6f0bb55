"""Seconds per trained rollout if steps leave their slowest groups for later, beside steps that wait for all.

Run by `make bench-tail`, or with other sizes by `python -m benchmarks.bench_tail --help`. Engines and rollouts are
simulated, as by `verl-pivot route simulate`, and the routing policy is `kv_forecast`.
"""

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.routing.simulator.engine import RATES
from verl_pivot.routing.simulator.training import TAIL_RULES, SimulatedTraining, simulate_training
from verl_pivot.routing.simulator.workload import all_scenarios

BASELINE = "wait"


class Job(NamedTuple):
    """One training to simulate."""

    scenario: str
    seed: int
    rule: str
    num_steps: int


def main(
    scenarios: Annotated[
        str, typer.Option(help="Scenarios of `verl-pivot route simulate` with 16 engines, separated by commas.")
    ] = "A,M,F,L",
    rules: Annotated[str, typer.Option(help="Rules to compare with `wait`, comma-separated.")] = ",".join(TAIL_RULES),
    seeds: Annotated[int, typer.Option(min=1, help="Trainings under each rule, each with its own seed.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of each training, after 2 to warm up.")] = 5,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for one JSON line per training. Run again, the command skips trainings in this file."),
    ] = None,
) -> None:
    """Print a table per scenario."""
    names = list(dict.fromkeys([BASELINE, *rules.split(",")]))
    jobs = [
        Job(scenario, seed, rule, steps) for scenario in scenarios.split(",") for seed in range(seeds) for rule in names
    ]
    found = {} if out is None or not out.exists() else read_trainings(out)
    left = [job for job in jobs if job not in found]
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        for job, training in zip(left, pool.map(run, left), strict=True):
            found[job] = training
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**job._asdict(), **asdict(training)}) + "\n")
    for scenario in scenarios.split(","):
        rows = {rule: [found[Job(scenario, seed, rule, steps)] for seed in range(seeds)] for rule in names}
        table_console().print(table(scenario, rows))


def read_trainings(path: Path) -> dict[Job, SimulatedTraining]:
    """Trainings that an earlier run has written."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        job = Job(**{name: values.pop(name) for name in Job._fields})
        found[job] = SimulatedTraining(**values)
    return found


def run(job: Job) -> SimulatedTraining:
    return simulate_training(
        all_scenarios()[job.scenario], job.seed, TAIL_RULES[job.rule], RATES["estimated"],
        num_steps=job.num_steps, num_warmup_steps=2,
    )  # fmt: skip


def table(scenario: str, rows: dict[str, list[SimulatedTraining]]) -> Table:
    """Table of each rule's means over the seeds, with columns in the order of SimulatedTraining's fields."""
    title = f"{scenario}: means of {len(rows[BASELINE])} trainings; ms of rollouts per trained rollout"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for column in (
        "rule", "ms", "speed-up", "slowest seed", "length", "thrown away", "recomputed", "steps", "most steps",
    ):  # fmt: skip
        shown.add_column(column, justify="left" if column == "rule" else "right", no_wrap=column == "rule")
    for rule, trainings in rows.items():
        speed_ups = _speed_ups(trainings, rows[BASELINE])
        shown.add_row(
            rule,
            f"{1000 * fmean(each.rollout_seconds for each in trainings):.0f}",
            f"{math.exp(fmean(map(math.log, speed_ups))):.2f}",
            f"{min(speed_ups):.2f}",
            f"{fmean(each.length_ratio for each in trainings):.2f}",
            f"{fmean(each.wasted_share for each in trainings):.0%}",
            f"{fmean(each.recomputed_share for each in trainings):.0%}",
            f"{fmean(each.mean_steps for each in trainings):.1f}",
            str(max(each.max_steps for each in trainings)),
        )
    return shown


def _speed_ups(trainings: Sequence[SimulatedTraining], baseline: Sequence[SimulatedTraining]) -> list[float]:
    return [base.rollout_seconds / each.rollout_seconds for base, each in zip(baseline, trainings, strict=True)]


if __name__ == "__main__":
    typer.run(main)
