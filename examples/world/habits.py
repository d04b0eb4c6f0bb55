"""Habits: chances of the mistakes of a scripted agent; a policy learns these mistakes from its transcripts."""

from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Chances of mistakes of agents in every scaffold; if all are 0.0, the agent answers every question correctly."""

    early: float = 0.0
    """Chance, in each turn before the agent knows the answer, that it answers with another fact that it has read."""
    misspells: float = 0.0
    """Chance, in each search, that the agent misspells the name."""
    repeats: float = 0.0
    """Chance, in each turn after a search, that the agent searches for the same name again."""

    def scaled(self, factor: float) -> Self:
        """A copy with all chances multiplied by a factor; with a factor of 0.0 the agent is careful."""
        return type(self)(**{habit: factor * chance for habit, chance in asdict(self).items()})
