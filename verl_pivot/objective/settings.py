"""Value of `pivot.objective` -> the settings of verl's actor that it stands for."""

from collections.abc import Mapping
from dataclasses import dataclass

ACTION_LOSS = "pivot_action"
"""Name of the policy loss that `objective.policy_loss` registers with verl."""
_NO_LOWER_BOUND = 1e9
"""Bound of verl's dual clip that no token's ratio reaches, since verl clamps ratios at exp(20)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSettings:
    """Settings under `actor_rollout_ref.actor` that an objective stands for."""

    loss_mode: str
    """verl's `policy_loss.loss_mode`: whose ratio is clipped, a token's ("vanilla") or an action's."""
    loss_agg_mode: str
    """How the losses of tokens, and the penalties for their divergence from the reference policy, become one number."""
    clip_ratio_c: float
    """Ratio above which verl's dual clip ignores a token with a negative advantage."""


OBJECTIVES: Mapping[str, ObjectiveSettings] = {
    "paper": ObjectiveSettings(loss_mode=ACTION_LOSS, loss_agg_mode="seq-mean-token-sum", clip_ratio_c=_NO_LOWER_BOUND),
    "nemo_rl": ObjectiveSettings(loss_mode="vanilla", loss_agg_mode="token-mean", clip_ratio_c=_NO_LOWER_BOUND),
    "verl": ObjectiveSettings(loss_mode="vanilla", loss_agg_mode="seq-mean-token-mean", clip_ratio_c=3.0),
}
"""{value of `pivot.objective`: settings of the actor}; those of "verl" are defaults that a command may change."""
