"""TurnRewardOutput: verl's output of an agent loop, with a reward for each turn, and its part of the dump's line."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from verl_pivot.data.rollout_records import PROMPT_FIELD, TRANSCRIPT_FIELD, TURN_ENDS_FIELD
from verl_pivot.rewards.process_record import process_record


class TurnRewardOutput(AgentLoopOutput):  # type: ignore[misc]  # verl is untyped here
    """Output of an agent loop with the boundaries of its turns, and a reward for each turn if a method sets them.

    `as_dict` writes rewards into `rm_scores`, from which verl makes token-level rewards. The reward of a turn stands on
    its last sampled token, and that of the whole rollout on the last sampled token of all: verl's estimators drop
    rewards on tokens of observations. Rewards by `pivot.process` include the outcome and replace the rollout's reward.
    """

    turn_ends: list[int] = Field(default_factory=list)
    """[num_turns] positions in the response, each right after the last token that the policy sampled in a turn."""
    turn_rewards: list[float] = Field(default_factory=list)
    """[num_turns] rewards, paid in addition to the rollout's reward; empty if the agent loop sets none."""
    call_rewards: list[float] = Field(default_factory=list)
    """[num_turns] sums of the rewards that an environment gave for the calls of a turn. They are paid instead of the
    rollout's reward, which is the sum of all of them. Empty if the rollout's reward is paid as a whole."""
    transcript: bytes | None = None
    """The rollout's part of its line in a dump; None if nothing is dumped. Reward managers do not get it."""
    prompt_messages: bytes | None = None
    """Messages of the rollout's prompt, for the dump; None if no texts are dumped."""

    def as_dict(self) -> dict[str, Any]:
        """The row that verl stores, with `turn_ends` and the transcript in its `extra_fields`.

        Raises:
            ValueError: If there are turn rewards, but not one for each turn.
        """
        record = process_record(self.extra_fields.get("reward_extra_info") or {})
        row: dict[str, Any] = super().as_dict()
        row.pop("turn_ends", None)
        row.pop("turn_rewards", None)
        row.pop("call_rewards", None)
        if (transcript := row.pop("transcript", None)) is not None:
            row["extra_fields"][TRANSCRIPT_FIELD] = transcript
        if (prompt := row.pop("prompt_messages", None)) is not None:
            row["extra_fields"][PROMPT_FIELD] = prompt
        row["extra_fields"][TURN_ENDS_FIELD] = list(self.turn_ends)
        scores = torch.zeros_like(row["response_mask"], dtype=torch.float32)
        if record is not None:
            _add(scores, self.turn_ends, record.rewards)
        elif self.reward_score is not None and self.call_rewards:
            _add(scores, self.turn_ends, self.call_rewards)
        elif self.reward_score is not None:
            scores[_last_sampled(self.response_mask)] = self.reward_score
        if self.turn_rewards:
            _add(scores, self.turn_ends, self.turn_rewards)
        if self.reward_score is not None or self.turn_rewards:
            row["rm_scores"] = scores
        return row


def _add(scores: torch.Tensor, turn_ends: Sequence[int], rewards: Sequence[float]) -> None:
    """Add the rewards of turns on their last tokens."""
    if len(rewards) != len(turn_ends):
        raise ValueError(f"there must be one reward for each of {len(turn_ends)} turns, got {len(rewards)}")
    for end, reward in zip(turn_ends, rewards, strict=True):
        scores[end - 1] += reward


def _last_sampled(mask: Sequence[int]) -> int:
    """Position of the last token that the policy sampled; -1, the last one of all, if it sampled none."""
    return max((position for position, is_sampled in enumerate(mask) if is_sampled), default=-1)
