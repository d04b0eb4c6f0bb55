"""Facts <-> the sentences of documents that tell them, in several wordings; and sentences that tell no fact."""

import re
from random import Random

WORDINGS = {
    "birth_year": ("{name} was born in the year {value}.", "The birth of {name} fell in the year {value}."),
    "birth_town": ("{name} grew up in {value}, the place of birth.", "{name} was born in the town of {value}."),
    "employer": ("{name} earns a living at {value}.", "{name} is on the staff of {value}."),
    "founder": ("{name} was founded by {value}.", "{name} has as its founder {value}."),
    "founded": ("{name} was founded in the year {value}.", "The year in which {name} was founded is {value}."),
    "seat": ("{name} is based in {value}.", "The seat of {name} is the town of {value}."),
    "population": ("{name} is home to {value} people.", "{name} has {value} inhabitants."),
    "mayor": ("{name} has as its mayor {value}.", "{name} elected {value} as its mayor."),
}
"""{fact: wordings of its sentence}; the words before the value differ by fact, which helps a small policy learn."""
FACT_NAMES = {fact: fact.replace("_", " ") for fact in WORDINGS}
"""{fact: its name in the messages of agents}"""
_FILLERS = (
    "A bridge nearby was repaired {number} times.",
    "An old almanac spends {number} lines on the weather there.",
    "Letters from that time fill {number} boxes of the archive.",
    "Of the pictures that were taken, {number} are lost.",
    "A garden with {number} pear trees lies behind the house.",
    "Visitors remember a clock that was {number} minutes slow.",
    "The first edition of the guide had {number} pages.",
    "Neighbours once counted {number} crows on one roof.",
    "The road there has {number} bends and no inn.",
    "A song of {number} verses is still known.",
)
"""Sentences that no question asks about; each has a number, so that no number is the only one in its document."""
_VALUE = r"(\d+|[A-Z][a-z]+(?: [A-Z][a-z]+)?)"
"""A number, or a name of one or two words."""

VOCABULARY = frozenset(
    re.findall(r"[a-z]+", " ".join([*(each for wordings in WORDINGS.values() for each in wordings), *_FILLERS]).lower())
)
"""Words of all sentences; none of them may be a name."""


def sentence(name: str, fact: str, value: str, rng: Random) -> str:
    """A sentence that tells a fact of an entity, in a random wording."""
    return rng.choice(WORDINGS[fact]).format(name=name, value=value)


def sentence_in(page: str, name: str, fact: str) -> str | None:
    """The sentence of a page that tells a fact of an entity; None if the page does not tell it."""
    value = value_in(page, name, fact)
    told = (each.format(name=name, value=value) for each in WORDINGS[fact])
    return next((each for each in told if each in page), None)


def fillers(number: int, rng: Random) -> list[str]:
    """Different sentences that no question asks about."""
    return [each.format(number=rng.randrange(3, 90)) for each in rng.sample(_FILLERS, number)]


def value_in(page: str, name: str, fact: str) -> str | None:
    """The value that a page gives for a fact of an entity; None if the page does not tell it."""
    for wording in WORDINGS[fact]:
        pattern = re.escape(wording).replace(r"\{name\}", re.escape(name)).replace(r"\{value\}", _VALUE)
        if found := re.search(rf"(?<!\w){pattern}", page):
            return found[1]
    return None
