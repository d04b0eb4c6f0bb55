"""Search query -> its words, and whether another query asks for the same thing."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from verl_pivot.verifiers.telling_words import (
    CURRENCIES,
    NUMBER,
    NUMBER_WORDS,
    SIGN_BEFORE,
    num_negations,
    plain,
    without_accents,
    without_lone_dashes,
)

_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(
    rf"(?:{SIGN_BEFORE} ?[{CURRENCIES}]? ?)?{NUMBER.pattern}\w*(?: ?(?:%|(?i:per ?cent|pct)\b)|\+(?![\w+]))?"
    r"|\b(?:[A-Z]{1,3}|[A-Za-z]{1,2})[-+](?![\w+-])"
    rf"|[{_CJK}]|[^\W{_CJK}]+(?:\+\+|#)?"
)
"""A number with its signs and the letters attached to it, a short name with a sign as in A+, one character of Chinese,
Japanese or Korean, or a word."""
_SPELLINGS = re.compile(rf"[\s{CURRENCIES}]|(?i:per ?cent|pct)\Z")
"""Parts of a number and its signs that make no difference."""
_EXCLUDED = re.compile(r"(?<!\S)-(?=\w)")
"""The minus sign that makes search engines leave out results with the next word."""
_LITTLE = frozenset(
    {
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "for",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "s",
        "the",
        "was",
        "were",
        "with",
    }
)
"""Words that say nothing about what is asked."""
_DIRECTIONS = frozenset(
    {
        "above",
        "after",
        "against",
        "before",
        "between",
        "beyond",
        "by",
        "despite",
        "excluding",
        "from",
        "inside",
        "into",
        "less",
        "more",
        "or",
        "outside",
        "over",
        "since",
        "than",
        "till",
        "to",
        "under",
        "until",
        "vs",
    }
)
"""Words that, with the word after them, give the direction, order or measure of what is asked."""
_CURRENCY = re.compile(rf"[{CURRENCIES}](?=\s?\d)|(?<=\d)\s?[\u20ac\u00a3\u00a5\u20b9]")
_QUESTION = re.compile(
    r"(?:what|who|whom|whose|which|when|where|why|how|did|do|does|can|could|will|would|should|has|have|had|find|list"
    r"|show|give|tell)\Z",
    re.IGNORECASE,
)
"""Words that begin a question, where a capital does not make them names."""
_HOW_TO = re.compile(r"\bhow to\b", re.IGNORECASE)
_ES = re.compile(r"(?<=[sxz])es$|(?<=[cs]h)es$")
_VOWEL = re.compile(r"[aeiouy]")


@dataclass(frozen=True)
class Query:
    """One search query."""

    text: str

    @cached_property
    def tokens(self) -> list[str]:
        """Words in their order and case, without accents; numbers and short names have their signs."""
        text = self.text if self.text.isascii() else plain(without_lone_dashes(self.text))
        tokens = [_one_spelling(token) for token in _TOKEN.findall(_HOW_TO.sub("how", text))]
        return tokens if self.text.isascii() else without_accents(tokens)

    @cached_property
    def words(self) -> list[str]:
        """Stems of the words that say what is asked, in their order."""
        return [stem(token) for token in self.tokens if not _is_little(token)]

    @cached_property
    def names(self) -> frozenset[str]:
        """Stems of words with a capital; empty if the query is written without capitals."""
        tokens = self.tokens[1:] if self.tokens and _QUESTION.match(self.tokens[0]) else self.tokens
        return frozenset(stem(token) for token in tokens if token[:1].isupper() and not _is_little(token))

    @cached_property
    def numbers(self) -> Counter[str]:
        """Words with a digit, with their signs, and words for numbers, turned into digits."""
        words = [token.casefold() for token in self.tokens]
        return Counter(
            NUMBER_WORDS.get(word, word) for word in words if word in NUMBER_WORDS or any(map(str.isdigit, word))
        )

    @cached_property
    def currencies(self) -> frozenset[str]:
        """Currency signs next to numbers."""
        return frozenset(sign.strip() for sign in _CURRENCY.findall(self.text))

    @cached_property
    def directions(self) -> Counter[tuple[str, str]]:
        """Counts of (direction word, stem of the next word that says what is asked) and of ("-", excluded word)."""
        pairs = list(_directions(self.tokens))
        text = self.text if self.text.isascii() else plain(self.text)
        pairs += [("-", stem(_TOKEN.findall(text[sign.end() :])[0])) for sign in _EXCLUDED.finditer(text)]
        return Counter(pairs)


def share_of_words(query: Query, expert: Query) -> float:
    """Jaccard similarity of the two multisets of words, in [0, 1]."""
    words, expert_words = Counter(query.words), Counter(expert.words)
    return (words & expert_words).total() / (words | expert_words).total()


def difference(query: Query, expert: Query) -> str | None:
    """How the query asks for something else than the expert's; None if it only adds words or leaves some out.

    Numbers, names, negations, directions and the order of names must be the same, and no word may be replaced by
    another. If the expert writes no capitals, any word may be a name, and the order of all words counts.
    """
    words, expert_words = Counter(query.words), Counter(expert.words)
    names = query.names | (expert.names or frozenset(expert.words))
    found = {
        "other numbers": query.numbers != expert.numbers,
        "another currency": bool(query.currencies and expert.currencies and query.currencies != expert.currencies),
        "a negation added or removed": num_negations(query.text) != num_negations(expert.text),
        "other words of direction or order": query.directions != expert.directions,
        "a word replaced by another": bool(words - expert_words and expert_words - words),
        "other names": not (query.names <= _stems(expert) and expert.names <= _stems(query)),
        "names in another order": _shared_names(query, expert, names) != _shared_names(expert, query, names),
    }
    return next((name for name, is_found in found.items() if is_found), None)


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A word in lower case, without the ending of a plural or of a verb form."""
    word = word.casefold()
    if word.endswith("ies") and len(word) > 4:
        return word.removesuffix("ies") + "y"
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and _VOWEL.search(word, 0, len(word) - len(ending)):
            return word.removesuffix(ending)
    word = _ES.sub("", word)
    if len(word) > 3 and word.endswith("s") and word[-2] not in "sui":
        word = word.removesuffix("s")
    return word.removesuffix("e") if len(word) > 4 else word


def _one_spelling(token: str) -> str:
    """A number with its signs directly at it, with % for percent and without its currency; any other word unchanged."""
    if token.isalnum() or not any(map(str.isdigit, token)):
        return token
    return _SPELLINGS.sub(lambda found: "%" if found[0][:1] in "pP" else "", token)


def _stems(query: Query) -> frozenset[str]:
    return frozenset(map(stem, query.tokens))


def _shared_names(query: Query, other: Query, names: frozenset[str]) -> list[str]:
    """Stems of the names that both queries have, in the order of `query`, except those after a direction word."""
    names -= {name for _, name in query.directions}
    return [word for word in query.words if word in names and word in other.words]


def _is_little(token: str) -> bool:
    """Whether a word says nothing about what is asked, or only a direction; the A of "Vitamin A" is a name."""
    word = token.casefold()
    return (word in _LITTLE and token != "A") or word in _DIRECTIONS


def _directions(tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, token in enumerate(tokens):
        if token.casefold() in _DIRECTIONS:
            behind = (stem(each) for each in tokens[index + 1 :] if each.casefold() not in _LITTLE)
            yield token.casefold(), next(behind, "")
