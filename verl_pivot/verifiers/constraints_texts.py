"""Text -> what instructions about its form count: words, sentences, paragraphs, bullets, placeholders, choices."""

import re
import unicodedata
from collections.abc import Sequence

from verl_pivot.data.forged_turns import LOOK_ALIKES

_LETTER = r"[^\W_\u115f\u1160\u3164\uffa0]"
"""A letter or digit that is seen; Hangul's fillers are letters and are not."""
_WORD = re.compile(rf"{_LETTER}+(?:['_-]+{_LETTER}+)*")
_PART = re.compile(rf"{_LETTER}+")
_LATIN = re.compile(r"[A-Za-z]")
_QUOTES = {0x2019: "'", 0x2018: "'"}
_VISIBLE = re.compile(_LETTER)
_SENTENCE_END = re.compile(
    r"(?<![.!?\u3002\uff01\uff1f])(?:[.!?\u3002\uff01\uff1f]++(?=\s|$|[\"'\u201d)])|[\u3002\uff01\uff1f]++)"
)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_BULLET = re.compile(r"^[ \t]*(?:[*+\u2022\u2023\u25e6-]|\d+[.)])[ \t]+(\S.*)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[([^\[\]\n]+)\]")
_TITLE = re.compile(r"<<([^<>\n]+)>>")
_COMMA = re.compile(
    # Those of other scripts and widths, and the low quote that looks like one.
    r"[,\u201a\u060c\u055d\u07f8\u1363\u1802\u1808\u2e32\u2e34\u2e41\u2e49\u2e4c\u3001\ua4fe\ua60d\ua6f5\ufe10\ufe11\ufe50"
    r"\ufe51\uff0c\uff64]"
)
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\{([^{}]*)\}")
_SAID_BEFORE = re.compile(
    r"(?:(?:the|my|so|final|correct|right|best|answer|option|choice|letter|is)\b[\s:*_]*)+", re.IGNORECASE
)
_LABELLED = re.compile(r"[\s(\[*`\"']*([^\W_]+)[*`\"']*(?:[)\].:]|\s[-\u2013\u2014]\s)")
_MARKED = re.compile(r"(?<![^\W_])([^\W_]+)[)\]]|(?<=[(\[*_`\"'])([^\W_]+)(?=[*_`\"'])")
_NAMED_BEHIND = re.compile(
    r"\b(?:answer|option|choice|letter)(?: is| must be| should be)?:? +([^\W_]+)\b", re.IGNORECASE
)
_CHOICE_MARKS = " \t\n()[]{}*_`\"'.:,"


def _plain(text: str) -> str:
    """The text in one form of each letter, without characters that are not seen."""
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return "".join(each for each in composed if unicodedata.category(each) != "Cf")


def _words(text: str) -> list[str]:
    return _WORD.findall(_plain(text))


def num_words(text: str) -> int:
    return len(_words(text))


def num_sentences(text: str) -> int:
    """Sentences, which end with ., ! or ? before a space or the end; the rest of the text is one more."""
    return sum(map(_has_letter, _SENTENCE_END.split(text)))


def num_paragraphs(text: str) -> int:
    """Paragraphs between blank lines; rules such as *** are none."""
    return sum(map(_has_letter, _BLANK_LINE.split(text)))


def num_bullets(text: str) -> int:
    """Lines that begin with *, +, -, a bullet or a number, and go on with words."""
    return sum(map(_has_letter, _BULLET.findall(text)))


def num_placeholders(text: str) -> int:
    """Placeholders such as [address]."""
    return sum(map(_has_letter, _PLACEHOLDER.findall(text)))


def num_capital_words(text: str) -> int:
    """Words all of whose letters are capitals."""
    return sum(word.isupper() for word in _words(text))


def has_title(text: str) -> bool:
    """Whether a title stands in double angle brackets, as in <<Title>>."""
    return any(map(_has_letter, _TITLE.findall(text)))


def has_comma(text: str) -> bool:
    """Whether a comma of any script stands in a text."""
    return _COMMA.search(text) is not None


def _has_letter(text: str) -> bool:
    return _VISIBLE.search(text) is not None


def num_occurrences(text: str, phrase: str) -> int:
    """How often a phrase stands in a text as whole words, in any case."""
    words, sought = ([word.casefold() for word in _words(each)] for each in (text, phrase))
    return _num_places(words, sought)


def is_avoided(text: str, phrase: str) -> bool:
    """Whether a phrase stands nowhere in a text: not in words that are joined, nor in letters that look alike."""
    sought = [word.casefold() for word in _words(phrase)]
    plain = _plain(text)
    spellings = {plain, " ".join(map(_in_latin_letters, plain.split()))}
    return not any(
        _num_places([word.casefold() for word in words.findall(spelling)], sought)
        for spelling in spellings
        for words in (_WORD, _PART)
    )


def _in_latin_letters(word: str) -> str:
    """A word that mixes Latin letters with others in Latin ones; any other as it is."""
    return word if word.isascii() or not _LATIN.search(word) else word.translate(LOOK_ALIKES)


def _num_places(words: Sequence[str], sought: Sequence[str]) -> int:
    """Number of places at which some words stand one after the other."""
    size = len(sought)
    return sum(words[start : start + size] == sought for start in range(len(words) - size + 1))


def is_in_case(text: str, letter_case: str) -> bool:
    """Whether all letters of a text are small ("lower") or capitals ("upper"), and there is one."""
    return text.islower() if letter_case == "lower" else text.isupper()


def is_quoted(text: str) -> bool:
    """Whether all of the text stands in one pair of double quotes, straight or curly."""
    text = text.strip()
    if text[:1] + text[-1:] not in ('""', "\u201c\u201d") or not _has_letter(text):
        return False
    inner = text[1:-1]
    first = min((place for mark in '"\u201d' if (place := inner.find(mark)) >= 0), default=-1)
    return first < 0 or inner[first - 1 : first].isspace() or "\u201c" in inner[:first]


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text names: alone, behind words such as "The answer is", or before a mark, as in "B) Paris";
    None if it names another too, or none.

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
