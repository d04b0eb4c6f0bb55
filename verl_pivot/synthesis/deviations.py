"""Turns at which a policy leaves an expert's way -> the worst of them first, and trajectories that come back.

STeCa (arXiv:2502.14276): an action deviates if conversations that go on behind it come out no better, in the mean, than
those that go on behind the expert's action one turn earlier.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from verl_pivot.data.turns import PROVENANCE, split_key
from verl_pivot.types import Message, Role, Trajectory


class ThoughtPlace(StrEnum):
    """Part of a message in which a thought stands."""

    CONTENT = "content"
    """The text before the calls, which every chat template shows."""
    REASONING = "reasoning"
    """The thinking, which templates of models without thinking leave out."""


class Deviation(NamedTuple):
    """An action of the policy in a state of the expert, after which it does no better than before."""

    turn: int
    """Index of the expert's turn that it takes the place of, among those after the prompt."""
    action: Message
    value_before: float
    """Mean outcome behind the expert's turn before it: V(s_{t-1}, a*_{t-1})."""
    value: float
    """Mean outcome behind the action: V(s_t, a_t)."""


def mean_outcome(outcomes: Iterable[float | None]) -> float | None:
    """Mean of the outcomes that are decided; None if none is."""
    decided = [outcome for outcome in outcomes if outcome is not None]
    return fmean(decided) if decided else None


def by_loss(found: Iterable[Deviation]) -> list[Deviation]:
    """The deviations with the greatest loss of value first, the earlier turn first where losses are equal.

    STeCa's released code has thresholds of 0.01 for the values and uses none; there is none here.

    Args:
        found: Actions that differ from the expert's; those whose value is greater than before are no deviations.
    """
    deviations = [each for each in found if each.value <= each.value_before]
    return sorted(deviations, key=lambda each: (each.value - each.value_before, each.turn))


def recovering_turns(expert: Sequence[Message], deviation: Deviation) -> tuple[Message, ...]:
    """[num_turns + 1] the expert's turns with the deviation before the one whose place it took."""
    return (*expert[: deviation.turn], deviation.action, *expert[deviation.turn :])


def calibrated(
    expert: Trajectory, messages: Sequence[Message], index: int, thought: str, place: ThoughtPlace, *, id: str
) -> Trajectory:
    """The trajectory that deviates, thinks about it, and goes on as the expert does; the deviation is no expert turn.

    Args:
        expert: The expert's trajectory.
        messages: All messages of the conversation with the deviation, as they were run.
        index: Position of the deviation among all assistant turns, from 0.
        thought: What the assistant thinks of its deviation, at the beginning of its next turn.
        place: Where the thought stands.
        id: Id of the trajectory, which falls into the split of the expert's.
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
