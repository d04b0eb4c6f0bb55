"""World -> questions of one to three hops, with the lookups by which an oracle finds each answer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from examples.world.entities import Entity, Kind
from examples.world.sentences import value_in
from verl_pivot.types import JsonObject


class Step(NamedTuple):
    """One fact to look up."""

    of: int
    """Source of the entity's name: 0 is the question, and n is the value of step n, counted from 1."""
    fact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionKind:
    """A kind of question, with the steps to its answer."""

    about: Kind
    """Kind of the entity that the question names."""
    num_hops: int
    """Number of documents that must be read one after the other, since each names the next."""
    steps: tuple[Step, ...]
    wordings: tuple[str, ...]
    difference: tuple[int, int] | None = None
    """Two steps, counted from 1, whose values differ by the answer; None if the answer is the last step's value."""
    is_held_out: bool = False
    """Whether training never sees such a question."""

    def answer(self, values: Sequence[str]) -> str:
        """The answer from the values of all steps."""
        if self.difference is None:
            return values[-1]
        first, second = (int(values[step - 1]) for step in self.difference)
        return str(abs(first - second))


_FOUNDER = Step(0, "founder")
KINDS = {
    "birth_year": QuestionKind(
        about="person",
        num_hops=1,
        steps=(Step(0, "birth_year"),),
        wordings=("In which year was {name} born?", "What is the year of birth of {name}?"),
    ),
    "seat": QuestionKind(
        about="firm",
        num_hops=1,
        steps=(Step(0, "seat"),),
        wordings=("In which town is {name} based?", "Where does {name} have its seat?"),
    ),
    "employer_seat": QuestionKind(
        about="person",
        num_hops=2,
        steps=(Step(0, "employer"), Step(1, "seat")),
        wordings=("In which town is the firm based that employs {name}?", "Where is the employer of {name} based?"),
    ),
    "founder_town": QuestionKind(
        about="firm",
        num_hops=2,
        steps=(_FOUNDER, Step(1, "birth_town")),
        wordings=("In which town was the founder of {name} born?", "Where was the person born who founded {name}?"),
    ),
    "founder_age": QuestionKind(
        about="firm",
        num_hops=2,
        steps=(_FOUNDER, Step(1, "birth_year"), Step(0, "founded")),
        difference=(3, 2),
        wordings=("How many years after the birth of its founder was {name} founded?",),
    ),
    "founder_population": QuestionKind(
        about="firm",
        num_hops=3,
        steps=(_FOUNDER, Step(1, "birth_town"), Step(2, "population")),
        wordings=("How many people live in the town where the founder of {name} was born?",),
    ),
    "population_gap": QuestionKind(
        about="firm",
        num_hops=3,
        steps=(_FOUNDER, Step(1, "birth_town"), Step(2, "population"), Step(0, "seat"), Step(4, "population")),
        difference=(3, 5),
        wordings=(
            "By how many people do the town where {name} is based and the town where its founder was born differ?",
        ),
    ),
    "mayor_birth_year": QuestionKind(
        about="firm",
        num_hops=3,
        steps=(Step(0, "seat"), Step(1, "mayor"), Step(2, "birth_year")),
        wordings=("In which year was the mayor of the town born where {name} is based?",),
        is_held_out=True,
    ),
}
"""{name: kind of question}"""


class Lookup(NamedTuple):
    """A step of one question."""

    entity: str
    """Name of the entity whose document tells the fact."""
    fact: str
    value: str

    def is_asked_by(self, query: str) -> bool:
        """Whether a search has every word of the entity's name, spelt right but in any case of letters."""
        return set(re.findall(r"\w+", self.entity.lower())) <= set(re.findall(r"\w+", query.lower()))

    def is_answered_by(self, page: str) -> bool:
        """Whether a page tells the fact."""
        return value_in(page, self.entity, self.fact) == self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldQuestion:
    """A question about a world, with its answer and the lookups by which an oracle finds it."""

    id: str
    kind: str
    text: str
    answer: str
    lookups: tuple[Lookup, ...]
    """[num_steps] what to look up, in order."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "WorldQuestion":
        """The question of a row that `as_row` made."""
        lookups = tuple(Lookup(each["entity"], each["fact"], each["value"]) for each in row["lookups"])
        (answer,) = row["answers"]
        return cls(id=row["id"], kind=row["kind"], text=row["question"], answer=answer, lookups=lookups)

    def as_row(self) -> JsonObject:
        """A row that `verl-pivot qa-rows` reads."""
        lookups: list[JsonObject] = [
            {"entity": each.entity, "fact": each.fact, "value": each.value} for each in self.lookups
        ]
        hops = KINDS[self.kind].num_hops
        return {
            "id": self.id,
            "question": self.text,
            "answers": [self.answer],
            "kind": self.kind,
            "num_hops": hops,
            "lookups": [*lookups],
        }


def training_questions(
    world: Sequence[Entity], number: int, seed: int, kinds: Sequence[str] = tuple(KINDS)
) -> list[WorldQuestion]:
    """Questions of each of the kinds that are not held out, on entities that are not held out."""
    seen = [each for each in kinds if not KINDS[each].is_held_out]
    return _drawn([each for each in world if not each.is_held_out], seen, number, Random(f"training {seed}"))


def demonstration_questions(
    world: Sequence[Entity], number: int, seed: int, kinds: Sequence[str] = tuple(KINDS)
) -> list[WorldQuestion]:
    """Questions of each of the kinds on entities that are not held out, for transcripts that teach a policy."""
    return _drawn([each for each in world if not each.is_held_out], kinds, number, Random(f"demonstration {seed}"))


def held_out_questions(
    world: Sequence[Entity], number: int, seed: int, kinds: Sequence[str] = tuple(KINDS)
) -> list[WorldQuestion]:
    """Questions of each of the kinds on held-out entities."""
    return _drawn([each for each in world if each.is_held_out], kinds, number, Random(f"held out {seed}"))


def _drawn(entities: Sequence[Entity], kinds: Sequence[str], number: int, rng: Random) -> list[WorldQuestion]:
    """Different questions; the numbers of questions of two kinds differ by at most one.

    Raises:
        ValueError: If there are not enough entities.
    """
    by_name = {each.name: each for each in entities}
    questions: list[WorldQuestion] = []
    for index, name in enumerate(kinds):
        share = number // len(kinds) + (index < number % len(kinds))
        about = [each for each in entities if each.kind == KINDS[name].about]
        if share > len(about):
            raise ValueError(f"{number} questions need {share} entities of kind {KINDS[name].about}, not {len(about)}")
        questions += (_question(name, each, by_name, rng) for each in rng.sample(about, share))
    rng.shuffle(questions)
    return questions


def _question(kind_name: str, entity: Entity, by_name: dict[str, Entity], rng: Random) -> WorldQuestion:
    kind = KINDS[kind_name]
    lookups = tuple(_lookups(kind, entity, by_name))
    return WorldQuestion(
        id=f"{kind_name}: {entity.name}",
        kind=kind_name,
        text=rng.choice(kind.wordings).format(name=entity.name),
        answer=kind.answer([each.value for each in lookups]),
        lookups=lookups,
    )


def _lookups(kind: QuestionKind, entity: Entity, by_name: dict[str, Entity]) -> Iterator[Lookup]:
    values = [entity.name]
    for step in kind.steps:
        values.append(by_name[values[step.of]].facts[step.fact])
        yield Lookup(values[step.of], step.fact, values[-1])
