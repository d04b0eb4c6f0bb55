"""Texts that are cut until all of them together fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.engines.text_cut import cut_to_tokens, fit_together
from verl_pivot.errors import ConfigError


class Letters:
    """A tokenizer with one token for each character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


class LongestLetters(Letters):
    """A tokenizer that remembers the length of the longest text that it was given."""

    max_characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.max_characters = max(self.max_characters, len(text))
        return super().encode(text, add_special_tokens=add_special_tokens)


class Runs(Letters):
    """A tokenizer with one token for each 128 spaces, as those of common models have."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [token for part in text.split(" " * 128) for token in (0, *map(ord, part))][1:]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(token) if token else " " * 128 for token in token_ids)


def test_texts_that_fit_stay_as_they_are() -> None:
    assert fit_together(["a" * 50, "b" * 50], [0, 1], 100, Letters()) == ["a" * 50, "b" * 50]


def test_the_first_in_the_order_is_cut_in_its_middle_and_says_so() -> None:
    old, new = fit_together(["a" * 150 + "z" * 150, "b" * 100], [0, 1], 300, Letters())

    assert new == "b" * 100
    assert old.startswith("a" * 70)
    assert old.endswith("z" * 70)
    assert "characters left out] ..." in old
    assert len(old) <= 200


def test_the_next_is_cut_when_the_first_has_64_tokens_left() -> None:
    first, second, third = fit_together(["a" * 500, "b" * 500, "c" * 100], [0, 1, 2], 400, Letters())

    assert len(first) == 64
    assert len(second) < 240
    assert third == "c" * 100


def test_notes_alone_replace_texts_where_64_tokens_of_each_are_too_many() -> None:
    fitted = fit_together(["a" * 100, "b" * 100, "c" * 100, "dd"], [0, 1, 2, 3], 120, Letters())

    assert fitted[0] == "\n... [100 characters left out] ...\n"
    assert fitted[1] == "\n... [100 characters left out] ...\n"
    assert fitted[2].startswith("c" * 5)
    assert fitted[3] == "dd"
    assert sum(map(len, fitted)) <= 120


def test_more_texts_than_notes_would_fit_are_an_error_with_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"20 texts of a question have 700 tokens .* than the 256 that they may have: "
    ):
        fit_together(["a" * 100] * 20, range(20), 256, Letters())


def test_of_a_huge_text_without_any_room_only_the_note_is_tokenised() -> None:
    tokenizer = LongestLetters()

    cut = cut_to_tokens("a" * 1_000_000, 0, tokenizer)

    assert cut.text == "\n... [1000000 characters left out] ...\n"
    assert tokenizer.max_characters == len(cut.text)


def test_a_text_of_a_hundred_megabytes_is_cut_in_little_time() -> None:
    huge, small = fit_together(["a" * 100_000_000, "b" * 100], [0, 1], 1000, Letters())

    assert len(huge) <= 900
    assert small == "b" * 100


def test_a_text_of_few_tokens_for_its_length_is_cut_where_they_are_too_many() -> None:
    spaces, small = fit_together([" " * 128 * 16_000, "b" * 100], [0, 1], 8192, Runs())

    assert len(Runs().encode(spaces, add_special_tokens=False)) <= 8092
    assert "characters left out] ..." in spaces
    assert small == "b" * 100


@given(st.lists(st.text(min_size=0, max_size=400), min_size=1, max_size=6), st.integers(220, 2000))
def test_all_together_fit_and_no_text_changes_unless_it_had_to(texts: list[str], max_tokens: int) -> None:
    fitted = fit_together(texts, range(len(texts)), max_tokens, Letters())

    assert sum(map(len, fitted)) <= max_tokens
    if sum(map(len, texts)) <= max_tokens:
        assert fitted == texts
