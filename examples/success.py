"""Evaluations of units on whole tasks -> a table of successes with intervals, a plot of them, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import UnitResult, difference_as_json, gain, shown_difference
from verl_pivot.data.rollout_dumps import DumpedOutcome, read_rollouts
from verl_pivot.statistics import Interval, PairedDifference, wilson_interval
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decided trajectory on a held-out task."""

    prompt_id: str
    em: float
    """1 if the task was done, else 0."""
    num_calls: int


Result = UnitResult[Played]
"""Results of one unit, which is one arm with one seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRow:
    """Results of one unit on the held-out tasks."""

    arm: str
    seed: int
    success: float
    interval: Interval
    """Wilson's interval over the tasks."""
    over_base: PairedDifference | None
    """Success minus the base policy's; None for the base policy itself, or if it was not run."""
    calls: float
    """Mean number of calls of a trajectory."""

    def as_dict(self) -> JsonObject:
        return {
            "arm": self.arm,
            "seed": self.seed,
            "success": self.success,
            "interval": [self.interval.low, self.interval.high],
            "success over base": difference_as_json(self.over_base),
            "calls": self.calls,
        }


def _score(row: DumpedOutcome) -> float | None:
    return row.score


def read_dump(path: Path, outcome: Callable[[DumpedOutcome], float | None] = _score) -> list[Played]:
    """All decided trajectories of a dump.

    Args:
        path: The dump.
        outcome: 1 if a trajectory did its task, 0 if not, None if that is undecided; the default is its score.
    """
    return [
        Played(prompt_id=row.record.prompt_id, em=success, num_calls=row.record.num_calls)
        for row in read_rollouts(path)
        if (success := outcome(row)) is not None and row.record is not None and not row.record.is_masked
    ]


def success_rows(results: Sequence[Result], arms: Sequence[str]) -> list[SuccessRow]:
    """One row for each unit, in the order of arms and seeds; the first of the arms is the base policy."""
    base = {each.seed: each.held_out for each in results if each.arm == arms[0]}
    ordered = sorted(results, key=lambda each: (arms.index(each.arm), each.seed))
    return [_row(each, {} if each.arm == arms[0] else base) for each in ordered]


def _row(result: Result, base: Mapping[int, Sequence[Played]]) -> SuccessRow:
    played = result.held_out
    if not played:
        raise SystemExit(f"{result.arm}, seed {result.seed}: no trajectory on a held-out task was decided")
    success = sum(each.em for each in played) / len(played)
    return SuccessRow(
        arm=result.arm,
        seed=result.seed,
        success=success,
        interval=wilson_interval(success, len(played)),
        over_base=gain(base[result.seed], played) if result.seed in base else None,
        calls=sum(each.num_calls for each in played) / len(played),
    )


def write(found: Sequence[SuccessRow], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json."""
    content: JsonObject = {"rows": [each.as_dict() for each in found], "gaps": [*gaps]}
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")


def draw(found: Sequence[SuccessRow], path: Path) -> None:
    """Plot the success of each arm and seed with its interval."""
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    arms = list(dict.fromkeys(row.arm for row in found))
    for seed in sorted({row.seed for row in found}):
        rows = [row for row in found if row.seed == seed]
        below = [row.success - row.interval.low for row in rows]
        above = [row.interval.high - row.success for row in rows]
        places = [arms.index(row.arm) + 0.1 * seed for row in rows]
        panel.errorbar(places, [row.success for row in rows], [below, above], fmt="o", capsize=3, label=f"seed {seed}")
    panel.set(xticks=range(len(arms)), xticklabels=arms, ylabel="held-out tasks done", ylim=(0, 1))
    panel.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(found: Sequence[SuccessRow], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out tasks, one sampled trajectory each", title_justify="left")
    for column in ("arm", "seed", "success", "over base", "calls"):
        table.add_column(column, overflow="fold")
    for row in found:
        success = f"{row.success:.3f} [{row.interval.low:.3f}, {row.interval.high:.3f}]"
        table.add_row(row.arm, str(row.seed), success, shown_difference(row.over_base), f"{row.calls:.2f}")
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)
