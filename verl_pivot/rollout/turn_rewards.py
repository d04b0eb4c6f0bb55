"""Rewards per turn: an output of an agent loop that places each on the last token of its turn."""

from typing import Any

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from verl_pivot.rollout.rollout_record import TURN_ENDS


class TurnRewardOutput(AgentLoopOutput):  # type: ignore[misc]  # verl is untyped here
    """verl's output with the boundaries of its turns, and a reward for each if a method fills them in.

    In the row `rm_scores` holds them, from which verl makes token-level rewards; the trajectory's own reward comes on
    top, on the last token. `extra_fields["turn_ends"]` keeps the boundaries.
    """

    turn_ends: list[int] = Field(default_factory=list)
    """[num_turns] behind the last token of each sampled turn, as positions in the response."""
    turn_rewards: list[float] = Field(default_factory=list)
    """[num_turns], or empty for none."""

    def as_dict(self) -> dict[str, Any]:
        """The row that verl stores.

        Raises:
            ValueError: If there are rewards, and not one for each turn.
        """
        if self.turn_rewards and len(self.turn_rewards) != len(self.turn_ends):
            raise ValueError(f"{len(self.turn_rewards)} turn rewards, {len(self.turn_ends)} turns; give one for each")
        row: dict[str, Any] = super().as_dict()
        row.pop("turn_ends", None)
        row.pop("turn_rewards", None)
        row["extra_fields"][TURN_ENDS] = list(self.turn_ends)
        if self.turn_rewards:
            scores = row.setdefault("rm_scores", torch.zeros_like(row["response_mask"], dtype=torch.float32))
            for end, reward in zip(self.turn_ends, self.turn_rewards, strict=True):
                scores[end - 1] += reward
        return row
