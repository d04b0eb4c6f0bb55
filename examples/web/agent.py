"""A careless agent that does tasks of MiniWoB++: what it calls after each page, by the elements' numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Self

from examples.web.page import Element, choosable, read_page
from examples.web.tasks import Step
from verl_pivot.types import JsonObject, ToolCall

POPUP = "Exit to home page?"
"""Text of a popup; agreeing to it leaves the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHabits:
    """Chances of the agent's mistakes; with all at 0.0 it solves every task."""

    strays: float = 0.0
    """Chance, in each turn, that it clicks on another element."""
    misspells: float = 0.0
    """Chance, in each field and list, that it writes or chooses something else, and does not notice."""
    early: float = 0.0
    """Chance, in each turn, that it stops."""
    idles: float = 0.0
    """Chance, in its first turn, that it scrolls a page that has nothing more to show."""

    def scaled(self, factor: float) -> Self:
        """All chances times a factor."""
        return type(self)(**{habit: factor * chance for habit, chance in asdict(self).items()})


CARELESS = WebHabits(strays=0.2, misspells=0.25, early=0.12, idles=0.3)
IDLE_CALL = ToolCall(name="scroll", arguments={"direction": "down"})
STOPPED = "Done."
"""Message with which the agent stops."""


@dataclass(slots=True, kw_only=True)
class WebAgent:
    """The agent at work on one task; it knows the page that it read last, and what it means to write."""

    steps: tuple[Step, ...]
    rng: Random
    habits: WebHabits = WebHabits()
    _has_begun: bool = False
    _meant: set[int] = field(default_factory=set)
    """Numbers of the steps whose values it has decided, rightly or wrongly."""

    def act(self, page: str) -> ToolCall | None:
        """The next call; None if it stops."""
        elements = read_page(page)
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._happens(self.habits.idles):
            return IDLE_CALL
        if self._happens(self.habits.early):
            return None
        if any(POPUP in (each.text, each.name) for each in elements):
            return _on(Step(tool="click", role="button", name="Cancel"), elements)
        number = next((place for place, each in enumerate(self.steps) if not each.is_done(elements)), None)
        if number is None:
            return None
        target = self.steps[number].target(elements)
        others = [each for each in choosable(elements) if each is not target and "disabled" not in each.marks]
        if others and self._happens(self.habits.strays):
            return _call("click", self.rng.choice(others), {})
        self._settle(number, elements)
        return _on(self.steps[number], elements)

    def _settle(self, number: int, elements: Sequence[Element]) -> None:
        """Decide, once for each step, what to write or choose in it."""
        step = self.steps[number]
        if number in self._meant or step.tool == "click":
            return
        self._meant.add(number)
        if self._happens(self.habits.misspells):
            wrong = _misspelt(step.value, self.rng) if step.tool == "fill" else self._other_option(step, elements)
            self.steps = (*self.steps[:number], replace(step, value=wrong), *self.steps[number + 1 :])

    def _other_option(self, step: Step, elements: Sequence[Element]) -> str:
        names = sorted({each.name for each in elements if each.role == "option"} - {step.value})
        return self.rng.choice(names) if names else step.value

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance


def _on(step: Step, elements: Sequence[Element]) -> ToolCall | None:
    """The call that does a step; None if the page does not show what it acts on."""
    target = step.target(elements)
    values: dict[str, JsonObject] = {"click": {}, "fill": {"text": step.value}, "select": {"option": step.value}}
    return None if target is None else _call(step.tool, target, values[step.tool])


def _call(tool: str, element: Element, values: JsonObject) -> ToolCall:
    return ToolCall(name=tool, arguments={"number": element.number, **values})


def _misspelt(text: str, rng: Random) -> str:
    """The text with another letter or digit in one place."""
    place = rng.randrange(len(text))
    other = rng.choice([each for each in "aeiounrst0123456789" if each != text[place]])
    return f"{text[:place]}{other}{text[place + 1 :]}"
