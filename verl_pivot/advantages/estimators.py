"""verl's advantage estimator `step_reinforce_pp`: rows with the returns of their steps -> an advantage for each token.

The replay buffer of +method=l0 imports this module, which verl loads in the process that computes advantages.
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

    The steps of a row are its runs of sampled tokens. Rows without any are verl's padding, and count in no mean.

    Args:
        token_level_rewards: [num_rows, num_tokens] with the return of each step on its last token.
        response_mask: [num_rows, num_tokens] 1 where the policy sampled the token.
        config: verl's section `algorithm`, whose root has `pivot.notebook.normalise`.

    Returns:
        [num_rows, num_tokens] advantages and [num_rows, num_tokens] returns, both 0 where nothing was sampled.
    """
    steps = [(row, *run) for row, mask in enumerate(response_mask.tolist()) for run in sampled_runs(mask)]
    returns = [float(token_level_rewards[row, end - 1]) for row, _, end in steps]
    normalise = str(OmegaConf.select(config._get_root(), "pivot.notebook.normalise"))
    advantages = step_advantages(returns, "paper" if normalise == "paper" else "released")
    by_token = torch.zeros(2, *response_mask.shape, dtype=torch.float32)
    for (row, start, end), advantage, step_return in zip(steps, advantages, returns, strict=True):
        by_token[0, row, start:end] = advantage
        by_token[1, row, start:end] = step_return
    return by_token[0], by_token[1]
