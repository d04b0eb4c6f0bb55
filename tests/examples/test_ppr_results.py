"""The results of ppr that are committed, and the tables of its README."""

from pathlib import Path

from examples.comparison import shown_difference
from examples.ppr import report
from examples.ppr.measures import EM, MEASURES, TOKENS, TURNS, VALID_SEARCHES
from examples.results_file import RESULTS, merged
from tests.support.readme_tables import cells, contrast_line, shown_arms

_HERE = Path(report.__file__).parent
_STEPS = (10, 20)
"""Steps of the evaluations before the last one."""


def lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's table, one for each unit."""
    found = []
    for row in report.rows(results):
        if len(row.seeds) > 1:
            continue
        (result,) = (each for each in results if (each.arm, each.seed) == (row.arm, row.seeds[0]))
        before = [f"{MEASURES[EM](result.evaluations[step]):.3f}" if result.training else "" for step in _STEPS]
        found.append(
            cells(
                f"`{row.arm}`",
                str(row.seeds[0]),
                *before,
                f"{row.em:.3f} [{row.interval.low:.3f}, {row.interval.high:.3f}]",
                shown_difference(row.over_outcome),
                f"{row.measures[TURNS]:.2f}",
                f"{row.measures[TOKENS]:.0f}",
                f"{row.measures[VALID_SEARCHES]:.2f}",
                f"{row.unseen:.2f}",
            )
        )
    return found


def contrast_lines(results: list[report.Result]) -> list[str]:
    """Lines of the README's contrasts."""
    rollouts = {"EM in training": ", all rollouts of training"}
    found = report.contrasts(results)
    return [contrast_line(shown_arms(each) + rollouts.get(each.measure, ""), each) for each in found]


def test_the_tables_of_the_readme_are_rebuilt_from_the_results() -> None:
    kept = merged([_HERE / RESULTS], report.STUDY)
    shown = [line for line in (_HERE / "README.md").read_text().splitlines() if line.startswith("| `")]

    assert [line for line in shown if line.count("|") == 11] == lines(kept.results)
    assert [line for line in shown if "` over `" in line or " at its end" in line] == contrast_lines(kept.results)
