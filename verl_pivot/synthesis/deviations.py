"""Deviations of a policy from an expert's trajectory -> the worst first, and trajectories that recover from them.

STeCa (arXiv:2502.14276): an action is a deviation if the mean outcome of conversations that continue after it is no
better than that of conversations that continue after the expert's action one turn earlier.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from verl_pivot.data.turns import PROVENANCE, split_key
from verl_pivot.types import Message, Role, Trajectory


class ThoughtPlace(StrEnum):
    """Part of a message that holds a thought."""

    CONTENT = "content"
    """The text before the calls, which every chat template shows."""
    REASONING = "reasoning"
    """The thinking, which chat templates of models without thinking leave out."""


class Deviation(NamedTuple):
    """An action of the policy in a state of the expert's trajectory, with the values before and after it."""

    turn: int
    """Index, among the turns after the prompt, of the expert's turn in whose state the policy acts."""
    action: Message
    value_before: float
    """Mean outcome of continuations after the expert's previous turn: V(s_{t-1}, a*_{t-1})."""
    value: float
    """Mean outcome of continuations after the action: V(s_t, a_t)."""


def mean_outcome(outcomes: Iterable[float | None]) -> float | None:
    """Mean of the decided outcomes; None if no outcome is decided."""
    decided = [outcome for outcome in outcomes if outcome is not None]
    return fmean(decided) if decided else None


def by_loss(found: Iterable[Deviation]) -> list[Deviation]:
    """The deviations by loss of value, greatest first; for equal losses, the earlier turn first.

    STeCa's released code defines thresholds of 0.01 for the values but does not use them; here there is no threshold.

    Args:
        found: Actions that differ from the expert's. Actions that increase the value are no deviations.
    """
    deviations = [each for each in found if each.value <= each.value_before]
    return sorted(deviations, key=lambda each: (each.value - each.value_before, each.turn))


def recovering_turns(expert: Sequence[Message], deviation: Deviation) -> tuple[Message, ...]:
    """[num_turns + 1] the expert's turns, with the deviation inserted before the expert's turn in the same state."""
    return (*expert[: deviation.turn], deviation.action, *expert[deviation.turn :])


def calibrated(
    expert: Trajectory, messages: Sequence[Message], index: int, thought: str, place: ThoughtPlace, *, id: str
) -> Trajectory:
    """The trajectory with a deviation, a thought about it, and the expert's further turns.

    The deviation does not count as an expert turn.

    Args:
        expert: The expert's trajectory.
        messages: All messages of the played conversation with the deviation.
        index: Position of the deviation among all assistant turns, counted from 0.
        thought: Thought about the deviation, which is put at the beginning of the next turn.
        place: Part of the message that holds the thought.
        id: Id of the new trajectory, which falls into the same split as the expert's.
    """
    positions = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    known, after = expert.metadata.get(PROVENANCE), positions[index + 1]
    provenance = known if isinstance(known, dict) else {}
    split_by = split_key(expert.id, expert.metadata)
    return replace(
        expert,
        id=id,
        messages=(*messages[:after], _with_thought(messages[after], thought, place), *messages[after + 1 :]),
        passed=True,
        metadata={**expert.metadata, PROVENANCE: {**provenance, "split_by": split_by}},
        expert_turns=tuple(each + (each >= index) for each in expert.expert_indices),
    )


def _with_thought(message: Message, thought: str, place: ThoughtPlace) -> Message:
    if place is ThoughtPlace.REASONING:
        return replace(message, reasoning="\n\n".join(filter(None, (thought, message.reasoning))))
    return replace(message, content="\n\n".join(filter(None, (thought, message.content))))
