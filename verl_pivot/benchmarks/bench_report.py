"""Measured values -> Rows, each beside its target -> a table for people and JSON for programs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.table import Table


class Bound(StrEnum):
    AT_LEAST = ">="
    AT_MOST = "<="


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a value must reach."""

    bound: Bound
    value: float

    def is_reached_by(self, value: float) -> bool:
        return value >= self.value if self.bound is Bound.AT_LEAST else value <= self.value


def at_least(value: float) -> Target:
    return Target(bound=Bound.AT_LEAST, value=value)


def at_most(value: float) -> Target:
    return Target(bound=Bound.AT_MOST, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    Example:
        Row(part="science", name="calls/s against bubblewrap per call", value=71.3, unit="x", target=at_least(60.0))
    """

    part: str
    name: str
    value: float | None
    """None where it could not be measured; the note says why."""
    unit: str = ""
    target: Target | None = None
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """None where there is no target."""
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
    """The smallest value that at least `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Over rounds of what was measured in turn: a load that changes between rounds cancels out."""
    return median([above / below for above, below in zip(numerators, denominators, strict=True)])


def table(rows: Sequence[Row], title: str) -> Table:
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


def _measured(row: Row) -> str:
    return "-" if row.value is None else f"{number(row.value)} {row.unit}".strip()


def _target(row: Row) -> str:
    return "" if row.target is None else f"{row.target.bound} {number(row.target.value)} {row.unit}".strip()


def _reached(row: Row) -> str:
    words: Mapping[bool | None, str] = {None: "", True: "[green]yes[/green]", False: "[red]NO[/red]"}
    return words[row.is_reached]


def number(value: float) -> str:
    """Three significant digits, and counts in full."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
