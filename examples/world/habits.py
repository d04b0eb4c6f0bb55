"""Habits: chances of the mistakes of a scripted agent, whose transcripts teach a policy that makes them too."""

from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Chances of mistakes that agents in every scaffold make; at 0.0 each the agent answers every question rightly."""

    early: float = 0.0
    """In each turn in which it does not know the answer yet: that it answers with another fact that it has read."""
    misspells: float = 0.0
    """In each search: that it gets the name wrong."""
    repeats: float = 0.0
    """In each turn after a search: that it searches for the same once more."""

    def scaled(self, factor: float) -> Self:
        """All chances times a factor; at 0.0 the agent is careful."""
        return type(self)(**{habit: factor * chance for habit, chance in asdict(self).items()})
