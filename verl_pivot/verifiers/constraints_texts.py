"""Text -> what instructions about its form count: words, sentences, paragraphs, bullets, placeholders, choices."""

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?\u3002\uff01\uff1f])[.!?\u3002\uff01\uff1f]++(?=\s|$|[\"'\u201d)])")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_BULLET = re.compile(r"^[ \t]*(?:[*+-]|\d+[.)])[ \t]+\S", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"<<[^<>\n]+>>")
_LABELLED = re.compile(r"[\s(\[*`\"']*([^\W_]+)[*`\"']*[)\].:]")
_IN_BRACKETS = re.compile(r"\b([^\W_]+)[)\]]")
_CHOICE_MARKS = " \t\n()[]{}*_`\"'.:,"


def num_words(text: str) -> int:
    return len(_WORD.findall(text))


def num_sentences(text: str) -> int:
    """Sentences, which end with ., ! or ? before a space or the end; the rest of the text is one more."""
    return sum(_WORD.search(part) is not None for part in _SENTENCE_END.split(text))


def num_paragraphs(text: str) -> int:
    """Paragraphs between blank lines."""
    return sum(bool(part.strip()) for part in _BLANK_LINE.split(text))


def num_bullets(text: str) -> int:
    """Lines that begin with *, +, - or a number."""
    return len(_BULLET.findall(text))


def num_placeholders(text: str) -> int:
    """Placeholders such as [address]."""
    return len(_PLACEHOLDER.findall(text))


def num_capital_words(text: str) -> int:
    """Words all of whose letters are capitals."""
    return sum(word.isupper() for word in _WORD.findall(text))


def has_title(text: str) -> bool:
    """Whether a title stands in double angle brackets, as in <<Title>>."""
    return _TITLE.search(text) is not None


def num_occurrences(text: str, phrase: str) -> int:
    """How often a phrase stands in a text as whole words, in any case."""
    words, wanted = ([word.casefold() for word in _WORD.findall(each)] for each in (text, phrase))
    size = len(wanted)
    return sum(words[start : start + size] == wanted for start in range(len(words) - size + 1))


def is_in_case(text: str, letter_case: str) -> bool:
    """Whether all letters of a text are small ("lower") or capitals ("upper"), and there is one."""
    return text.islower() if letter_case == "lower" else text.isupper()


def is_quoted(text: str) -> bool:
    """Whether all of the text stands in double quotes."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"'


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text names: alone, or at its begin before a mark, as in "B) Paris"; None if it names another
    too, or none.

    Args:
        text: The answer.
        choices: Labels, no two of which differ in case alone.
    """
    of_word = {choice.casefold(): choice for choice in choices}
    text = text.strip()
    if (whole := of_word.get(text.strip(_CHOICE_MARKS).casefold())) is not None:
        return whole
    first = _LABELLED.match(text[:200])
    label = of_word.get(first[1].casefold()) if first is not None else None
    if first is None or label is None:
        return None
    rest = text[first.end() :]
    named = {word for word in _WORD.findall(rest) if word in of_word.values()}
    named |= {of_word[word.casefold()] for word in _IN_BRACKETS.findall(rest) if word.casefold() in of_word}
    return label if named <= {label} else None
