"""Trajectory and one of its turns -> the trajectory that ends with that turn, which is its only expert turn."""

from dataclasses import replace

from verl_pivot.types import Message, Trajectory, Turn


def ending_in(trajectory: Trajectory, turn: Turn, action: Message, *, id: str) -> Trajectory:
    """The trajectory up to a turn, with the given action as that turn."""
    return replace(trajectory, id=id, messages=(*turn.state, action), expert_turns="last")
