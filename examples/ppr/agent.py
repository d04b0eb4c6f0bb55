"""A careless agent that answers questions by searching: what it thinks, and searches for or answers, in each turn."""

from dataclasses import dataclass, field
from random import Random

from examples.world.habits import Habits
from examples.world.names import misspelt
from examples.world.questions import Lookup, WorldQuestion
from examples.world.sentences import WORDINGS, sentence_in, value_in

RAMBLINGS = (
    "This needs some thought.",
    "I should weigh every word of what I read.",
    "There may be more to find out than it seems at first.",
    "One thing follows from another, and so on to the end.",
    "Many pages tell many things, and few of them are of any use.",
    "Whoever hurries here will have to begin again from the very start.",
)
"""Sentences that say nothing, each of them one token of the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHabits(Habits):
    """Chances of the agent's mistakes."""

    wanders: float = 0.0
    """Chance, in each turn before it knows the answer, that it searches for another name that it has read."""
    omits: float = 0.0
    """Chance, in each turn after it found what it looked for, that it does not quote it."""
    rambles: float = 0.0
    """Chance, in each turn and again after each such sentence, that it says a sentence of RAMBLINGS."""


CARELESS = SearchHabits(early=0.2, misspells=0.06, repeats=0.1, wanders=0.12, omits=0.2, rambles=0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTurn:
    """One turn: a thought, and a search or an answer."""

    thought: str
    query: str | None = None
    answer: str = ""
    """The answer; it counts only without a query."""

    @property
    def text(self) -> str:
        done = f"<answer>{self.answer}</answer>" if self.query is None else f"<search>{self.query}</search>"
        return f"<think>{self.thought}</think>\n{done}"


@dataclass(slots=True, kw_only=True)
class SearchAgent:
    """The agent at work on one question; it knows nothing but what the pages say that it has read."""

    question: WorldQuestion
    rng: Random
    habits: SearchHabits
    _pages: str = ""
    """Pages that it has read."""
    _read: set[int] = field(default_factory=set)
    """Numbers of the lookups whose facts the pages of earlier turns tell."""
    _looked_up: list[str] = field(default_factory=list)
    """Names that it searched for."""

    def read(self, page: str) -> None:
        """Read what a search found."""
        self._pages += f"{page}\n"

    def act(self) -> SearchTurn:
        """The next turn."""
        lookups = self.question.lookups
        found = {number for number, each in enumerate(lookups) if each.is_answered_by(self._pages)}
        fresh = [lookups[number] for number in sorted(found - self._read)]
        self._read |= found
        wanted = next((each for number, each in enumerate(lookups) if number not in found), None)
        said = [told for each in fresh if (told := sentence_in(self._pages, each.entity, each.fact))]
        if self._happens(self.habits.omits):
            said = []
        while self._happens(self.habits.rambles):
            said.insert(0, self.rng.choice(RAMBLINGS))
        return self._after(" ".join(said), wanted)

    def _after(self, said: str, wanted: Lookup | None) -> SearchTurn:
        """The next turn, whose thought says `said`, or a stock phrase if that is empty; `wanted` is the next lookup."""
        if self._looked_up and self._happens(self.habits.repeats):
            return self._search(self._looked_up[-1], said or "I look once more.")
        if wanted is None:
            return SearchTurn(thought=said or "Now I know the answer.", answer=self.question.answer)
        if self._looked_up and self._happens(self.habits.early):
            return self._guess()
        others = sorted(self._names - {wanted.entity, *self._looked_up})
        if others and self._happens(self.habits.wanders):
            name = self.rng.choice(others)
            return self._search(name, "I look on.")
        return self._search(wanted.entity, said or ("I look on." if self._looked_up else self.question.text))

    @property
    def _told(self) -> set[str]:
        """Values of all facts about the names that it looked up, as far as the pages tell them."""
        told = (value_in(self._pages, name, fact) for name in self._looked_up for fact in WORDINGS)
        return {each for each in told if each}

    @property
    def _names(self) -> set[str]:
        return {each for each in self._told if not each.isdigit()}

    def _search(self, name: str, thought: str) -> SearchTurn:
        self._looked_up.append(name)
        if self._happens(self.habits.misspells):
            name = misspelt(name, self.rng)
        return SearchTurn(thought=thought, query=name)

    def _guess(self) -> SearchTurn:
        """A turn with a wrong answer: another fact that the pages tell about the names looked up."""
        wrong = sorted(self._told - {self.question.answer}) or ["1950"]
        return SearchTurn(thought="That should be enough.", answer=self.rng.choice(wrong))

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance
