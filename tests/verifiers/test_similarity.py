"""verifiers.similarity: difflib's ratio, or 0 if the ratio is below the bound."""

from difflib import SequenceMatcher

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.verifiers.similarity import similarity

TEXTS = st.text("abcd \n", max_size=60) | st.text(max_size=20)


@given(TEXTS, TEXTS, st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95, 1.0]))
def test_it_is_difflibs_ratio_from_the_bound_on_and_0_below(first: str, second: str, at_least: float) -> None:
    ratio = SequenceMatcher(None, first, second).ratio()

    assert similarity(first, second, at_least=at_least) == (ratio if ratio >= at_least else 0.0)


@given(TEXTS, st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["", "a", "x y"])), max_size=4))
def test_texts_that_are_nearly_equal_have_difflibs_ratio(text: str, changes: list[tuple[int, str]]) -> None:
    changed = text
    for place, new in changes:
        changed = changed[:place] + new + changed[place + 1 :]
    ratio = SequenceMatcher(None, text, changed).ratio()

    assert similarity(text, changed, at_least=0.95) == (ratio if ratio >= 0.95 else 0.0)
