"""verl's advantage estimator `step_reinforce_pp`: rows with the returns of their steps -> an advantage for each token.

The replay buffers import this module, which verl loads in the process that computes advantages.
"""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import register_adv_est

from verl_pivot.advantages.steps import STEP_ESTIMATOR, sampled_runs, step_advantages


@register_adv_est(STEP_ESTIMATOR)  # type: ignore[untyped-decorator]  # verl is untyped here
def step_reinforce_pp(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: DictConfig, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of all steps of a batch; every sampled token has those of its step.

    The steps of a row are its runs of sampled tokens. Rows without sampled tokens are verl's padding and do not count.

    Args:
        token_level_rewards: [num_rows, num_tokens] with the return of each step on its last token; with `pivot.process`
            a row is a whole trajectory and has the rewards of its turns, from which this computes the returns.
        response_mask: [num_rows, num_tokens] 1 where the policy sampled the token.
        config: verl's section `algorithm`, with `gamma`; the root of the config has `pivot.notebook.normalise`.

    Returns:
        [num_rows, num_tokens] advantages and [num_rows, num_tokens] returns, both 0 where nothing was sampled.
    """
    steps = [(row, *run) for row, mask in enumerate(response_mask.tolist()) for run in sampled_runs(mask)]
    if OmegaConf.select(config._get_root(), "pivot.process") is None:
        returns = [float(token_level_rewards[row, end - 1]) for row, _, end in steps]
    else:
        returns = _summed_returns(token_level_rewards, steps, float(config.gamma))
    normalise = str(OmegaConf.select(config._get_root(), "pivot.notebook.normalise"))
    advantages = step_advantages(returns, "paper" if normalise == "paper" else "released")
    by_token = torch.zeros(2, *response_mask.shape, dtype=torch.float32)
    for (row, start, end), advantage, step_return in zip(steps, advantages, returns, strict=True):
        by_token[0, row, start:end] = advantage
        by_token[1, row, start:end] = step_return
    return by_token[0], by_token[1]


def _summed_returns(rewards: torch.Tensor, steps: list[tuple[int, int, int]], gamma: float) -> list[float]:
    """[num_steps] discounted return of each step: its reward plus gamma times the return of the row's next step.

    Args:
        rewards: [num_rows, num_tokens] rewards of tokens, such as penalties beside those of whole steps.
        steps: [num_steps] (row, position of the first token, position behind the last token), in ascending order.
        gamma: Discount.
    """
    returns: list[float] = []
    later_row, later = -1, 0.0
    for row, start, end in reversed(steps):
        later = float(rewards[row, start:end].sum()) + (gamma * later if row == later_row else 0.0)
        later_row = row
        returns.append(later)
    return returns[::-1]
