"""Text -> counts and checks for instructions about its form: words, sentences, bullets, placeholders, choices ..."""

import re
import unicodedata
from collections.abc import Sequence

from verl_pivot.data.forged_turns import LOOK_ALIKES

_LETTER = r"[^\W_]"
_WORD = re.compile(rf"{_LETTER}+(?:['-]{_LETTER}+){{0,3}}")
"""A word; up to four words that are joined by hyphens or apostrophes count as one."""
_PART = re.compile(rf"{_LETTER}+")
_SPELT = re.compile(rf"(?<!\S)([AI] )?({_LETTER}(?: {_LETTER}){{2,}})(?!\S)")
"""Three or more single letters in a row, with spaces between them."""
_LATIN = re.compile(r"[A-Za-z]")
_UNSEEN = re.compile(
    # Combining marks that normalization leaves, Hangul fillers, and characters that only change how others are shown.
    r"[\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_ONE_FORM = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032`\u00b4", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2212\u2043", "-"),
        **dict.fromkeys("\r\v\f\x85\u2028", "\n"),
        "\u2029": "\n\n",
    }
)
_SENTENCE_END = re.compile(
    r"(?<![.!?\u3002\uff01\uff1f])"
    r"(?:[.!?\u3002\uff01\uff1f]++(?=[\"'\u201d)\]*_]{0,4}(?:\s|$))|[\u3002\uff01\uff1f]++)"
)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_BULLET = re.compile(
    r"^[ \t]*(?:[*+\u00b7\u2013\u2014\u2022\u2023\u2219\u25a0\u25aa\u25ab\u25cb\u25cf\u25e6-]|\d+[.)])[ \t]+(\S.*)$",
    re.MULTILINE,
)
_PLACEHOLDER = re.compile(r"\[([^\[\]\n]+)\]")
_TITLE = re.compile(r"<<([^<>\n]+)>>")
_COMMA = re.compile(
    # Commas of all scripts and widths, and the low quote that looks like a comma.
    r"[,\u201a\u060c\u055d\u07f8\u1363\u1802\u1808\u2e32\u2e34\u2e41\u2e49\u2e4c\u3001\ua4fe\ua60d\ua6f5\ufe10\ufe11\ufe50"
    r"\ufe51\uff0c\uff64]"
)
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\{([^{}]*)\}")
_SAID_BEFORE = re.compile(
    r"(?:(?:the|my|so|final|correct|right|best|answer|option|choice|letter|is)\b[\s:*_]*)+", re.IGNORECASE
)
_LABELLED = re.compile(r"[\s(\[*`\"']*([^\W_]+)[*`\"']*(?:[)\]]|[.:](?!\w)|\s[-\u2013\u2014]\s)")
_MARKED = re.compile(r"(?<![^\W_])([^\W_]+)[)\]]|(?<=[(\[*_`\"'])([^\W_]+)(?=[*_`\"'])")
_NAMED_BEHIND = re.compile(
    r"\b(?:answer|option|choice|letter)(?: is| must be| should be)?:? +([^\W_]+)\b", re.IGNORECASE
)
_CHOICE_MARKS = " \t\n()[]{}*_`\"'.:,"


def _plain(text: str) -> str:
    """The text with one form of each letter, quote, hyphen and line end, and without invisible characters."""
    if not text.isascii():
        text = _UNSEEN.sub("", unicodedata.normalize("NFKC", text))
    return text.replace("\r\n", "\n").translate(_ONE_FORM)


def _words(text: str) -> list[str]:
    return _WORD.findall(_plain(text))


def num_words(text: str) -> int:
    return len(_words(text))


def num_sentences(text: str) -> int:
    """Number of sentences, which end with ., ! or ? before a space or the end; text after the last is one more."""
    return sum(map(_has_letter, _SENTENCE_END.split(_plain(text))))


def num_paragraphs(text: str) -> int:
    """Number of paragraphs between blank lines; horizontal rules such as *** do not count."""
    return sum(map(_has_letter, _BLANK_LINE.split(_plain(text))))


def num_bullets(text: str) -> int:
    """Number of lines that begin with *, +, -, a bullet or a number, followed by words."""
    return sum(map(_has_letter, _BULLET.findall(_plain(text))))


