"""The results of render that are committed, and the tables of its README."""

from pathlib import Path

from examples.comparison import shown_difference
from examples.contrasts import contrasted
from examples.render import report
from examples.results_file import RESULTS, merged
from tests.support.readme_tables import cells, contrast_line, shown_arms

_HERE = Path(report.__file__).parent
_PERCENT = ("invalid first pages", "solved")
"""Measures that the table shows in percent."""


def lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's table, one for each unit, and one for each arm over all seeds."""
    found = []
    for row in report.REPORT.rows(results):
        values = [f"{100 * value:.0f} %" if name in _PERCENT else f"{value:.2f}" for name, value in row.values.items()]
        found.append(
            cells(f"`{row.arm}`", ", ".join(map(str, row.seeds)), *values, shown_difference(row.over_baseline))
        )
    return found


def contrast_lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's contrasts."""
    found = contrasted(report.REPORT.contrasts, results)
    return [contrast_line(f"{each.measure}: {shown_arms(each)}", each) for each in found]


def test_the_tables_of_the_readme_are_rebuilt_from_the_results() -> None:
    kept = merged([_HERE / RESULTS], report.STUDY)
    shown = (_HERE / "README.md").read_text().splitlines()

    assert [line for line in shown if line.startswith("| `") and line.count("|") == 11] == lines(kept.results)
    assert [line for line in shown if "` over `" in line and line.startswith("|")] == contrast_lines(kept.results)
