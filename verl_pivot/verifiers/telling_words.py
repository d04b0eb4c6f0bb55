"""Text -> its words that turn the sense of a sentence: numbers and negations, which similar texts must share."""

import re
import unicodedata
from collections.abc import Iterable

NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
"""A number, time or date in digits: 17, 3.14, 1,000, 18:40, 1/2."""
_NEGATION = re.compile(r"\b(?:not|no|nor|none|never|neither|nobody|nothing|nowhere|without|cannot|can't|\w+n't)\b")
_SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_WORDS = {
    **{word: str(number) for number, word in enumerate(_SMALL, 2)},
    **{"eleven": "11", "twelve": "12", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60"},
    **{"seventy": "70", "eighty": "80", "ninety": "90", "hundred": "100", "thousand": "1000", "million": "1000000"},
    **{"billion": "1000000000"},
}
"""Words for numbers. "One" is a pronoun as well."""
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))


def plain(text: str) -> str:
    """The text in Unicode's composed form, with straight quotes and one kind of dash."""
    return unicodedata.normalize("NFC", text).translate(_QUOTES).translate(_DASHES)


def numbers(text: str) -> list[str]:
    """Numbers of a text in their order, without the commas between thousands."""
    return [_without_thousands(number) for number in NUMBER.findall(unicodedata.normalize("NFKC", text))]


def num_negations(text: str) -> int:
    """Number of words that negate, in a text of any case."""
    return len(_NEGATION.findall((text if text.isascii() else plain(text)).casefold()))


def have_same_sense(text: str, other: str) -> bool:
    """Whether two texts name the same numbers in the same order and negate equally often; a number may be repeated."""
    return _different_numbers(text) == _different_numbers(other) and num_negations(text) == num_negations(other)


def _different_numbers(text: str) -> list[str]:
    """Numbers of a text in digits or words, each where it stands first."""
    return list(dict.fromkeys(numbers(_NUMBER_WORD.sub(lambda word: _NUMBER_WORDS[word[0]], text.casefold()))))


def without_accents(words: Iterable[str]) -> list[str]:
    """The words with letters such as e for an accented one."""
    return [
        "".join(each for each in unicodedata.normalize("NFD", word) if not unicodedata.combining(each))
        for word in words
    ]


def _without_thousands(number: str) -> str:
    return number.replace(",", "") if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", number) else number
