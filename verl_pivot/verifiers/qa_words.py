"""Short answer -> the words that are compared, without case, articles, and marks that do not change the meaning."""

import re
from collections import Counter
from typing import NamedTuple

from verl_pivot.verifiers.telling_words import plain

_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_EMPHASISED = re.compile(r"([*_`]{1,3})(.+)\1", re.DOTALL)
_OPENING, _CLOSING = "\"'([{$,;:", "\"')]},;:?."
"""Marks that are dropped before and after a word."""
_THOUSANDS = re.compile(r"([-+<>=~]*)(\d{1,3}(?:,\d{3})+)((?:\.\d+)?\D*)")
_LONE_PERCENT = re.compile(r"(?<=\d)\s+%")
_WITHIN_WORD = re.compile(r"(?<=[^\W\d_])['.\-_/&](?=[^\W\d_])")
"""Marks between letters: well-known, U.S.A, O'Neill."""
_WORD_AND_NUMBER = re.compile(r"(?<![^\W\d_])([^\W\d_]{2,})[.\-](?=\d)")
"""A mark between a word and a number: covid-19; not those in 1e-5 and x-1."""
_TAKES_SIGN = frozenset(
    {"usd", "eur", "gbp", "jpy", "cny", "rmb", "inr", "chf", "cad", "aud", "nzd", "sek", "nok", "dkk", "rub", "brl"}
    | {"krw", "mxn", "pln", "try", "zar", "pi", "tau", "phi", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln"}
    | {"lg", "exp", "sqrt"}
)
"""Words behind which a mark may be the minus sign or point of a number."""
_ARTICLES = frozenset({"a", "an", "the"})


class AnswerWords(NamedTuple):
    """Words of one answer, in lower case."""

    compared: tuple[str, ...]
    """Words without articles."""
    with_articles: tuple[str, ...]


def search_r1_words(text: str) -> AnswerWords:
    """Words of an answer as Search-R1 compares them, but with every mark that changes the meaning of a number or name.

    Signs, points, fractions, percent signs, comparisons and marks as in C++ are kept. An "a" at the end of the text, as
    in "Vitamin A", is a letter and no article; so is an "A" between a word with a capital and a word without one.
    """
    tokens = _tokens(text)
    words = [_word(token) for token in tokens]
    if _ARTICLES.isdisjoint(words):
        return AnswerWords(tuple(words), tuple(words))
    compared = (word for index, word in enumerate(words) if not _is_article(tokens, index))
    return AnswerWords(tuple(compared), tuple(words))


def are_same(words: AnswerWords, accepted: AnswerWords) -> bool:
    """Whether two answers have the same words in the same order, either without or with their articles."""
    return words.compared == accepted.compared or words.with_articles == accepted.with_articles


def f1(words: AnswerWords, accepted: AnswerWords) -> float:
    """Harmonic mean of the share of each answer's words that the other has; at least one answer must have a word."""
    shared = (Counter(words.compared) & Counter(accepted.compared)).total()
    return 2 * shared / (len(words.compared) + len(accepted.compared))


def l0_words(text: str) -> AnswerWords:
    """Words of an answer as L0 compares them; empty if L0 would lose a letter or digit that ASCII does not have."""
    words = tuple(_word(token) for token in _tokens(text))
    is_lost = not text.isascii() and any(each.isalnum() and not each.isascii() for word in words for each in word)
    return AnswerWords((), ()) if is_lost else AnswerWords(words, words)


def _tokens(text: str) -> list[str]:
    """Tokens between spaces, with their case and without the marks around them; a lone % joins the number before it."""
    text = (text if text.isascii() else plain(text)).strip()
    if "\\" in text:
        text = _LATEX_TEXT.sub(r"\1", text).replace("\\%", "%").replace("\\$", "$")
    if text[:1] in ("*", "_", "`") and (emphasised := _EMPHASISED.fullmatch(text)):
        text = emphasised[2]
    if "%" in text:
        text = _LONE_PERCENT.sub("%", text)
    primes = "".join(mark for mark in "'\"" if text.count(mark) == 1)
    tokens = [token for each in text.split() if (token := each if each.isalnum() else _without_marks(each, primes))]
    return [*tokens, text[0] + text[-1]] if _has_brackets_that_count(text) else tokens


def _has_brackets_that_count(text: str) -> bool:
    """Whether a text looks like a pair, interval or set of numbers."""
    is_enclosed = text[:1] in ("[", "(", "{") and text[-1:] in ("]", ")", "}")
    return is_enclosed and "," in text and any(map(str.isdigit, text))


def _without_marks(token: str, primes: str) -> str:
    """A token without the marks around it.

    Args:
        token: Characters between spaces.
        primes: Quotes that have no partner in the text; after a digit, they stand for feet, inches or minutes.
    """
    token = token.lstrip(_OPENING)
    bare = token.rstrip(_CLOSING)
    token = token[: len(bare) + (bare[-1:].isdigit() and token[len(bare) : len(bare) + 1] in primes)]
    if token.endswith("!") and not (calm := token.rstrip("!"))[-1:].isdigit():  # 5! is a factorial
        token = calm.rstrip(_CLOSING)
    return token if token[:1] != "." or token[1:2].isdigit() else token.lstrip(".")


def _word(token: str) -> str:
    if token.isalnum():
        return token.lower()
    if "," in token and (grouped := _THOUSANDS.fullmatch(token)):
        token = grouped[1] + grouped[2].replace(",", "") + grouped[3]
    return _WORD_AND_NUMBER.sub(_joined, _WITHIN_WORD.sub("", token)).lower()


def _joined(found: re.Match[str]) -> str:
    return found[0] if found[1].lower() in _TAKES_SIGN else found[1]


def _is_article(tokens: list[str], index: int) -> bool:
    token = tokens[index]
    if token.lower() not in _ARTICLES:
        return False
    if index == len(tokens) - 1:
        return token.lower() != "a"
    return not (token == "A" and index > 0 and tokens[index + 1][:1].islower() and tokens[index - 1][:1].isupper())
