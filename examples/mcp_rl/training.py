"""The study's arms: where each takes its rewards from."""

from pathlib import Path

BASE, RULER, OUTCOME = "base", "ruler", "outcome"
ARMS = (BASE, RULER, OUTCOME)
"""Without training; rewarded by a judge that compares trajectories of rows without labels; rewarded by the outcome."""
JUDGE = "shop-judge"
"""Name under which the judge is served."""
NOT_SERVED = "http://127.0.0.1:0/v1"
"""Endpoint of a judge that is not served yet."""


def overrides_of(name: str, judge_url: str = NOT_SERVED) -> tuple[str, ...]:
    """Overrides of an arm: its rewards in training, and the outcome, which all arms are evaluated by."""
    reward = "reward.custom_reward_function"
    outcome = (f"{reward}.path={Path(__file__).with_name('outcome.py')}", f"{reward}.name=outcome")
    if name != RULER:
        return ("+method=tool_rollout", *outcome)
    return ("+method=mcp_rl", f"pivot.ruler.base_url={judge_url}", f"pivot.ruler.model={JUDGE}", *outcome)
