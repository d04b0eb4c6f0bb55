"""A careless agent that answers questions about a world in a notebook: what it thinks and runs in each step."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from examples.world.habits import Habits
from examples.world.names import misspelt
from examples.world.questions import KINDS, Lookup, WorldQuestion
from examples.world.sentences import FACT_NAMES, WORDINGS, value_in

MISSING = "document"
"""Name of a variable that no cell sets; cells with a mistake use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookHabits(Habits):
    """Chances of the agent's mistakes."""

    forgets: float = 0.0
    """Chance, in each step in which it has found facts that it needs later, that it does not note them."""
    silent: float = 0.0
    """Chance, in each search, that it does not print what was found."""
    breaks: float = 0.0
    """Chance, in each step, that its cell raises an error."""
    terse: float = 0.0
    """Chance, in each step, that its thought is shorter than the required format allows."""


CARELESS = NotebookHabits(early=0.2, forgets=0.7, misspells=0.15, silent=0.1, breaks=0.1, terse=0.2, repeats=0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: a thought, and a cell that notes, searches, prints or submits."""

    thought: str
    notes: tuple[str, ...] = ()
    query: str | None = None
    prints: bool = False
    """Whether the cell prints the page that was found last."""
    answer: str | None = None
    """Python expression of the answer; None if the cell submits none."""
    is_broken: bool = False
    """Whether the cell uses a variable that does not exist, and does nothing else."""

    @property
    def text(self) -> str:
        return f"<think>{self.thought}</think><code>\n{self.code}\n</code>"

    @property
    def code(self) -> str:
        return self.broken_code if self.is_broken else "\n".join(self._lines())

    @property
    def broken_code(self) -> str:
        """The cell's code with a variable that does not exist."""
        if self.answer is not None:
            return f"submit_final_answer({MISSING})"
        return f"print({MISSING})" if self.query is None else f"page = search({MISSING})"

    def _lines(self) -> Iterator[str]:
        if self.notes:
            yield f"notepad.add_facts({', '.join(map(_quoted, self.notes))})"
        if self.query is not None:
            yield f"page = search({_quoted(self.query)})"
        if self.prints:
            yield "print(page)"
        if self.answer is not None:
            yield f"submit_final_answer({self.answer})"


def _quoted(text: str) -> str:
    return f'"{text}"'


@dataclass(slots=True, kw_only=True)
class Agent:
    """The agent at work on one question; it knows what its notes and its context say, and nothing else."""

    question: WorldQuestion
    rng: Random
    habits: NotebookHabits
    noted: set[int] = field(default_factory=set)
    """Numbers of the lookups whose values are in the Notepad."""
    _pages: str = ""
    """Pages in the current context."""
    _thought: set[int] = field(default_factory=set)
    """Numbers of the lookups whose values its thoughts in the current context name."""
    _looked_up: list[str] = field(default_factory=list)
    """Names that it searched for in the current context."""
    _last: Step | None = None
    """Previous step in the current context; None if there is none."""

    def read(self, output: str) -> None:
        """Read what the last cell printed."""
        self._pages += output

    def forget_context(self) -> None:
        """Forget what the context showed; only the notes stay."""
        self._pages, self._last = "", None
        self._thought.clear()
        self._looked_up.clear()

    def act(self) -> Step:
        """The next step; its notes count as written unless the cell is broken."""
        found = {each for each, lookup in self._lookups.items() if lookup.is_answered_by(self._pages)} | self.noted
        step = self._next(found)
        if self._happens(self.habits.terse):
            step = replace(step, thought="Go on.")
        if self._happens(self.habits.breaks):
            step = replace(step, is_broken=True, notes=())
        elif step.notes:
            self.noted |= found
        self._last = step
        return step

    def _next(self, found: set[int]) -> Step:
        last = self._last
        if last and last.query and not last.prints and not last.is_broken:
            return Step(thought="Nothing was printed.", prints=True)
        if last and last.query and self._happens(self.habits.repeats):
            return self._search(self._looked_up[-1], "I look once more.", ())
        wanted = next((number for number in self._lookups if number not in found), None)
        if wanted is not None and self._looked_up and self._happens(self.habits.early):
            return self._guess()
        fresh = sorted(found - self.noted - self._thought)
        self._thought |= set(fresh)
        thought = " ".join(
            f"The {FACT_NAMES[each.fact]} is {each.value}." for each in map(self._lookups.get, fresh) if each
        )
        if wanted is None:
            return Step(thought=thought or "Now I know the answer.", answer=self._answer)
        name = self._lookups[wanted].entity
        return self._search(name, thought or f"I look up {name}.", self._notes(found - self.noted))

    @property
    def _lookups(self) -> dict[int, Lookup]:
        return dict(enumerate(self.question.lookups))

    def _notes(self, numbers: set[int]) -> tuple[str, ...]:
        if not numbers or self._happens(self.habits.forgets):
            return ()
        lookups = (self._lookups[number] for number in sorted(numbers))
        return tuple(f"{FACT_NAMES[each.fact]}: {each.value}" for each in lookups)

    def _search(self, name: str, thought: str, notes: tuple[str, ...]) -> Step:
        self._looked_up.append(name)
        query = misspelt(name, self.rng) if self._happens(self.habits.misspells) else name
        return Step(thought=thought, notes=notes, query=query, prints=not self._happens(self.habits.silent))

    @property
    def _answer(self) -> str:
        kind, values = KINDS[self.question.kind], [each.value for each in self.question.lookups]
        if kind.difference is None:
            return _quoted(values[-1])
        first, second = (values[step - 1] for step in kind.difference)
        return f"str(abs({first} - {second}))"

    def _guess(self) -> Step:
        """A step that submits a wrong answer: another fact that the pages tell about the names looked up."""
        told = [value_in(self._pages, name, fact) for name in self._looked_up for fact in WORDINGS]
        wrong = sorted({each for each in told if each and each != self.question.answer}) or ["1950"]
        return Step(thought="That should be enough.", answer=_quoted(self.rng.choice(wrong)))

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance
