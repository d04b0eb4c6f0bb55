"""A launch's `pivot.rewards` -> a sentence with the smallest and largest reward; an error if the terms contradict."""

import math

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.rewards.compose import named_terms
from verl_pivot.rewards.compose_settings import KEY, check_sections, composition_of, sums_of
from verl_pivot.rewards.term_values import ValueLimits
from verl_pivot.rollout.settings import parse_settings


def check_rewards(config: DictConfig) -> str | None:
    """Refuse a composition by which no rollout could be paid.

    Returns:
        Sentence for the user with the smallest and largest reward; None without `pivot.rewards`.

    Raises:
        ConfigError: Naming the key and the remedy.
    """
    composition = composition_of(config)
    if composition is None:
        if "rubrics" in config.pivot:
            raise ConfigError(f"{KEY}=null gives no reward for the scores of pivot.rubrics: set {KEY}=rubric")
        return None
    given, settings = str(config.pivot.rewards), parse_settings(config)
    if "notebook" in config.pivot or settings.environment is not None:
        other = "+method=l0" if "notebook" in config.pivot else "pivot.rollout.environment"
        raise ConfigError(
            f"{KEY}={given} needs rollouts with a tools file, but {other} computes its own rewards: leave out one of "
            "them"
        )
    check_sections(given, composition, {str(name) for name in config.pivot})
    if "rubrics" in config.pivot and not any(term.value == "rubric" for _, term, _ in named_terms(composition)):
        raise ConfigError(
            f"{KEY}={given} has no term with the value rubric, so the scores of pivot.rubrics would not be used: add "
            "such a term"
        )
    max_calls = settings.max_turns * (1 if settings.parser == "tags" else settings.max_calls_per_turn)
    reads_process = any(term.value == "process" for _, term, _ in named_terms(composition))
    if reads_process and not config.pivot.process.judge_validation:  # the section is there, as was checked
        raise ConfigError(
            f"pivot.process.judge_validation=False leaves {KEY}={given} without its value process in validation: "
            "leave it out, or leave out the term"
        )
    limits = ValueLimits(settings.max_turns, max_calls, int(config.data.max_response_length))
    sums = sums_of(given, composition, limits)
    return f"{KEY}={given}: a rollout's reward is {_amount(sums.least)} at worst and {_amount(sums.largest)} at best"


def _amount(reward: float) -> str:
    return f"{reward:g}" if math.isfinite(reward) else "unbounded"
