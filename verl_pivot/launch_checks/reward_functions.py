"""Reward function of a launch -> nothing, or one sentence about what it needs and the machine lacks."""

from verl_pivot.extras import require
from verl_pivot.launch_checks.sandbox_pool import check_pool

_OF_MATH = "pkg://verl_pivot.rewards.math_rewards"


def check_reward_function(path: str | None) -> None:
    """Refuse the rewards for mathematics if something that the verifier `math` needs is missing.

    Args:
        path: `reward.custom_reward_function.path`.

    Raises:
        ConfigError: If its extra is not installed, or the pool of sandboxes cannot serve it.
    """
    if path == _OF_MATH:
        require("math_verify", "math")
        check_pool(verifiers=[("math", "{}")])
