"""A launch's `pivot.tree_search` -> an error if its rollouts could not branch, or nothing could tell them apart."""

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.settings import parse_settings
from verl_pivot.rollout.tree_search_settings import ScoredBy, parse_tree_search
from verl_pivot.tools.toolset import load_toolset


def check_tree_search(config: DictConfig) -> None:
    """Refuse settings with which no search is possible.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    search, rollout = parse_tree_search(config), parse_settings(config)
    if rollout.environment is not None:
        raise ConfigError(
            "pivot.tree_search needs the calls of a tools file, and pivot.rollout.environment drives the policy by "
            "itself: leave one of them out"
        )
    if search.lookahead > rollout.max_turns:
        raise ConfigError(
            f"pivot.tree_search.lookahead={search.lookahead} is more than pivot.rollout.max_turns={rollout.max_turns}, "
            f"after which every rollout has ended: set it to {rollout.max_turns} or less"
        )
    load_toolset(rollout.tools).check_search(by_progress=search.scored_by is ScoredBy.PROGRESS)
