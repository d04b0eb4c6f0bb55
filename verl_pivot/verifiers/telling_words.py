"""Text -> the words that decide the meaning of a sentence: numbers and negations, which similar texts must share."""

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
"""A number, time or date in digits: 17, 3.14, 1,000, 18:40, 1/2."""
SIGN_BEFORE = r"(?:(?<![\w)])[-+\u00b1]|!={1,2}|[<>=~]{1,3})"
"""Signs before a number that change it; a minus behind a letter or digit is a hyphen, as in covid-19 and 1990-1995."""
CURRENCIES = "$\u20ac\u00a3\u00a5\u20b9"
_NEGATION = re.compile(
    r"\b(?:not|no|nor|none|never|neither|nobody|nothing|nowhere|nope|without|cannot|can't|\w+n't|unable|impossible"
    r"|hardly|barely|scarcely|rarely|seldom|except|unless|only|fail(?:s|ed|ing)?|refus(?:e[sd]?|ing)"
    r"|reject(?:s|ed|ing)?|declin(?:e[sd]?|ing)|den(?:y|ies|ied|ying)"
    r"|nicht|kein\w*|niemals|nie|ohne|pas|jamais|sans|aucun\w*|nunca|não|sem|senza|niet|geen|nooit|zonder"
    r"|\u043d\u0435|\u043d\u0435\u0442|\u0431\u0435\u0437)\b"
    r"|[\u4e0d\u6ca1\u6c92\u672a\u65e0\u7121]"
)
"""Words that negate a sentence, or reverse its meaning as a negation does, in some languages."""
_SMALL_NUMBERS = (
    *("zero", "", "two second", "three third", "four fourth", "five fifth", "six sixth", "seven seventh"),
    *("eight eighth", "nine ninth", "ten tenth", "eleven", "twelve dozen", "thirteen", "fourteen", "fifteen"),
    *("sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
NUMBER_WORDS = {
    **{word: str(number) for number, words in enumerate(_SMALL_NUMBERS) for word in words.split()},
    **{"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90"},
    **{
        "hundred": "100",
        "thousand": "1000",
        "million": "1000000",
        "billion": "1000000000",
        "trillion": "1000000000000",
    },
    **{word: word for word in ("once", "twice", "thrice", "first", "half", "quarter", "double", "triple")},
}
"""{word for a number: digits, or the word}; "one" is left out, since it is a pronoun as well."""
_ENDING = re.compile(r"(?<=\w{3})(?:ing|ers?|est|ed|es|e|s|d)\Z")
_CONTRARIES = tuple(
    frozenset(_ENDING.sub("", word) for word in words.split())
    for words in (
        *("before after since until", "above below", "over under", "more less", "more fewer", "most least"),
        *("left right", "up down", "top bottom", "front back", "inside outside", "north south east west"),
        *("increase decrease reduce", "raise lower reduce", "add remove delete", "enable disable", "open close"),
        *("buy sell", "bought sold", "upgrade downgrade", "upload download", "import export", "push pull"),
        *("inbound outbound", "arrive depart", "arrival departure", "departure return", "one-way round-trip"),
        *("early late", "earlier later", "first last", "next previous", "start stop end", "begin end", "fast slow"),
        *(
            "lock unlock",
            "include exclude",
            "all some few most none",
            "many few",
            "always sometimes",
            "minimum maximum",
            "min max",
            "plus minus",
        ),
        *(
            "high low",
            "cheap expensive",
            "big small",
            "bigger smaller",
            "large small",
            "long short",
            "full empty",
            "heavy light",
        ),
        *("true false", "on off", "same different", "old new", "hot cold", "wet dry", "public private"),
        *(
            "credit debit",
            "deposit withdraw",
            "win lose",
            "won lost",
            "lend borrow",
            "grant revoke",
            "hire fire dismiss",
            "delete restore",
            "refund replacement exchange",
        ),
        *("allergic resistant tolerant", "ship plane train bus car", "accept cancel", "pass fail", "safe dangerous"),
        *("allow forbid block", "approve deny", "send receive", "domestic international", "economy business"),
        *("window aisle middle", "breakfast lunch dinner", "winter summer spring autumn", "today tomorrow yesterday"),
        *("morning noon afternoon evening night", "hour minute second day week month year"),
        *("monday tuesday wednesday thursday friday saturday sunday",),
        *("january february march april may june july august september october november december",),
        *(
            "red green blue black white yellow orange brown gray",
            "male female",
            "married single divorced",
            "husband wife",
            "father mother",
        ),
        *("son daughter", "brother sister", "uncle aunt", "mr mrs"),
    )
)
"""Groups of words, without their endings, that exclude each other."""
_PREFIXES = ("non-", "non", "un", "dis", "in", "il", "im", "ir", "de-", "de", "mis", "anti-", "anti")
"""Prefixes that reverse the meaning of a word."""
_AROUND_WORD = "\"'`*_()[]{},;:!?.\u2026"
_IN_BRACKETS = re.compile(r"<(.*)>", re.DOTALL)
_PROSE = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_AMOUNT = re.compile(rf"[-+~<>=!#\u00b1{CURRENCIES}]*\d+(?:[.,:/]\d+)*[{CURRENCIES}]?")
_APART_BEFORE = re.compile(rf"({SIGN_BEFORE}[{CURRENCIES}]?|[{CURRENCIES}])\s(?=[{CURRENCIES}]?\d)")
_APART_BEHIND = re.compile(rf"(?<=\d)\s(?=[%{CURRENCIES}](?![\w{CURRENCIES}]))")
"""A blank between a number and a sign that belongs to it."""
_LONE_DASH = re.compile("(?<!\\S)[\u2012-\u2015]\\s")
_BEHIND_NUMBER = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the"}
    | {"this", "to", "was", "were", "with"}
)
"""Words after a number that do not name the thing that is counted."""
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))
_COMPARISONS = str.maketrans({"\u2260": "!=", "\u2264": "<=", "\u2265": ">=", "\u2248": "~"})


