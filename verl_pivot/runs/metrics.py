"""Metrics of a run, as a logger writes them -> series over the steps, which grow with the file."""

import json
import math
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from verl_pivot.local.console_log import logged_steps
from verl_pivot.runs.growing_lines import GrowingLines, PlacedLine


class MetricSeries:
    """All metrics of one run; other threads may ask for them while one reads."""

    def __init__(self) -> None:
        self._reader: GrowingLines | None = None
        self._read_steps: dict[int, Mapping[str, float]] = {}
        """{step: its metrics}, to which `read` adds."""
        self._steps: Mapping[int, Mapping[str, float]] = {}
        """What was there when `read` last ended, which nothing changes."""
        self.num_unreadable = 0
        """Number of lines that are not JSON with a step."""

    @property
    def path(self) -> Path | None:
        """The file that was read last; None before any was."""
        return None if self._reader is None else self._reader.path

    @property
    def names(self) -> list[str]:
        return sorted({name for metrics in self._steps.values() for name in metrics})

    @property
    def steps(self) -> list[int]:
        return sorted(self._steps)

    def points(self, name: str) -> list[tuple[int, float]]:
        """[num_points] steps that have the metric as a finite number, with its value; a repeated step counts once."""
        found = [(step, metrics.get(name)) for step, metrics in sorted(self._steps.items(), key=itemgetter(0))]
        return [(step, value) for step, value in found if value is not None and math.isfinite(value)]

    def read(self, path: Path | None) -> bool:
        """Read the new lines; returns whether anything changed.

        Args:
            path: The file, as `TrainingRun.metrics` names it; None if there is none yet.

        Raises:
            OSError: If it cannot be read.
        """
        if path is None:
            return False
        if self._reader is None or self._reader.path != path:
            self._reader = GrowingLines(path)
            self._clear()
        is_changed, is_all = False, False
        while not is_all:
            lines, is_replaced, is_all = self._reader.read()
            if is_replaced:
                self._clear()
            for line in lines:
                self._add(line, is_console=path.suffix == ".log")
            is_changed |= is_replaced or bool(lines)
        self._steps = dict(self._read_steps)
        return is_changed

    def _clear(self) -> None:
        self._read_steps.clear()
        self.num_unreadable = 0

    def _add(self, line: PlacedLine, *, is_console: bool) -> None:
        if is_console:
            for logged in logged_steps(line.text.decode(errors="replace")):
                self._add_metrics(logged.number, logged.metrics)
            return
        try:
            fields = json.loads(line.text.decode())
            step = int(fields["step"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.num_unreadable += 1
            return
        values = fields["data"] if isinstance(fields.get("data"), dict) else fields  # verl's logger nests them
        numbers = {name: float(value) for name, value in values.items() if _is_number(value) and name != "step"}
        self._add_metrics(step, numbers)

    def _add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._read_steps[step] = {**self._read_steps.get(step, {}), **metrics}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
