"""Display of `verl-pivot tools report`: tool use and trends of each run -> tables, or the same as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import NamedTuple

from rich import box
from rich.table import Table

from verl_pivot.commands.tables import printable, table_console
from verl_pivot.runs.tool_trends import PairTrend, pair_ranges, pair_trends
from verl_pivot.runs.tool_use import StepToolUse
from verl_pivot.runs.trends import MIN_POINTS, SeedRange, Trend
from verl_pivot.types import JsonObject

_LEGEND = """\
calls, tokens  per trajectory; tokens are those that the policy sampled
rho            Spearman's rank correlation over the steps
slope          of the second figure's logarithm over the first one's: the exponent of a power law
d-rho, d-slope rho and slope of the changes from block to block, without the common drift
There are no p-values: steps depend on each other. The range over seeds shows what a repetition changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReport:
    """Content of the report of `verl-pivot tools report`."""

    runs: Mapping[str, Sequence[StepToolUse]]
    """{name of the run: its steps}"""
    block_size: int

    @property
    def trends(self) -> dict[str, tuple[PairTrend, ...]]:
        """{name of the run: trends of every pair}"""
        return {name: pair_trends(steps, self.block_size) for name, steps in self.runs.items()}


def print_report(report: ToolReport) -> None:
    """Print the steps of each run by blocks, the trends of each run, and their ranges over runs."""
    console = table_console()
    for number, (name, steps) in enumerate(report.runs.items(), start=1):
        console.print(printable(f"run {number}: {name}"), highlight=False, soft_wrap=True)
        console.print(_blocks(steps, report.block_size))
    console.print(_trends(report))
    for line in (*_remarks(report), _LEGEND):
        console.print(line, highlight=False, soft_wrap=True)


def report_as_dict(report: ToolReport) -> JsonObject:
    """The report as JSON, with every step."""
    trends = report.trends
    return {
        "block_size": report.block_size,
        "runs": [
            {
                "run": name,
                "steps": [asdict(step) for step in steps],
                "trends": [_as_dict(trend) for trend in trends[name]],
            }
            for name, steps in report.runs.items()
        ],
        "ranges": [_as_dict(each) for each in pair_ranges(list(trends.values()))],
    }


def _as_dict(value: NamedTuple) -> JsonObject:
    return {
        name: _as_dict(each) if isinstance(each, tuple) else each  # type: ignore[arg-type]  # a tuple here has names
        for name, each in value._asdict().items()
    }


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def _blocks(steps: Sequence[StepToolUse], block_size: int) -> Table:
    table = _table(["steps", "calling", "calls", "failing", "tokens", "accuracy", "masked"])
    for begin in range(0, len(steps), block_size):
        block = steps[begin : begin + block_size]
        numbers = str(block[0].step) if len(block) == 1 else f"{block[0].step}-{block[-1].step}"
        table.add_row(
            numbers,
            _share([step.calling_share for step in block]),
            f"{fmean(step.calls for step in block):.2f}",
            _share([step.failing_share for step in block]),
            f"{fmean(step.tokens for step in block):.1f}",
            _share([step.accuracy for step in block]),
            str(sum(step.num_masked for step in block)),
        )
    return table


def _share(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * fmean(known):.1f} %" if known else "-"


def _trends(report: ToolReport) -> Table:
    table = _table(["pair", "run", "rho", "slope", "d-rho", "d-slope"])
    trends = list(report.trends.values())
    for of_pair, ranges in zip(zip(*trends, strict=True), pair_ranges(trends), strict=True):
        for number, trend in enumerate(of_pair, start=1):
            changes = ("", "") if trend.differences is None else _cells(trend.differences)
            pair = f"{trend.first}, {trend.second}" if number == 1 else ""
            table.add_row(pair, str(number), *_cells(trend.levels), *changes)
        if len(trends) > 1:
            found = (ranges.rho, ranges.slope, ranges.difference_rho, ranges.difference_slope)
            table.add_row("", "all", *map(_range, found))
        table.add_section()
    return table


def _cells(trend: Trend) -> tuple[str, str]:
    return _number(trend.rho), _number(trend.slope)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _range(found: SeedRange | None) -> str:
    return "" if found is None else f"{found.low:.2f} to {found.high:.2f}"


def _remarks(report: ToolReport) -> Iterator[str]:
    """Sentences about what is missing from the table of trends."""
    size = report.block_size
    for number, steps in enumerate(report.runs.values(), start=1):
        if len(steps) // size - 1 < MIN_POINTS:
            yield (
                f"run {number}: {len(steps)} steps are too few for d-rho and d-slope, which need "
                f"{(MIN_POINTS + 1) * size} with --block {size}."
            )
