"""A launch's `pivot.rollout.workflows` -> an error if workflows cannot be read, or none could be shown."""

from pathlib import Path

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.settings import parse_settings
from verl_pivot.rollout.workflow_settings import SECTION


def check_workflows(config: DictConfig) -> None:
    """Refuse workflows that cannot be read, and settings with which none would be shown.

    Raises:
        ConfigError: Naming the setting and the remedy.
        DataError: If the file of workflows cannot be read; the message names the line.
    """
    settings = parse_settings(config).workflows
    if not settings.is_on:
        return
    from verl_pivot.rollout import workflow_ranking  # noqa: F401  raises where the extra `search` is missing
    from verl_pivot.rollout.workflow_files import read_workflows

    if settings.file is not None:
        read_workflows(Path(settings.file))
    if config.actor_rollout_ref.rollout.agent.agent_loop_manager_class is None:
        raise ConfigError(
            f"{SECTION} needs a manager of agent loops that writes workflows into prompts: leave out "
            "actor_rollout_ref.rollout.agent.agent_loop_manager_class, which +method=tool_rollout sets"
        )
    if settings.max_tokens >= int(config.data.max_prompt_length):
        raise ConfigError(
            f"{SECTION}.max_tokens={settings.max_tokens} leaves no room for a task in "
            f"data.max_prompt_length={config.data.max_prompt_length}: lower the first, or raise the second"
        )
    num_rollouts = int(config.actor_rollout_ref.rollout.val_kwargs.n)
    if settings.validation == "both" and num_rollouts % 2:
        raise ConfigError(
            f"{SECTION}.validation=both shows workflows to every other rollout of a prompt, and "
            f"actor_rollout_ref.rollout.val_kwargs.n={num_rollouts} is odd: set it to 2 or another even number"
        )
