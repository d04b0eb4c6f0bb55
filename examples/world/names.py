"""Names of a world's entities as text: the tokens that they consist of, a pattern, and misspelling."""

import re
from random import Random

from examples.world.entities import ENDS, ONSETS, TRADES, VOWELS

_SYLLABLES = tuple(onset + vowel for onset in ONSETS for vowel in VOWELS)
VALUES = (
    *_SYLLABLES,
    *(each.capitalize() for each in _SYLLABLES),
    *(f" {each}" for each in TRADES),
    *(f"{number:02}" for number in range(100)),
)
"""Texts that are one token each; names and numbers consist of a few of these, and so can be copied piece by piece."""


def _either(words: tuple[str, ...]) -> str:
    return f"(?:{'|'.join(sorted(words, key=len, reverse=True))})"


_SYLLABLE = rf"{_either(ONSETS)}{_either(VOWELS)}"
_FIRST_SYLLABLE = rf"{_either(tuple(each.capitalize() for each in ONSETS))}{_either(VOWELS)}"
NAME = rf"(?:{_FIRST_SYLLABLE}(?:{_SYLLABLE}){{1,2}}{_either(ENDS)}(?![a-z]))"
"""Pattern of one word of a name."""
TRADE = _either(TRADES)
"""Pattern of the second word of a firm's name."""
_LAST_SYLLABLE = re.compile(rf"{_either(ONSETS)}[{''.join(VOWELS)}](?=[a-z]?\b)")


def misspelt(name: str, rng: Random) -> str:
    """The name with a random last syllable in its first word."""
    return _LAST_SYLLABLE.sub(rng.choice(ONSETS) + rng.choice(VOWELS), name, count=1)
