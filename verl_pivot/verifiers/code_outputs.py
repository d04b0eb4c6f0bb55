"""Output of a program, right output -> whether they are equal, line by line or word by word."""

import math
import re

_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})(e[+-]?\d{1,3})?", re.ASCII)
_RELATIVE_TOLERANCE = 1e-9
_MAX_TOLERANCE = 1e-3
_ROUNDING = 4e-16
"""Relative rounding error of a few floating-point operations."""
_LARGEST_EXACT = 2.0**53
"""A float holds every whole number up to this one exactly."""


def same_lines(output: str, right: str) -> bool:
    """Whether the lines are equal; space at their ends and empty lines at the end do not count."""
    return _lines(output) == _lines(right)


def same_words(output: str, right: str) -> bool:
    """Whether the words are equal, in upper or lower case; numbers may be written in another way.

    Whole numbers are compared exactly, also where they are written as 2.0 or 2e9. Others may differ by 1e-9 (relative),
    but by at most 0.001, or by the rounding error of a float where that is larger. What is too large for a float equals
    only the same digits.
    """
    words, right_words = output.split(), right.split()
    return len(words) == len(right_words) and all(map(_same_word, words, right_words))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_word(word: str, right: str) -> bool:
    word, right = word.casefold(), right.casefold()
    if word == right:
        return True
    if not _NUMBER.fullmatch(word) or not _NUMBER.fullmatch(right):
        return False
    if word.lstrip("+-").isdigit() and right.lstrip("+-").isdigit():
        return int(word) == int(right)
    first, second = float(word), float(right)
    if not (math.isfinite(first) and math.isfinite(second)):  # too large for a float
        return False
    size, distance = max(abs(first), abs(second)), abs(first - second)
    if first.is_integer() and second.is_integer():
        return distance <= (_ROUNDING * size if size > _LARGEST_EXACT else 0.0)
    return distance <= max(min(_RELATIVE_TOLERANCE * size, _MAX_TOLERANCE), _ROUNDING * size)
