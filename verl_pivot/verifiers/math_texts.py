r"""Answer in LaTeX -> its formula in the spelling that math-verify reads, with its unit, base, brackets and letters."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import NamedTuple

from verl_pivot.verifiers.telling_words import NUMBER_WORDS

_UNICODE = {
    "\u2212": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00f7": r"\div ",
    "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\leq ", "\u2265": r"\geq ", "\u2248": r"\approx ",
    "\u222b": r"\int ", "\u2211": r"\sum ", "\u220f": r"\prod ", "\u00b0": r"^{\circ}", "\u2044": "/",
}  # fmt: skip
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_FRACTION = re.compile("(?<!\\d)[\u00bc-\u00be\u2150-\u215e]")
_FIGURE = re.compile(
    r"(?:m ?)?(\\(?:(?:measured|spherical)?angle|triangle|bigtriangleup|square|Box|odot|bigodot|bigcirc|arc|frown))"
    r" ?\{? ?([A-Za-z](?: ?[A-Za-z]){1,11}) ?\}?"
)
"""A geometric figure that is named by its points, whose letters are not a product."""
_ROOT = re.compile("\u221a *(\\d+(?:\\.\\d+)?|[A-Za-z]|\\([^()]*\\))")
_FONT = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|textup|textnormal)"
_TEXT = re.compile(_FONT + r"\{([^{}]*)\}")
_AND_OR = re.compile(rf"{_FONT}\{{\s*(?:or|and)\s*\}}")
_ONLY_TEXT = re.compile(_FONT + r"\{([^{}]*)\}|\(?([A-Za-z]+)\)?")
_SAID_BEFORE = re.compile(
    r"(?:the|final|answer|result|value|is|equals|so|thus|therefore|hence|[\s:,.])+", re.IGNORECASE
)
_UNIT_BEGINS = re.compile(_FONT + r"\{|\^ *(?:\{ *)?\\circ|\\degree")
_UNIT_PART = re.compile(
    _FONT + r"\{[^{}]*\}|\^ *(?:\{ *)?\\circ(?: *\})?"
    r"|\\degree|\^ *(?:\{ *)?-?\d+(?: *\})?|\\cdot|\\times|\\[,;:! ]|[\s~/.*]"
)
_PLAIN_UNIT = re.compile(r"(.*[\d})])([\s~]*)([A-Za-z]{2,})( *\^ *(?:\{ *)?\d(?: *\})?)?", re.DOTALL)
_UNIT_WORD = re.compile(r"[A-Za-z\u00b5\u03bc\u2126\u03a9\u20ac\u00a3$%]+\.?")
_FACTORS = {word: NUMBER_WORDS[word] for word in ("dozen", "hundred", "thousand", "million", "billion", "trillion")}
"""Words that multiply the number before them."""
_NO_UNIT = (NUMBER_WORDS.keys() - {"second"}) | {
    word
    for words in (
        "one halve hundredth thousandth millionth k mio mln bn lakh crore pi tau phi infinity negative positive",
        "plus minus times over divided multiplied by choose factorial root sqrt log ln sin cos tan exp mod modulo",
        "power exponent inverse reciprocal opposite below above under more less fewer greater smaller least most",
        "at about around nearly almost roughly approximately approx perhaps possibly probably likely maybe if unless",
        "or and not no never nor is isn but to than only either neither versus vs instead alternatively otherwise",
        "except without wrong false",
    )
    for word in words.split()
}
"""Words that change the value of the number before them, deny it or leave it open."""
_LETTERS_OF_FORMULAS = frozenset({"e", "i", "j", "d", "T"})
_SAME_UNIT = {
    word: words[0]
    for words in (
        ["s", "sec", "second"], ["min", "minute"], ["h", "hr", "hour"], ["m", "meter", "metre"], ["g", "gram"],
        ["km", "kilometer", "kilometre"], ["cm", "centimeter", "centimetre"], ["mm", "millimeter", "millimetre"],
        ["kg", "kilogram"], ["in", "inch", "inche"], ["ft", "foot", "feet"], ["mi", "mile"], ["$", "dollar"],
        ["l", "L", "liter", "litre"],
        ["ml", "mL", "milliliter", "millilitre"], ["degree", "deg"], ["C", "celsiu"], ["F", "fahrenheit"],
        ["K", "kelvin"], ["N", "newton"], ["J", "joule"], ["W", "watt"], ["A", "amp", "ampere"], ["V", "volt"],
    )
    for word in words
}  # fmt: skip
_WORDS_OF_UNITS = frozenset(_SAME_UNIT.values()) | {
    *("light", "year", "fluid", "ounce", "nautical", "metric", "ton", "board", "pound", "lb", "cal", "calorie"),
    *("kilowatt", "kW", "mol", "mole", "Pa", "Hz", "%", "\u20ac", "\u00a3", "\u03a9"),
}
"""Words and letters that may stand beside others in one unit, in their standard spelling: light years, kg m."""
_UNIT_FORM = re.compile(r"p?(?:w\^?|d)+(?:[/p](?:w\^?|d)+)*")
"""Form of a unit: w for a word, d for degrees, p for "per"; an exponent stands behind a word, a slash between units."""
_TIMES = r" \cdot "
_TIMES_SIGN = re.compile(r"\\(?:cdot|times)(?![A-Za-z])|\\[,;:! ]|[\s*~]")
_SIMPLE_NUMBER = re.compile(r"-?(?:[\d.,{} ]|\\[,!;: ]|\\[dt]?frac)+")
_PERCENT = re.compile(r"(?<!\\)%")
_REPEATING = re.compile(r"(-?)(\d{0,500})\.(\d{0,500})(?:\\overline|\\dot|\\bar)\{(\d{1,500})\}")
"""A repeating decimal; its length is limited, since Python reads no number of more than 4,300 digits."""
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)[eE]\+?(-?\d+)")
_DECIMAL_COMMA = re.compile(r"(-?\d+)\{,\}(\d{1,2}|\d{4,})")
_BASE = re.compile(r"\d_\{? *(\d+) *\}?")
_LETTERS = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_RELATION = re.compile(r"\\(?:approx|simeq|equiv|implies|iff|Rightarrow|Leftrightarrow|rightarrow|to)(?![A-Za-z])")
_NAME = re.compile(r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*)(?:\([A-Za-z, ]*\))?")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|in)(?![A-Za-z])")
_UNEVALUATED = re.compile(
    r"\\(sum|prod|coprod|int|iint|iiint|oint|lim|limsup|liminf|bigcup|bigcap|det|gcd|lcm|max|min|sup|inf|arg|Pr|partial"
    r"|operatorname|bmod|pmod|mod|ldots|dots|cdots)(?![A-Za-z])|\b(gcd|lcm|mod|max|min|det)\b"
    r"|(frac *\{ *d(?:\^\{?\d\}?)? *\} *\{ *d)|(?<=\d)('+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer:
    """The parts of one answer."""

    formula: str
    """Formula without unit and percent sign."""
    unit: str = ""
    """Unit in its standard spelling; "" if there is none."""
    is_percent: bool = False
    letters: str = ""
    """The answer itself if it consists of letters or words alone; "" otherwise."""
    is_words: bool = False
    """Whether the letters stand in a LaTeX command for text, which makes them words and not a product."""

    @property
    def has_one_unit(self) -> bool:
        """Whether the unit is one unit, such as apple, m ^2, mile / h or kg m, and not several words or a variable."""
        groups = [[word for word in group.split() if word[0] != "^"] for group in self.unit.split("/")]
        return all(_WORDS_OF_UNITS.issuperset(words) or (len(words) == 1 < len(words[0])) for words in groups)

    @property
    def bases(self) -> list[str]:
        """Bases of the numbers with an index, as in 101_2."""
        return _BASE.findall(self.formula)

    @property
    def brackets(self) -> str:
        r"""The brackets around a list, such as "()", "[)" or "{}"; "" if there is no list, or no one pair around it."""
        text = re.sub(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])", "", self.formula).strip()
        text = text.replace("{,}", "").replace("\\{", "{").replace("\\}", "}")
        return text[0] + text[-1] if "," in text and _is_one_pair(text) else ""

    @property
    def has_set_operation(self) -> bool:
        """Whether the answer is calculated from sets, or says in which set something is."""
        return _SET_OPERATION.search(self.formula) is not None

    @property
    def unevaluated(self) -> frozenset[str]:
        """Commands that only pose a question, such as sums, integrals and limits, or leave something out."""
        return frozenset("".join(found) for found in _UNEVALUATED.findall(self.formula))

    @property
    def variables(self) -> frozenset[str]:
        """Single letters outside of commands."""
        return frozenset(each for each in _LETTERS.findall(self.formula) if len(each) == 1)

    @property
    def sides(self) -> list["MathAnswer"]:
        """Parts between equal signs and arrows; the whole answer if there are no such signs, or several equations."""
        formula = _RELATION.sub("=", self.formula)
        if self.is_list_of_equations:
            return [self]
        return [replace(self, formula=part.strip()) for part in _split_at_equal_signs(formula)]

    @property
    def is_list_of_equations(self) -> bool:
        """Whether the formula has an equal sign, and also a comma, a line break or words between formulas."""
        text = self.formula.replace("{,}", "")
        return "=" in text and (_TEXT.search(text) is not None or len(_split_at(text, ",")) > 1 or "\\\\" in text)

    @property
    def solutions(self) -> "MathAnswer | None":
        r"""The values of one name, such as 1,2 of x=1 \text{ or } x=2; None for equations of several names.

        An answer that is no list of equations is returned unchanged.
        """
        if not self.is_list_of_equations:
            return self
        parts = _split_at(_AND_OR.sub(",", self.formula), ",")
        equations = [_split_at_equal_signs(each) for each in parts if each.strip()]  # ", and" leaves an empty part
        names = {each[0].strip() for each in equations}
        if len(names) > 1 or _NAME.fullmatch(min(names)) is None or any(len(each) != 2 for each in equations):
            return None
        return replace(self, formula=",".join(value.strip() for _, value in equations))

    @property
    def is_name(self) -> bool:
        """Whether the formula only names something: x, f(x), A_1."""
        return _NAME.fullmatch(self.formula) is not None

    @property
    def product(self) -> str:
        """Letters of a product such as m g or F = m g, without blanks, signs of multiplication and a name before it."""
        if self.letters or self.unit or self.is_percent:
            return self.letters
        *names, value = self.sides
        is_value = not names or (len(names) == 1 and names[0].is_name)
        return _TIMES_SIGN.sub("", value.formula) if is_value else ""

    def has_letters_of(self, other: "MathAnswer") -> bool:
        """Whether both are the same letters; words may differ in case."""
        if not self.is_words and not other.is_words:
            return self.product == other.product
        is_long = len(self.letters) > 2
        return self.letters == other.letters or (is_long and self.letters.casefold() == other.letters.casefold())

    def as_fraction(self) -> "MathAnswer":
        """The percentage as a fraction of 100, without percent sign."""
        return replace(self, formula=rf"\frac{{{self.formula}}}{{100}}", is_percent=False)


def read_math_answer(text: str) -> MathAnswer | None:
    """The answer that a text spells; None if the formula is followed by words that are not a unit.

    A word such as million before the unit is multiplied into the formula.
    """
    text = _plain(text)
    words, letters = _only_text(text)
    if words is not None and any(map(str.isdigit, words)):
        text = words.strip()  # a number in another font
    elif words is not None or letters is not None:
        written = (words or letters or "").strip(" .").split()
        return MathAnswer(formula=text, letters=" ".join(written), is_words=words is not None)
    if figure := _FIGURE.fullmatch(text):
        points = "".join(filter(str.isalpha, figure[2]))
        if "angle" in figure[1] and "tri" not in figure[1]:
            points = min(points, points[::-1])  # the angle ABC is the angle CBA
        return MathAnswer(formula=text, letters=f"{figure[1]} {points}")
    if (said := _TEXT.match(text)) and _SAID_BEFORE.fullmatch(said[1]):
        text = text[said.end() :].strip()
    is_money = text.startswith((r"\$", r"-\$"))
    text = text.replace(r"\$", "").strip()
    formula, tail = _without_unit(text)
    unit = _unit(tail)
    if unit is None:
        return None
    formula = formula.rstrip(" .~")
    is_percent = formula.endswith(r"\%") or unit.name in ("percent", "%")
    formula = formula.removesuffix(r"\%").strip() if is_percent else formula
    multiplied = _multiplied(_number(formula), unit.factors)
    if multiplied is None:
        return None
    return MathAnswer(
        formula=multiplied,
        unit="$" if is_money and not unit.name else "" if is_percent else unit.name,
        is_percent=is_percent,
    )


def _only_text(text: str) -> tuple[str | None, str | None]:
    """(words in a LaTeX command for text, plain letters), whichever is the whole answer; None for the other."""
    found = _ONLY_TEXT.fullmatch(text)
    if found is None:
        return None, None
    if found[1] is None:
        return None, found[2]
    said = found[1].strip(" ").removeprefix("(").removesuffix(")")
    return (None, None) if "(" in said or ")" in said else (said, None)


def _plain(text: str) -> str:
    """The text with LaTeX commands in place of the Unicode characters that stand for them."""
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = _FRACTION.sub(_fraction, text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1]}}}", text)
    for character, command in _UNICODE.items():
        text = text.replace(character, command)
    return _PERCENT.sub(r"\\%", text).strip().rstrip(".").strip()


def _fraction(found: re.Match[str]) -> str:
    """The LaTeX command for a character that is a whole fraction."""
    above, below = unicodedata.normalize("NFKC", found[0]).split("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def _number(formula: str) -> str:
    """A number in a spelling that math-verify knows; any other formula is unchanged."""
    if found := _REPEATING.fullmatch(formula):
        sign, whole, fixed, repeated = found.groups()
        digits = Fraction(int(whole + fixed + repeated or 0) - int(whole + fixed or 0))
        value = digits / (10 ** len(fixed) * (10 ** len(repeated) - 1))
        return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"
    if found := _SCIENTIFIC.fullmatch(formula):
        return rf"{found[1]} \times 10^{{{found[2]}}}"
    if found := _DECIMAL_COMMA.fullmatch(formula):
        return f"{found[1]}.{found[2]}"
    return formula


def _without_unit(text: str) -> tuple[str, str]:
    """(formula, its tail from the first words or degree sign on); the tail is "" if it may not be a unit."""
    if (plain := _PLAIN_UNIT.fullmatch(text)) and _is_plain_unit(plain[3], is_apart=plain[2] != ""):
        return plain[1], rf"\text{{{plain[3]}}}{plain[4] or ''}"
    begin = _UNIT_BEGINS.search(text)
    if begin is None or not text[: begin.start()].strip():
        return text, ""
    tail, position = text[begin.start() :], 0
    while part := _UNIT_PART.match(tail, position):
        position = part.end()
    is_letter = (first := _TEXT.match(tail)) is not None and first[1].strip() in _LETTERS_OF_FORMULAS
    return (text[: begin.start()], tail) if position == len(tail) and not is_letter else (text, "")


def _is_plain_unit(letters: str, *, is_apart: bool) -> bool:
    """Whether letters behind a formula, perhaps with a blank between, are a word and not a product of variables."""
    word = _singular(letters)
    is_known = word in _WORDS_OF_UNITS or word in _FACTORS or word == "percent"
    return word in _SAME_UNIT or (len(letters) > 3 and (is_apart or is_known))


class _Unit(NamedTuple):
    """What the words behind a formula say."""

    name: str
    """Unit in its standard spelling; "" if there is none."""
    factors: tuple[str, ...]
    """Numbers that multiply the formula: ("1000000",) for "million dollars"."""


def _unit(tail: str) -> _Unit | None:
    """The unit and the factors before it; None if the words are not a unit."""
    text = re.sub(r"\^ *(?:\{ *)?\\circ(?: *\})?|\\degree", " degree ", tail)
    text = _TEXT.sub(lambda found: f" {found[1]} ", text)
    text = re.sub(r"\\(?:cdot|times)|\\[,;:! ]|[~*.]", " ", text)
    text = re.sub(r"\bsquared\b", "^2", re.sub(r"\bcubed\b", "^3", text))
    words = re.findall(r"[^\s/^{}]+|/|\^ *(?:\{ *)?-?\d+(?: *\})?", text)
    factors = tuple(_FACTORS[_singular(word)] for word in takewhile(lambda word: _singular(word) in _FACTORS, words))
    words = words[len(factors) :]
    if len(words) > 6 or (words and not _UNIT_FORM.fullmatch("".join(map(_kind_of_word, words)))):
        return None
    unit = " ".join(map(_one_spelling, words))
    for power, exponent in (("square", "^2"), ("sq", "^2"), ("cubic", "^3")):
        unit = re.sub(rf"\b{power} (\S+)", rf"\1 {exponent}", unit)
    return _Unit(unit, factors)


def _kind_of_word(word: str) -> str:
    """The letter that _UNIT_FORM has for a word or sign; ? for what is in no unit."""
    if word[0] in "/^":
        return word[0]
    if word == "per":
        return "p"
    if not _UNIT_WORD.fullmatch(word) or not _NO_UNIT.isdisjoint((word.casefold(), _singular(word).casefold())):
        return "?"
    return "d" if _one_spelling(word) == "degree" else "w"


def _multiplied(formula: str, factors: Sequence[str]) -> str | None:
    """The formula times the factors; None if its last side is no plain number, which could be meant otherwise."""
    if not factors:
        return formula
    before, sign, number = formula.rpartition("=")
    return f"{before}{sign}{_TIMES.join((f'({number})', *factors))}" if _SIMPLE_NUMBER.fullmatch(number) else None


def _singular(word: str) -> str:
    singular = word.removesuffix("s") if len(word) > 2 and not word.isupper() else word
    return singular.lower() if len(singular) > 3 else singular


def _one_spelling(word: str) -> str:
    if word[0] in "/^" or word == "per":
        return "/" if word == "per" else re.sub(r"[ {}]", "", word)
    singular = _singular(word)
    return _SAME_UNIT.get(singular, singular)


def _is_one_pair(text: str) -> bool:
    """Whether a text begins with a bracket that its last character closes."""
    depth = 0
    for index, each in enumerate(text):
        depth += (each in "{([") - (each in "})]")
        if depth <= 0:
            return 0 < index == len(text) - 1
    return False


def _split_at_equal_signs(formula: str) -> list[str]:
    return _split_at(re.sub(r"[<>!:]=", " ", formula), "=")


def _split_at(formula: str, mark: str) -> list[str]:
    """Parts of a formula between the marks that stand outside of all brackets."""
    parts, depth, start = [], 0, 0
    for index, each in enumerate(formula):
        depth += (each in "{([") - (each in "})]")
        if each == mark and depth <= 0:
            parts.append(formula[start:index])
            start = index + 1
    return [*parts, formula[start:]]