def num_placeholders(text: str) -> int:
    """Number of placeholders such as [address]."""
    return sum(map(_has_letter, _PLACEHOLDER.findall(_plain(text))))


def num_capital_words(text: str) -> int:
    """Number of words in which all letters are capitals."""
    return sum(word.isupper() for word in _words(text))


def has_title(text: str) -> bool:
    """Whether a title stands in double angle brackets, as in <<Title>>."""
    return any(map(_has_letter, _TITLE.findall(_plain(text))))


def has_comma(text: str) -> bool:
    """Whether a comma of any script stands in a text."""
    return _COMMA.search(text) is not None


def _has_letter(text: str) -> bool:
    return _PART.search(text) is not None


def num_occurrences(text: str, phrase: str) -> int:
    """How often a phrase stands in a text as whole words, in any case."""
    return _num_places(_words(text), _words(phrase))


def num_in_any_dress(text: str, phrase: str) -> int:
    """How often a phrase stands in a text, also where signs join or split words, or look-alikes replace letters."""
    sought, plain = _words(phrase), _plain(text)
    spellings = {plain, " ".join(map(_in_latin_letters, plain.split()))}
    found = [_num_places(words.findall(each), sought) for each in spellings for words in (_WORD, _PART)]
    unparted = [_num_places(_without_signs(each), _without_signs(phrase)) for each in spellings]
    return max(*found, *unparted)


def _without_signs(text: str) -> list[str]:
    """The words between blanks, without any signs; single letters in a row become one word."""
    plain = " ".join("".join(_PART.findall(each)) for each in text.split())
    # An A or I before these letters is a word of its own.
    return _SPELT.sub(lambda found: f"{found[1] or ''}{found[2].replace(' ', '')}", plain).split()


def _in_latin_letters(word: str) -> str:
    """The word, in Latin letters alone if it mixes them with look-alikes of other scripts."""
    return word if word.isascii() or not _LATIN.search(word) else word.translate(LOOK_ALIKES)


def _num_places(words: Sequence[str], sought: Sequence[str]) -> int:
    """Number of places where the sought words follow each other, in upper or lower case."""
    words, sought, size = [*map(str.casefold, words)], [*map(str.casefold, sought)], len(sought)
    return sum(words[start : start + size] == sought for start in range(len(words) - size + 1))


def is_in_case(text: str, letter_case: str) -> bool:
    """Whether all letters of a text are small ("lower") or capitals ("upper"), and there is at least one."""
    return text.islower() if letter_case == "lower" else text.isupper()


def is_quoted(text: str) -> bool:
    """Whether all of the text stands in one pair of double quotes, straight or curly."""
    text = text.strip()
    if text[:1] + text[-1:] not in ('""', "\u201c\u201d") or not _has_letter(_plain(text)):
        return False
    inner = text[1:-1]
    first = min((place for mark in '"\u201d' if (place := inner.find(mark)) >= 0), default=-1)
    return first < 0 or inner[first - 1 : first].isspace() or "\u201c" in inner[:first]


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text names; None if it names none or several.

    A choice may stand alone, after words such as "The answer is", or before a mark, as in "B) Paris".

    Args:
        text: The answer.
        choices: Labels, no two of which differ in case alone.
    """
    of_word = {choice.casefold(): choice for choice in choices}
    text = _LATEX_TEXT.sub(r"\1", text).strip()
    if (whole := of_word.get(text.strip(_CHOICE_MARKS).casefold())) is not None:
        return whole
    text = text.lstrip("*_` ")
    if said := _SAID_BEFORE.match(text):
        text = text[said.end() :]
    if (whole := of_word.get(text.strip(_CHOICE_MARKS).casefold())) is not None:
        return whole
    first = _LABELLED.match(text[:200])
    label = of_word.get(first[1].casefold()) if first is not None else None
    if first is None or label is None:
        return None
    rest = text[first.end() :]
    named = {word for word in _PART.findall(rest) if word in of_word.values()}
    marked = [word for found in (*_MARKED.findall(rest), (*_NAMED_BEHIND.findall(rest),)) for word in found]
    named |= {of_word[word.casefold()] for word in marked if word.casefold() in of_word}
    return label if named <= {label} else None
