"""A launch's `pivot.rewards` -> a sentence with the smallest and largest reward; an error if the terms contradict."""

import math
from collections.abc import Collection

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.resampling.settings import ResamplingSettings, parse_resampling
from verl_pivot.rewards.compose_settings import (
    KEY,
    best_of_failures,
    check_sections,
    composition_of,
    sums_of,
    sums_of_shares,
    values_of_terms,
)
from verl_pivot.rewards.reward_sums import ValueRange
from verl_pivot.rewards.term_values import ValueLimits
from verl_pivot.rollout.settings import parse_settings

_SHIPPED = "pkg://verl_pivot."
"""Beginning of the paths of reward functions that methods set by themselves."""


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
    values = values_of_terms(config)
    _check_sources(config, given, values)
    if "process" in values:  # the section is there, as was checked
        _check_process(config.pivot.process, given)
    max_calls = settings.max_turns * (1 if settings.parser == "tags" else settings.max_calls_per_turn)
    limits = ValueLimits(settings.max_turns, max_calls, int(config.data.max_response_length))
    sums = sums_of(given, composition, limits)
    if "process" in config.pivot and "process" not in values and config.pivot.process.mode == "renorm":
        _check_renorm(given, sums_of_shares(composition, limits))
    if "resampling" in config.pivot and "outcome" in values:
        _check_resampling(parse_resampling(config), given, best_of_failures(composition, limits))
    return f"{KEY}={given}: a rollout's reward is {_amount(sums.least)} at worst and {_amount(sums.largest)} at best"


def _check_sources(config: DictConfig, given: str, values: Collection[str]) -> None:
    """Refuse judges, and a reward function of the user's own, whose scores no term has as its value."""
    for section, value in (("rubrics", "rubric"), ("ruler", "ruler")):
        if section in config.pivot and value not in values:
            raise ConfigError(
                f"{KEY}={given} has no term with the value {value}, so the scores of pivot.{section} would not be "
                "used: add such a term"
            )
    function = config.reward.custom_reward_function.path
    if "outcome" not in values and function and not function.startswith(_SHIPPED):
        raise ConfigError(
            f"reward.custom_reward_function.path={function} does nothing, since {KEY}={given} has no term with the "
            "value outcome: leave it out, or add such a term"
        )


def _check_process(process: DictConfig, given: str) -> None:
    """Refuse settings with which turns are not judged, although a term needs the judge's scores."""
    if process.mode == "outcome":
        raise ConfigError(
            f"pivot.process.mode=outcome asks no judge, so that the value process of {KEY}={given} would always be 0: "
            "leave it out, or leave out the term"
        )
    if not process.judge_validation:
        raise ConfigError(
            f"pivot.process.judge_validation=False leaves {KEY}={given} without its value process in validation: "
            "leave it out, or leave out the term"
        )


def _check_renorm(given: str, sums: ValueRange) -> None:
    """Refuse a sum that leaves [0, 1], outside of which mode renorm masks rollouts: the best ones, or the worst."""
    if sums.least < 0.0 or sums.largest > 1.0:
        raise ConfigError(
            f"{KEY}={given} pays from {_amount(sums.least)} to {_amount(sums.largest)}, but pivot.process.mode=renorm "
            "takes sums in [0, 1] alone, and would mask the other rollouts: write `bounds: [0, 1]` beside `terms`, "
            "change the weights, or set pivot.process.mode=sum"
        )


def _check_resampling(settings: ResamplingSettings, given: str, best_failure: float) -> None:
    """Refuse rewards above 0 for failures where resampling takes such rewards for successes."""
    if settings.goes_by_penalty and best_failure > 0:
        raise ConfigError(
            f"{KEY}={given} pays a rollout whose outcome is 0 up to {_amount(best_failure)}, but "
            f"pivot.resampling.mode={settings.mode} takes each reward above 0 for a success: set paid_on to success "
            "for the terms that failures are paid, or pivot.resampling.mode to best_of_n or farthest"
        )


def _amount(reward: float) -> str:
    return f"{reward:g}" if math.isfinite(reward) else "unbounded"
