"""The results of the study that are committed, and the page that is rebuilt from them."""

from examples.study.claims import FOLDER, read_design
from examples.study.domains.known import OUTSIDE
from examples.study.measures_file import MEASURES, read_measures
from examples.study.outcomes import OUTCOMES, read_results
from examples.study.page import page


def test_the_page_is_rebuilt_from_the_outcomes_and_the_measures() -> None:
    results, measures = read_results(FOLDER / OUTCOMES), read_measures(FOLDER / MEASURES)

    assert (FOLDER / "page.md").read_text() == page(read_design(), results, measures, OUTSIDE) + "\n"


def test_the_results_are_of_the_present_design_and_its_tuned_rates() -> None:
    design, results = read_design(), read_results(FOLDER / OUTCOMES)

    assert results.digest == design.digest
    assert results.about.is_tuned
    assert not design.is_tuned_otherwise
