"""Measured values and their targets -> rows of a table, for people and as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.table import Table
from rich.text import Text


class Comparator(StrEnum):
    """Side of a target on which a value must lie to reach it."""

    AT_LEAST = ">="
    AT_MOST = "<="


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """Target that a value must reach."""

    bound: Comparator
    value: float

    def is_reached_by(self, value: float) -> bool:
        return value >= self.value if self.bound is Comparator.AT_LEAST else value <= self.value


def at_least(value: float) -> BenchTarget:
    return BenchTarget(bound=Comparator.AT_LEAST, value=value)


def at_most(value: float) -> BenchTarget:
    return BenchTarget(bound=Comparator.AT_MOST, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One measured figure.

    Example:
        BenchRow(part="science", name="zygote / bubblewrap", value=71.3, unit="x", target=at_least(60.0))
    """

    part: str
    name: str
    value: float | None
    """Measured value; None if it could not be measured, and then the note says why."""
    unit: str = ""
    target: BenchTarget | None = None
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Whether the value reaches its target; None without a target."""
        if self.value is None:
            return False
        return None if self.target is None else self.target.is_reached_by(self.value)

    def as_json(self) -> dict[str, object]:
        target = None if self.target is None else {"bound": self.target.bound.value, "value": self.target.value}
        return {
            "part": self.part,
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": target,
            "is_reached": self.is_reached,
            "note": self.note,
        }


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that at least `share` of all values do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of the ratios of each round: a load on the machine that changes between rounds cancels out."""
    return median([above / below for above, below in zip(numerators, denominators, strict=True)])


def table(rows: Sequence[BenchRow], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    for column in ("part", "what", "measured", "target", "reached"):
        shown.add_column(column, no_wrap=column != "what", justify="right" if column == "measured" else "left")
    shown.add_column("how", overflow="fold")
    part = ""
    for row in rows:
        if row.part != part:
            shown.add_section()
        name = row.part if row.part != part else ""
        part = row.part
        shown.add_row(name, row.name, _measured(row), _target(row), _reached(row), row.note)
    return shown


def _measured(row: BenchRow) -> str:
    return "-" if row.value is None else f"{number(row.value)} {row.unit}".strip()


def _target(row: BenchRow) -> str:
    return "" if row.target is None else f"{row.target.bound} {number(row.target.value)} {row.unit}".strip()


def _reached(row: BenchRow) -> Text:
    words: Mapping[bool | None, Text] = {None: Text(), True: Text("yes", "green"), False: Text("NO", "red")}
    return words[row.is_reached]


def number(value: float) -> str:
    """Number as text: three significant digits, and whole numbers in full."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
