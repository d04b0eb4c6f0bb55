"""verl's reward manager over our verifiers: one finished rollout -> its reward and the reason for it."""

import math
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from verl_pivot.data.pivots import row_to_turn
from verl_pivot.rollout.rendering import action_text, end_token_ids
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import load_verifier_modules
from verl_pivot.verifiers.scoring import score_completion


class PivotRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl is untyped here
    """Scores pivots with the row's verifier, and rows of any other file as stock verl does."""

    def __init__(self, config: DictConfig, tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        load_verifier_modules(config.pivot.verifier_modules)
        self.end_token_ids = end_token_ids(config.actor_rollout_ref.model.path, tokenizer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        rollout = data[-1]  # of several outputs the last carries the reward
        row = rollout.non_tensor_batch
        if row.get("expert") is None:
            return dict(await super().run_single(data))
        text, ended = action_text(_response_ids(rollout), self.tokenizer, self.end_token_ids)
        verdict = await score_completion(text, ended, row_to_turn(row))
        return _reward(verdict, verifier=str(row["verifier"]))


def _response_ids(rollout: Any) -> list[int]:
    responses = rollout.batch["responses"]
    length = int(rollout.batch["attention_mask"][-responses.shape[-1] :].sum())
    ids: list[int] = responses[:length].tolist()
    return ids


def _reward(verdict: Verdict, *, verifier: str) -> dict[str, Any]:
    """verl's shape, with the same keys for every sample.

    An undecided reward is NaN: our replay buffer drops the row, and without it the update would fail loudly.
    """
    score = math.nan if verdict.score is None else verdict.score
    return {
        "reward_score": score,
        "reward_extra_info": {
            "score": score,
            "undecided": float(verdict.score is None),
            "verifier": verifier,
            "reason": verdict.reason,
        },
    }
