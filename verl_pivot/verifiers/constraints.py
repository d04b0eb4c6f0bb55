"""Verifier `constraints`: a text is right if it has the form the row asks for: schema, pattern, choice, lengths."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator
from referencing.exceptions import Unresolvable

from verl_pivot.data.json_values import is_too_deep, object_of_unique_names
from verl_pivot.off_loop import run_off_loop
from verl_pivot.types import Json, Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers import constraints_texts as texts
from verl_pivot.verifiers.constraints_patterns import check_schema, compiled_pattern, contains_match, schema_problem
from verl_pivot.verifiers.extraction import AnswerPlace, extract_answer
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

MAX_CHARS = 65_536
"""Most characters of a text that is checked; a longer text is refused."""

PhrasesT = TypeVar("PhrasesT", tuple[str, ...], dict[str, "CountRange"])


class CountRange(Options):
    """Smallest and largest number that is allowed."""

    at_least: Annotated[int, Field(ge=0)] = 0
    at_most: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most {self.at_most} is less than at_least {self.at_least}")
        if not self.at_least and self.at_most is None:
            raise ValueError("needs at_least or at_most")
        return self

    def holds(self, number: int) -> bool:
        return number >= self.at_least and (self.at_most is None or number <= self.at_most)


class ConstraintsOptions(Options):
    """Options of the verifier `constraints`; a constraint is checked only if it is given."""

    place: AnswerPlace = "all"
    """Part of the answer that is checked."""
    score: Literal["all", "share"] = "all"
    """all: 1 if every constraint is fulfilled, else 0. share: the share of the constraints that are fulfilled."""
    json_schema: dict[str, Any] | None = None
    """Schema (draft 2020-12) of the one JSON value that the text must be. Its patterns may not use lookaround or
    backreferences, `format` is not checked, and references to other documents are not fetched."""
    pattern: str | None = None
    """Regular expression, without lookaround and backreferences, that the whole text must match."""
    choices: tuple[str, ...] = ()
    """Labels of a multiple choice, such as A, B, C and D; the text must name the right one, and no other."""
    choice: str | None = None
    """The right choice; None: the choice that the expert's action names."""
    words: CountRange | None = None
    """Number of words."""
    sentences: CountRange | None = None
    """Number of sentences."""
    paragraphs: CountRange | None = None
    """Number of paragraphs."""
    bullets: CountRange | None = None
    """Number of bullet points."""
    placeholders: CountRange | None = None
    """Number of placeholders such as [address]."""
    capital_words: CountRange | None = None
    """Number of words in capitals."""
    occurrences: dict[str, CountRange] = Field(default_factory=dict)
    """{word or phrase: number of times that it stands in the text, in upper or lower case}"""
    keywords: tuple[str, ...] = ()
    """Words or phrases that must stand in the text, in upper or lower case."""
    forbidden_words: tuple[str, ...] = ()
    """Words or phrases that must not stand in the text, in upper or lower case."""
    starts_with: str = ""
    """Exact words that the text must begin with."""
    ends_with: str = ""
    """Exact words that the text must end with."""
    letter_case: Literal["lower", "upper"] | None = None
    """Case that all letters must have."""
    has_no_commas: bool = False
    """Whether commas are forbidden in the text."""
    has_title: bool = False
    """Whether the text must contain a title, written as <<title>>."""
    is_quoted: bool = False
    """Whether the whole text must stand in double quotes."""

    @field_validator("json_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            check_schema(schema)
        return schema

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            compiled_pattern(_whole(pattern))
        return pattern

    @field_validator("keywords", "forbidden_words", "occurrences")
    @classmethod
    def _check_words(cls, phrases: PhrasesT) -> PhrasesT:
        if not all(map(texts.num_words, phrases)):
            raise ValueError(f"must be words or phrases with a letter or digit, got {list(phrases)}")
        return phrases

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({each.casefold().strip() for each in self.choices}) < len(self.choices) or "" in self.choices:
            raise ValueError("choices must not be empty, and must differ in more than case and surrounding spaces")
        if self.choice is not None and self.choice not in self.choices:
            raise ValueError(f"choice {self.choice!r} is not among the choices {list(self.choices)}")
        if not self.model_dump(exclude={"place", "score", "choice"}, exclude_defaults=True):
            raise ValueError("needs at least one constraint, such as words, keywords, pattern, json_schema or choices")
        return self


@register("constraints", options=ConstraintsOptions)
class ConstraintsVerifier:
    """Checks the form of a text: a JSON schema, a regular expression, a choice, and instructions like those of IFEval.

    Only the right choice may be taken from the expert's action; the other constraints do not depend on it. Source of
    the instructions: arXiv:2311.07911. Sentences are counted by their punctuation marks, not by a trained splitter.
    """

    def __init__(self, options: ConstraintsOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        choice = options.choice
        if options.choices and choice is None:
            choice = self._choice_of(turn.expert)
            if choice is None:
                return broken_expert("the expert's action must name one choice; or set the option choice")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        text = extract_answer(action.content, options.place)
        if isinstance(text, Verdict):
            return text
        if len(text) > MAX_CHARS:
            return refuse(Reason.TOO_LONG, f"{len(text)} characters")
        return await run_off_loop(len(text), self._verdict, text, choice)

    def _choice_of(self, expert: Message) -> str | None:
        text = extract_answer(expert.content, self._options.place)
        is_text = isinstance(text, str) and not expert.tool_calls and len(text) <= MAX_CHARS
        return texts.chosen(text, self._options.choices) if is_text and isinstance(text, str) else None

    def _verdict(self, text: str, choice: str | None) -> Verdict:
        try:
            problems = list(_problems(text, self._options, choice))
        except (Unresolvable, RecursionError) as error:
            return broken_expert(f"json_schema has an unresolvable or endlessly recursive $ref: {error}")
        found = [problem for problem in problems if problem is not None]
        if self._options.score == "share":
            return graded(1.0 - len(found) / len(problems), "; ".join(found))
        return refuse(Reason.WRONG_FORM, "; ".join(found)) if found else Verdict.accept()


def _problems(text: str, options: ConstraintsOptions, choice: str | None) -> Iterator[str | None]:
    """For each constraint, how the text breaks it; None if the constraint is fulfilled."""
    if options.json_schema is not None:
        yield _json_problem(text, options.json_schema)
    if options.pattern is not None:
        yield _unless(contains_match(_whole(options.pattern), text), f"does not match {options.pattern!r}")
    if choice is not None:
        yield _unless(texts.chosen(text, options.choices) == choice, "names another choice, several choices or none")
    for name, count in _COUNTS.items():
        wanted = getattr(options, name)
        if wanted is not None:
            number = count(text)
            yield _unless(wanted.holds(number), f"{number} {name.replace('_', ' ')}")
    yield from _word_problems(text, options)
    yield from _shape_problems(text, options)


_COUNTS: dict[str, Callable[[str], int]] = {
    "words": texts.num_words,
    "sentences": texts.num_sentences,
    "paragraphs": texts.num_paragraphs,
    "bullets": texts.num_bullets,
    "placeholders": texts.num_placeholders,
    "capital_words": texts.num_capital_words,
}


def _word_problems(text: str, options: ConstraintsOptions) -> Iterator[str | None]:
    for phrase, wanted in options.occurrences.items():
        number, most = texts.num_occurrences(text, phrase), texts.num_in_any_dress(text, phrase)
        yield _unless(wanted.holds(number) and wanted.holds(most), f"{phrase!r} occurs {most} times")
    for phrase in options.keywords:
        yield _unless(texts.num_occurrences(text, phrase) > 0, f"does not contain {phrase!r}")
    for phrase in options.forbidden_words:
        yield _unless(texts.num_in_any_dress(text, phrase) == 0, f"contains {phrase!r}")


def _shape_problems(text: str, options: ConstraintsOptions) -> Iterator[str | None]:
    if options.starts_with:
        yield _unless(text.startswith(options.starts_with), f"does not begin with {options.starts_with!r}")
    if options.ends_with:
        yield _unless(text.endswith(options.ends_with), f"does not end with {options.ends_with!r}")
    if options.letter_case is not None:
        yield _unless(texts.is_in_case(text, options.letter_case), f"not all in {options.letter_case} case")
    if options.has_no_commas:
        yield _unless(not texts.has_comma(text), "contains a comma")
    if options.has_title:
        yield _unless(texts.has_title(text), "does not contain a <<title>>")
    if options.is_quoted:
        yield _unless(texts.is_quoted(text), "not in double quotes")


def _json_problem(text: str, schema: dict[str, Any]) -> str | None:
    try:
        value: Json = json.loads(text, object_pairs_hook=object_of_unique_names, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    if is_too_deep(value):
        return "nested too deeply"
    if not _is_unicode(value):
        return "a text holds a lone surrogate"
    try:
        return schema_problem(schema, value)
    except OverflowError:
        return "a number is too large for a float"


def _is_unicode(value: Json) -> bool:
    """Whether no text holds a lone surrogate, with which no pattern could be matched."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON value")


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


def _unless(holds: bool, problem: str) -> str | None:
    return None if holds else problem
