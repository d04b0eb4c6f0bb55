"""TurnRewardOutput: verl's output of an agent loop, with a reward for each turn, and its part of the dump's line."""

from typing import Any

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from verl_pivot.data.rollout_records import TRANSCRIPT_FIELD, TURN_ENDS_FIELD


class TurnRewardOutput(AgentLoopOutput):  # type: ignore[misc]  # verl is untyped here
    """Output of an agent loop with the boundaries of its turns, and a reward for each turn if a method sets them.

    `as_dict` writes turn rewards into `rm_scores`, from which verl makes token-level rewards. A reward of the whole
    rollout is added to them on the last token.
    """

    turn_ends: list[int] = Field(default_factory=list)
    """[num_turns] positions in the response, each behind the last token that the policy sampled in a turn."""
    turn_rewards: list[float] = Field(default_factory=list)
    """[num_turns] rewards; empty if only the whole rollout has a reward."""
    transcript: bytes | None = None
    """The rollout's part of its line in a dump; None if nothing is dumped. Reward managers do not get it."""

    def as_dict(self) -> dict[str, Any]:
        """The row that verl stores, with `turn_ends` and the transcript in its `extra_fields`.

        Raises:
            ValueError: If there are turn rewards, but not one for each turn.
        """
        if self.turn_rewards and len(self.turn_rewards) != len(self.turn_ends):
            raise ValueError(
                f"there must be one reward for each of {len(self.turn_ends)} turns, got {len(self.turn_rewards)}"
            )
        row: dict[str, Any] = super().as_dict()
        row.pop("turn_ends", None)
        row.pop("turn_rewards", None)
        if (transcript := row.pop("transcript", None)) is not None:
            row["extra_fields"][TRANSCRIPT_FIELD] = transcript
        row["extra_fields"][TURN_ENDS_FIELD] = list(self.turn_ends)
        if self.turn_rewards:
            scores = row.setdefault("rm_scores", torch.zeros_like(row["response_mask"], dtype=torch.float32))
            for end, reward in zip(self.turn_ends, self.turn_rewards, strict=True):
                scores[end - 1] += reward
        return row
