"""Trajectory and one of its turns -> the trajectory that ends in that turn, whose action alone is the expert's."""

from dataclasses import replace

from verl_pivot.types import Message, Trajectory, Turn


def ending_in(trajectory: Trajectory, turn: Turn, action: Message, *, id: str) -> Trajectory:
    """The trajectory up to a turn, with this action there."""
    return replace(trajectory, id=id, messages=(*turn.state, action), expert_turns="last")