def plain(text: str) -> str:
    """The text in Unicode's composed form, with straight quotes, one kind of dash and comparisons in ASCII."""
    return unicodedata.normalize("NFC", text).translate(_QUOTES).translate(_DASHES).translate(_COMPARISONS)


def without_lone_dashes(text: str) -> str:
    """The text without dashes between blanks, which are no minus signs before a number."""
    return text if text.isascii() else _LONE_DASH.sub("", text)


def num_negations(text: str) -> int:
    """Number of negating words in a text, in upper or lower case."""
    return len(_NEGATION.findall((text if text.isascii() else plain(text)).casefold()))


class _ProseWord(NamedTuple):
    """One word of a text in lower case, with a number word in digits."""

    word: str
    is_number: bool
    """Whether the word has a digit, stands for a number, or names the thing that an amount before it counts."""
    is_name: bool
    """Whether the word is neither a number nor ordinary prose: a name, an address, a flag."""


def have_same_sense(text: str, other: str) -> bool:
    """Whether two texts of prose agree in their numbers, names and contraries, and in the number of negations.

    Numbers must be the same in the same order, with their signs and units. A text may leave names out or add some. If
    each text has names that the other lacks, or both have the same names in another order, the texts say different
    things. The same holds if one text has the contrary of a word of the other. One text may repeat words, but no
    numbers.
    """
    if num_negations(text) != num_negations(other):
        return False
    words, others = _prose_words(text), _prose_words(other)
    if _exchange_contraries(words, others):
        return False
    numbers, other_numbers = ([each.word for each in found if each.is_number] for found in (words, others))
    if numbers != other_numbers:
        return False
    names, other_names = ({each.word for each in found if each.is_name} for found in (words, others))
    all_words, all_others = (dict.fromkeys(each.word for each in found) for found in (words, others))
    if names - all_others.keys() and other_names - all_words.keys():
        return False
    shared = (names | other_names) & all_words.keys() & all_others.keys()
    return _are_in_one_order(*([each.word for each in found if each.word in shared] for found in (words, others)))


def _exchange_contraries(words: list[_ProseWord], others: list[_ProseWord]) -> bool:
    """Whether the texts exchange words that exclude each other, or have such words in another order.

    A word excludes the others of its group in _CONTRARIES, and itself with a prefix that reverses its meaning.
    """
    whole, whole_others = ({each.word for each in found} for found in (words, others))
    if any(_turned(new, old) for new, old in ((whole - whole_others, whole_others), (whole_others - whole, whole))):
        return True
    stems, other_stems = ([_ENDING.sub("", each.word) for each in found] for found in (words, others))
    for group in _CONTRARIES:
        ours, theirs = ([stem for stem in found if stem in group] for found in (stems, other_stems))
        if ours and theirs and {*ours}.isdisjoint(theirs):
            return True
        if len({*ours}) == len({*theirs}) and not _are_in_one_order(ours, theirs):
            return True
    return False


def _are_in_one_order(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two sequences of words are the same, except that one of them may repeat words."""
    fewer, more = sorted((words, others), key=len)
    left = iter(more)
    return list(dict.fromkeys(fewer)) == list(dict.fromkeys(more)) and all(word in left for word in fewer)


def _turned(words: Set[str], others: Set[str]) -> bool:
    """Whether one of the words is one of the others with a prefix that reverses its meaning."""
    return any(
        word.startswith(prefix) and len(word) - len(prefix) > 3 and word.removeprefix(prefix) in others
        for word in words
        for prefix in _PREFIXES
    )


def _prose_words(text: str) -> list[_ProseWord]:
    found: list[_ProseWord] = []
    begins, follows_amount = True, False
    for written in _with_signs_at_numbers(text).split():
        word = _without_marks(written)
        small = word.casefold()
        if not any(map(str.isalnum, word)):
            continue
        is_amount = any(part in NUMBER_WORDS for part in small.split("-")) or _AMOUNT.fullmatch(word) is not None
        is_counted = follows_amount and small not in _BEHIND_NUMBER
        is_number = is_amount or is_counted or any(map(str.isdigit, word))
        is_prose = _PROSE.fullmatch(word) and (
            word == small or (begins and word[1:].islower()) or word[:2] in ("I", "I'")
        )
        found.append(
            _ProseWord(NUMBER_WORDS.get(small) or _without_thousands(small), is_number, not is_number and not is_prose)
        )
        begins, follows_amount = written[-1] in ".!?:", is_amount
    return found


def _without_marks(written: str) -> str:
    """A word without the marks around it: quotation marks, brackets, points, and a possessive 's."""
    word = written.strip(_AROUND_WORD)
    bracketed = _IN_BRACKETS.fullmatch(word)
    return (bracketed[1] if bracketed else word).strip(_AROUND_WORD).removesuffix("'s")


def _with_signs_at_numbers(text: str) -> str:
    """The text in one form of Unicode, with the signs of numbers directly before and behind them."""
    text = unicodedata.normalize("NFKC", plain(without_lone_dashes(text)))
    return _APART_BEHIND.sub("", _APART_BEFORE.sub(r"\1", text)).replace("!=", "<>")


def without_accents(words: Iterable[str]) -> list[str]:
    """The words with plain letters in place of accented ones."""
    return [
        "".join(each for each in unicodedata.normalize("NFD", word) if not unicodedata.combining(each))
        for word in words
    ]


def _without_thousands(number: str) -> str:
    return number.replace(",", "") if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", number) else number
