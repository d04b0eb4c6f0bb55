"""A launch's `pivot.ruler` -> an error if no judge could be asked, or if nothing could be compared."""

from omegaconf import DictConfig

from verl_pivot.engines.text_cut import NOTE_TOKENS
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.ruler_settings import parse_ruler
from verl_pivot.rollout.settings import parse_settings


def check_ruler(config: DictConfig) -> None:
    """Refuse settings with which rollouts could not be judged.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    settings = parse_ruler(config)
    settings.check_for_launch()
    if config.actor_rollout_ref.rollout.n < 2:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n={config.actor_rollout_ref.rollout.n} gives groups of one rollout, but "
            "+method=mcp_rl compares several: set it to 2 or more"
        )
    if "rollout" in config.pivot and settings.wait_seconds < (longest := parse_settings(config).max_wall_seconds):
        raise ConfigError(
            f"pivot.ruler.wait_seconds={settings.wait_seconds:g} is less than pivot.rollout.max_wall_seconds="
            f"{longest:g}, so that a rollout within its limits could leave its whole group undecided: raise the first, "
            "or lower the second"
        )
    if "rollout" in config.pivot:
        _check_question_holds_group(settings.max_question_tokens, config)


def _check_question_holds_group(max_question_tokens: int, config: DictConfig) -> None:
    """Refuse a limit on the tokens of a question that is too low even if notes replace all turns of a group.

    Raises:
        ConfigError: If the limit is too low.
    """
    rollout, max_turns = config.actor_rollout_ref.rollout, parse_settings(config).max_turns
    size = max(int(rollout.n), int(rollout.val_kwargs.n))
    least = NOTE_TOKENS * 2 * max_turns * (size + 1)  # turns and observations of each, and of the part that all share
    if max_question_tokens < least:
        raise ConfigError(
            f"pivot.ruler.max_question_tokens={max_question_tokens} is too low for questions about {size} rollouts of "
            f"pivot.rollout.max_turns={max_turns} turns: raise it to {least} or more"
        )
