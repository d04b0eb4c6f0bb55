"""verl's policy loss `pivot_action`: token log-probs and advantages -> the loss of PivotRL's objective, by actions.

`actor_rollout_ref.model.external_lib` names this module, which verl's workers import before the first update.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import ActorConfig

from verl_pivot.errors import ConfigError
from verl_pivot.objective.action_objective import action_log_ratios, clipped_actions, clipped_objective
from verl_pivot.objective.settings import ACTION_LOSS, OBJECTIVES

_LOSS_AGG_MODE = OBJECTIVES["paper"].loss_agg_mode


@register_policy_loss(ACTION_LOSS)  # type: ignore[untyped-decorator]  # verl is untyped here
def action_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Mean over the actions of the negative objective, with verl's scaling over micro-batches and GPUs.

    Args:
        old_log_prob: [num_actions, num_tokens] of the policy that sampled.
        log_prob: [num_actions, num_tokens] of the policy.
        advantages: [num_actions, num_tokens] the same at every token of an action.
        response_mask: [num_actions, num_tokens] 1 at sampled tokens; rows without any are padding.
        loss_agg_mode: The actor's setting, which the other terms of verl's loss use as well.
        config: The actor's config, in which verl puts the sizes of the whole mini-batch.
        rollout_is_weights: [num_actions, num_tokens] weights of verl's rollout correction, one for each action.

    Returns:
        The loss, and metrics under the names that verl's own losses use.

    Raises:
        ConfigError: If another aggregation was set, or tokens of one action differ in advantage or weight.
    """
    if loss_agg_mode != _LOSS_AGG_MODE:
        raise ConfigError(
            f"the policy loss {ACTION_LOSS} needs actor_rollout_ref.actor.loss_agg_mode={_LOSS_AGG_MODE}, got "
            f"{loss_agg_mode}"
        )
    mask = response_mask.bool()
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    log_ratios = action_log_ratios(log_prob, old_log_prob, mask)
    of_action = _by_action(advantages, mask, "advantage: choose another algorithm.adv_estimator, such as grpo")
    objective = clipped_objective(log_ratios, of_action, clip_low=low, clip_high=high)
    if rollout_is_weights is not None:
        remedy = "weight: set algorithm.rollout_correction.rollout_is=sequence"
        objective = objective * _by_action(rollout_is_weights, mask, remedy)
    num_tokens = mask.sum(dim=-1)
    by_token = mask * (-objective / num_tokens.clamp(min=1)).unsqueeze(-1)  # verl sums them over the tokens
    loss = agg_loss(by_token, mask, _LOSS_AGG_MODE, **config.global_batch_info)
    clipped = clipped_actions(log_ratios, of_action, clip_low=low, clip_high=high)
    metrics = {
        "actor/pg_clipfrac": (clipped.sum() / (num_tokens > 0).sum().clamp(min=1)).item(),
        "actor/ppo_kl": -(log_ratios.detach().sum() / num_tokens.sum().clamp(min=1)).item(),
        "actor/pg_clipfrac_lower": 0.0,
    }
    return loss, metrics


def _by_action(values: torch.Tensor, mask: torch.Tensor, remedy: str) -> torch.Tensor:
    """[num_actions] the value that all sampled tokens of an action have; 0 for an action without any."""
    first = values.gather(-1, mask.int().argmax(dim=-1, keepdim=True))
    if bool((mask & (values != first)).any()):
        raise ConfigError(f"with pivot.objective=paper all tokens of an action must have the same {remedy}")
    return torch.where(mask.any(dim=-1), first.squeeze(-1), 0.0)
