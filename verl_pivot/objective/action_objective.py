"""Log-probs of the tokens of sampled actions -> PivotRL's clipped objective, with one ratio for each whole action."""

import torch

MAX_LOG_RATIO = 20.0
"""Largest log of a ratio, the same as in verl's losses: beyond it the objective is flat, so that it cannot overflow."""


def action_log_ratios(log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log of the ratio of each action's probability, policy to sampling policy: the sum over the action's tokens.

    Args:
        log_probs: [num_actions, num_tokens] of the policy.
        old_log_probs: [num_actions, num_tokens] of the policy that sampled the actions.
        mask: [num_actions, num_tokens] True at sampled tokens; the others may hold anything.

    Returns:
        [num_actions] logs; 0 for an action without sampled tokens.
    """
    return torch.where(mask, log_probs.float() - old_log_probs.float(), 0.0).sum(dim=-1)


def clipped_objective(
    log_ratios: torch.Tensor, advantages: torch.Tensor, *, clip_low: float, clip_high: float
) -> torch.Tensor:
    """min(w A, clip(w, 1 - clip_low, 1 + clip_high) A) for each action, with w its ratio and A its advantage.

    The gradient at w = 1 is A times the sum of the gradients of the action's token log-probs.

    Source: the objective of PivotRL (arXiv:2603.21383), whose ratio is that of a whole action. Differs from it only
    where log w > MAX_LOG_RATIO and A < 0.

    Args:
        log_ratios: [num_actions].
        advantages: [num_actions].
        clip_low: Epsilon below 1.
        clip_high: Epsilon above 1.

    Returns:
        [num_actions], to be maximized.
    """
    ratios = log_ratios.clamp(max=MAX_LOG_RATIO).exp()
    return torch.minimum(ratios * advantages, ratios.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def clipped_actions(
    log_ratios: torch.Tensor, advantages: torch.Tensor, *, clip_low: float, clip_high: float
) -> torch.Tensor:
    """[num_actions] True where clipping changes the objective, and its gradient is 0."""
    ratios = log_ratios.clamp(max=MAX_LOG_RATIO).exp()
    return ((advantages > 0) & (ratios > 1.0 + clip_high)) | ((advantages < 0) & (ratios < 1.0 - clip_low))
