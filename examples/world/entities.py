"""Seed -> a world of invented people, towns and firms in two halves, and a document on each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from examples.world.sentences import VOCABULARY, fillers, sentence

Kind: TypeAlias = Literal["person", "town", "firm"]
ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "r", "s", "t", "tr", "v", "z")
VOWELS = ("a", "e", "i", "o", "u")
ENDS = ("", "l", "n", "r", "s", "t", "x")
"""A word of a name has two or three syllables, each an onset and a vowel, and then an end."""
TRADES = ("Mills", "Foundry", "Press", "Shipyard", "Glassworks", "Brewery", "Textiles", "Optics")
"""Second words of the names of firms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A person, a town or a firm.

    Example:
        Entity(name="Vako Mills", kind="firm", is_held_out=False,
               facts={"founder": "Brem Tazil", "founded": "1931", "seat": "Dolvex"})
    """

    name: str
    kind: Kind
    is_held_out: bool
    """Whether only held-out questions use it."""
    facts: Mapping[str, str]
    """{fact: value}; a value is a number or the name of another entity of the same half."""


class Document(NamedTuple):
    """One page of the corpus."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """Numbers of entities in the whole world."""

    people: int = 2400
    firms: int = 900
    towns: int = 300
    held_out_share: float = 0.25
    """Share of each kind that only held-out questions use."""

    def __post_init__(self) -> None:
        smallest = min(
            self.share_of(each, is_held_out) for each in (self.towns, self.firms) for is_held_out in (True, False)
        )
        if smallest < 3 or self.people < 2 * (self.firms + self.towns):
            raise ValueError("a world needs 3 towns and 3 firms in each half, and two people for each firm and town")

    def share_of(self, number: int, is_held_out: bool) -> int:
        """Number of entities in one half, if the whole world has `number`."""
        held_out = round(number * self.held_out_share)
        return held_out if is_held_out else number - held_out


def make_world(seed: int, size: WorldSize = WorldSize()) -> tuple[Entity, ...]:
    """All entities; the facts of held-out entities never name one of the others, nor the reverse."""
    rng = Random(f"world {seed}")
    words = _words(rng)
    first_names = [next(words) for _ in range(60)]
    halves = [_half(rng, words, first_names, size, is_held_out) for is_held_out in (False, True)]
    return tuple(entity for half in halves for entity in half)


def _words(rng: Random) -> Iterator[str]:
    """Different invented words with a capital, none of which stands in the sentences of documents."""
    taken = set(VOCABULARY) | {each.lower() for each in TRADES}
    while True:
        syllables = (rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((2, 2, 3))))
        word = "".join(syllables) + rng.choice(ENDS)
        if word not in taken:
            taken.add(word)
            yield word.capitalize()


def _half(
    rng: Random, words: Iterator[str], first_names: list[str], size: WorldSize, is_held_out: bool
) -> list[Entity]:
    num_people, num_firms, num_towns = (
        size.share_of(number, is_held_out) for number in (size.people, size.firms, size.towns)
    )
    towns = [next(words) for _ in range(num_towns)]
    firms = [f"{next(words)} {rng.choice(TRADES)}" for _ in range(num_firms)]
    people = [f"{rng.choice(first_names)} {next(words)}" for _ in range(num_people)]
    populations = rng.sample(range(1000, 100_000), num_towns)
    facts: dict[str, dict[str, str]] = {}
    for town, mayor, population in zip(towns, people[num_firms:], populations, strict=False):
        facts[town] = {"population": str(population), "mayor": mayor}  # the mayor has founded no firm
    for firm in firms:
        facts[firm] = {"seat": rng.choice(towns)}
    for person in people:
        employer = rng.choice(firms)
        facts[person] = {"birth_year": str(rng.randrange(1900, 1970)), "employer": employer}
        facts[person]["birth_town"] = _other(towns, facts[employer]["seat"], rng)
    for firm, founder in zip(firms, people, strict=False):
        facts[firm] |= {"founder": founder, "founded": str(int(facts[founder]["birth_year"]) + rng.randrange(20, 50))}
        while facts[firm]["seat"] == facts[founder]["birth_town"]:
            facts[founder]["birth_town"] = _other(towns, facts[facts[founder]["employer"]]["seat"], rng)
    kinds: dict[Kind, list[str]] = {"person": people, "town": towns, "firm": firms}
    return [
        Entity(name=name, kind=kind, is_held_out=is_held_out, facts=facts[name])
        for kind, names in kinds.items()
        for name in names
    ]


def _other(names: list[str], name: str, rng: Random) -> str:
    """A random one of the names other than `name`."""
    return rng.choice([each for each in names if each != name])


def make_documents(world: tuple[Entity, ...], seed: int, num_fillers: int = 3) -> list[Document]:
    """One document for each entity, in random order; the entity's facts stand among other sentences.

    Args:
        world: The entities.
        seed: Seed of wordings and orders.
        num_fillers: Number of sentences in a document that no question asks about.
    """
    rng = Random(f"documents {seed}")
    documents = [_document(entity, num_fillers, rng) for entity in world]
    rng.shuffle(documents)
    return documents


def _document(entity: Entity, num_fillers: int, rng: Random) -> Document:
    facts = [sentence(entity.name, fact, value, rng) for fact, value in entity.facts.items()]
    sentences = [*facts, *fillers(num_fillers, rng)]
    rng.shuffle(sentences)
    return Document(entity.name, " ".join(sentences))
