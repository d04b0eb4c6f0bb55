"""A launch's `pivot.objective` -> an error if the rest of the config contradicts it, or would make it do nothing."""

from dataclasses import asdict

from omegaconf import DictConfig, OmegaConf

from verl_pivot.errors import ConfigError
from verl_pivot.objective.settings import ACTION_LOSS, OBJECTIVES

LOSS_MODULE = "verl_pivot.objective.policy_loss"
_KEYS = {"loss_mode": "policy_loss.loss_mode"}
"""Settings of an objective that lie deeper under the actor than their name says."""
_BY_TOKEN = ("gae", "reinforce_plus_plus", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Advantage estimators of verl that give the tokens of one action different advantages."""


def check_objective(config: DictConfig) -> None:
    """Refuse an unknown objective, and settings that contradict the chosen one.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    objective = str(config.pivot.objective)
    if objective not in OBJECTIVES:
        raise ConfigError(f"unknown pivot.objective={objective}; known: {', '.join(OBJECTIVES)}")
    if objective != "verl":
        _check_actor(config.actor_rollout_ref.actor, objective)
    if config.actor_rollout_ref.actor.policy_loss.loss_mode == ACTION_LOSS:
        _check_action_loss(config)


def _check_actor(actor: DictConfig, objective: str) -> None:
    """Refuse settings of the actor other than those that the objective stands for."""
    for name, value in asdict(OBJECTIVES[objective]).items():
        key = _KEYS.get(name, name)
        if (chosen := OmegaConf.select(actor, key)) != value:
            raise ConfigError(
                f"actor_rollout_ref.actor.{key}={chosen} contradicts pivot.objective={objective}, which needs {value}: "
                "leave it out, or set pivot.objective=verl to choose it yourself"
            )


def _check_action_loss(config: DictConfig) -> None:
    """Refuse a loss over whole actions if verl cannot find it, or if tokens of an action would count differently."""
    libraries = config.actor_rollout_ref.model.external_lib
    named = [libraries] if libraries is None or isinstance(libraries, str) else list(libraries)
    if LOSS_MODULE not in named:
        others = [str(library) for library in named if library is not None]
        raise ConfigError(
            f"verl's workers would not know the policy loss {ACTION_LOSS}: set "
            f"actor_rollout_ref.model.external_lib=[{','.join([*others, LOSS_MODULE])}]"
        )
    if (estimator := str(config.algorithm.adv_estimator)) in _BY_TOKEN:
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} gives tokens of one action different advantages, and "
            "pivot.objective=paper needs one for each action: choose another estimator, such as grpo, or another "
            "pivot.objective"
        )
    if OmegaConf.select(config, "algorithm.rollout_correction.rollout_is") == "token":
        raise ConfigError(
            "algorithm.rollout_correction.rollout_is=token weighs tokens of one action differently, and "
            "pivot.objective=paper weighs whole actions: set it to sequence"
        )
