"""The results of web that are committed, and the tables of its README."""

from pathlib import Path

from examples.comparison import shown_difference
from examples.results_file import RESULTS, merged
from examples.web import report
from examples.web.measures import SEEN, UNSEEN
from examples.web.training import BASE, OUTCOME
from tests.support.readme_tables import cells, contrast_line, shown_arms

_HERE = Path(report.__file__).parent


def lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's table, one for each unit, and one for each arm over several seeds."""
    units: dict[tuple[str, tuple[int, ...]], dict[str, report.Row]] = {}
    for row in report.rows(results):
        units.setdefault((row.arm, row.seeds), {})[row.part] = row
    found = []
    for (arm, seeds), of in units.items():
        seen, unseen = part_cells(of[SEEN]), part_cells(of[UNSEEN])
        found.append(cells(f"`{arm}`", ", ".join(map(str, seeds)), *seen, f"{of[SEEN].actions:.2f}", *unseen))
    return found


def part_cells(row: report.Row) -> tuple[str, str, str]:
    """Success on seen or on unseen tasks, and its differences from the base policy and from the outcome alone."""
    low, high = row.interval
    differences = (shown_difference(row.over.get(arm)) for arm in (BASE, OUTCOME))
    return (f"{row.success:.2f} [{low:.2f}, {high:.2f}]", *differences)


def contrast_lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's contrasts."""
    return [contrast_line(f"{each.measure}: {shown_arms(each)}", each) for each in report.contrasts(results)]


def test_the_tables_of_the_readme_are_rebuilt_from_the_results() -> None:
    kept = merged([_HERE / RESULTS], report.STUDY)
    shown = (_HERE / "README.md").read_text().splitlines()

    assert [line for line in shown if line.startswith("| `") and line.count("|") == 10] == lines(kept.results)
    contrasts = [line for line in shown if line.startswith("| ") and ("` over `" in line or " at its end" in line)]
    assert contrasts == contrast_lines(kept.results)
