"""A launch's `pivot.rubrics` -> an error if rollouts could not be judged with it."""

from omegaconf import DictConfig

from verl_pivot.engines.text_cut import NOTE_TOKENS
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.rubric_settings import parse_rubrics
from verl_pivot.rollout.settings import parse_settings


def check_rubrics(config: DictConfig) -> None:
    """Refuse settings with which rollouts could not be judged.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    settings = parse_rubrics(config)
    settings.check_for_launch()
    if "ruler" in config.pivot:
        raise ConfigError("pivot.rubrics and pivot.ruler both wait for the group of a rollout: choose one method")
    if not settings.evolve:
        return
    if str(config.ray_kwargs.ray_init.get("address") or "").startswith("ray://"):
        raise ConfigError(
            "pivot.rubrics.evolve keeps criteria beside the checkpoints, which a launch through ray:// cannot reach: "
            "start the launch on the cluster, as with `ray job submit`, or set pivot.rubrics.evolve=False"
        )
    if config.actor_rollout_ref.rollout.n < 2:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n={config.actor_rollout_ref.rollout.n} gives groups of one rollout, but "
            "pivot.rubrics.evolve compares several: set it to 2 or more, or pivot.rubrics.evolve=False"
        )
    if settings.wait_seconds < (longest := parse_settings(config).max_wall_seconds):
        raise ConfigError(
            f"pivot.rubrics.wait_seconds={settings.wait_seconds:g} is less than pivot.rollout.max_wall_seconds="
            f"{longest:g}, so that a rollout within its limits could leave its whole group undecided: raise the first, "
            "or lower the second"
        )
    size = int(config.actor_rollout_ref.rollout.n)
    least = NOTE_TOKENS * (size + 2)  # the task, each report, and the criteria so far
    if settings.max_question_tokens < least:
        raise ConfigError(
            f"pivot.rubrics.max_question_tokens={settings.max_question_tokens} is too low for questions about {size} "
            f"reports: raise it to {least} or more"
        )


def keeps_criteria(config: DictConfig) -> bool:
    """Whether a launch has criteria that evolve, which are kept beside its checkpoints."""
    return "rubrics" in config.pivot and parse_rubrics(config).evolve
