"""verl's reward manager over our verifiers: one finished rollout -> its reward and the reason for it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from verl_pivot.data.pivots import row_to_turn
from verl_pivot.rollout.rendering import action_text, end_token_ids
from verl_pivot.rollout.rollout_record import FIELD, TURN_ENDS, VERDICT
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import load_verifier_modules
from verl_pivot.verifiers.scoring import score_completion


class PivotRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl is untyped here
    """Scores pivots with the row's verifier, and rows of any other file as stock verl does.

    An outcome that the rollout itself decided, by its environment or its failure, stands. A rollout that goes on after
    its pivot is scored by the pivot's own turn.
    """

    def __init__(self, config: DictConfig, tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        load_verifier_modules(config.pivot.verifier_modules)
        self.end_token_ids = end_token_ids(config.actor_rollout_ref.model.path, tokenizer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        rollout = data[-1]  # of several outputs the last carries the reward
        row = rollout.non_tensor_batch
        extra_fields = row.get("tool_extra_fields") or {}
        told = _of_tools(extra_fields.get(FIELD))
        if (outcome := extra_fields.get(VERDICT)) is not None:
            verdict = Verdict(score=outcome["score"], reason=outcome["reason"], detail=outcome["detail"])
            return _reward(verdict, verifier="outcome", told=told)
        if row.get("expert") is None:
            return _as_ours(dict(await super().run_single(data)), told)
        ids = _first_turn(_response_ids(rollout), extra_fields.get(TURN_ENDS) or [])
        text, ended = action_text(ids, self.tokenizer, self.end_token_ids)
        verdict = await score_completion(text, ended, row_to_turn(row))
        return _reward(verdict, verifier=str(row["verifier"]), told=told)


def _response_ids(rollout: Any) -> list[int]:
    responses = rollout.batch["responses"]
    length = int(rollout.batch["attention_mask"][-responses.shape[-1] :].sum())
    ids: list[int] = responses[:length].tolist()
    return ids


def _first_turn(response_ids: list[int], turn_ends: Sequence[int]) -> list[int]:
    return response_ids[: turn_ends[0]] if turn_ends else response_ids


def _of_tools(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """What rewards and dumps carry of a trajectory with tools."""
    return {} if record is None else {name: record[name] for name in ("stop_reason", "num_calls", "num_tool_errors")}


def _as_ours(reward: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """A reward of stock verl, with what our replay buffer reads of every row."""
    read = {"score": float(reward["reward_score"]), "undecided": 0.0}
    return {**reward, "reward_extra_info": {**reward["reward_extra_info"], **read, **told}}


def _reward(verdict: Verdict, *, verifier: str, told: Mapping[str, Any]) -> dict[str, Any]:
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
            **told,
        },
    }
