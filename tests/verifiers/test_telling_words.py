"""verifiers.telling_words: texts with different numbers in words differ in sense, also with a hyphen."""

import pytest

from verl_pivot.verifiers.telling_words import have_same_sense


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Send twenty-one boxes to town.", "Send thirty-one boxes to town."),
        ("Send twenty-one boxes to town.", "Send twenty-two boxes to town."),
        ("the ninety-ninth time", "the ninety-first time"),
        ("a one-third share of it", "a two-third share of it"),
        ("It is a two-day trip for all", "It is a ten-day trip for all"),
        ("a five-pack of them", "a six-pack of them"),
    ],
)
def test_another_number_in_words_is_another_sense(text: str, other: str) -> None:
    assert not have_same_sense(text, other)
    assert have_same_sense(text, f"{text} please")
