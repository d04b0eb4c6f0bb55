"""A launch's `pivot.process` -> an error if no judge could be asked, or the estimator cannot use rewards of turns."""

from omegaconf import DictConfig

from verl_pivot.advantages.steps import STEP_ESTIMATOR
from verl_pivot.engines.text_cut import NOTE_TOKENS
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.compose_settings import values_of_terms
from verl_pivot.rewards.process_settings import parse_process
from verl_pivot.rollout.settings import parse_settings

BY_TOKEN = frozenset({"gae", "reinforce_plus_plus", "optimal_token_baseline", "tir_optimal_token_baseline"})
"""Advantage estimators of verl for which it matters which turn gets a reward."""
BY_ROW = frozenset({"grpo", "grpo_vectorized", "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized", "opo", "gpg"})
"""Advantage estimators of verl that take the sum of a rollout's rewards."""
BY_STEP = frozenset({STEP_ESTIMATOR})
"""Advantage estimators of this package that take the returns of turns, normalised over the batch."""
_OUTCOME_ALONE = frozenset({"gdpo", "grpo_passk", "remax"})
"""Advantage estimators of verl that are made for one reward of the whole rollout, or for several named ones."""
_BY_DEVIATION = frozenset({"grpo", "grpo_vectorized"})
"""Advantage estimators of verl that divide by the deviation within the group, if `norm_adv_by_std_in_grpo`."""


def check_process(config: DictConfig) -> None:
    """Refuse settings with which no turn could be judged, and an estimator that does not suit rewards of turns.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    settings = parse_process(config)
    if settings.mode != "outcome":
        settings.check_for_launch()
        if not settings.has_checklist:
            settings.principle_set()
        _check_question_holds_turns(settings.max_question_tokens, parse_settings(config).max_turns)
    if settings.best_of > 1:
        _check_draws_differ(config, settings.best_of)
    estimator = str(config.algorithm.adv_estimator)
    if estimator in _OUTCOME_ALONE and settings.mode != "outcome":
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} is made for the outcome alone, and "
            f"pivot.process.mode={settings.mode} gives each turn a reward: choose gae or reinforce_plus_plus, which "
            "use the reward of each turn, or grpo, which uses their sum, or set pivot.process.mode=outcome"
        )
    algorithm = config.algorithm
    if estimator in _BY_DEVIATION and algorithm.norm_adv_by_std_in_grpo and algorithm.use_kl_in_reward:
        raise ConfigError(
            f"algorithm.use_kl_in_reward=True with algorithm.adv_estimator={estimator} normalises by the group's "
            "standard deviation; with equal rewards only the KL differs, so its noise is trained: set "
            "algorithm.use_kl_in_reward=False, and actor_rollout_ref.actor.use_kl_loss=True for a KL in the loss, or "
            "set algorithm.norm_adv_by_std_in_grpo=False"
        )
    if estimator == "gae" and config.critic.enable is not None and not config.critic.enable:
        raise ConfigError(
            "critic.enable=False leaves algorithm.adv_estimator=gae without values: leave it out, or choose an "
            "estimator without a critic, such as grpo"
        )


def _check_question_holds_turns(max_question_tokens: int, max_turns: int) -> None:
    """Refuse a limit on the tokens of a question that is too low even if notes replace all turns.

    Raises:
        ConfigError: If the limit is too low.
    """
    least = NOTE_TOKENS * (2 * max_turns + 1)  # task, turns and observations
    if max_question_tokens < least:
        raise ConfigError(
            f"pivot.process.max_question_tokens={max_question_tokens} is too low for questions about "
            f"pivot.rollout.max_turns={max_turns} turns: raise it to {least} or more"
        )


def placement_of_rewards(config: DictConfig) -> str | None:
    """Sentence for the user on how the estimator uses the rewards of turns; None if turns have no rewards."""
    if "process" not in config.pivot or parse_process(config).mode == "outcome" or "process" in values_of_terms(config):
        return None
    estimator = str(config.algorithm.adv_estimator)
    if estimator in BY_TOKEN:
        taken = "each turn's own reward, and those of later turns"
    elif estimator in BY_ROW:
        taken = "the sum of a trajectory's rewards, the same on all its turns"
    elif estimator in BY_STEP:
        taken = "the return of each turn, normalised over all turns of the batch"
    else:
        taken = "rewards in its own way; each reward is on the last token of its turn"
    return f"pivot.process.mode={config.pivot.process.mode}: algorithm.adv_estimator={estimator} takes {taken}"


def _check_draws_differ(config: DictConfig, best_of: int) -> None:
    """Refuse to choose among draws that are all the same.

    Raises:
        ConfigError: If validation is greedy.
    """
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if not sampling.do_sample or not sampling.temperature:
        raise ConfigError(
            f"pivot.process.best_of={best_of} would choose among identical turns, since validation is greedy: set "
            "actor_rollout_ref.rollout.val_kwargs.do_sample=True and actor_rollout_ref.rollout.val_kwargs.temperature "
            "above 0"
        )


def needs_critic(config: DictConfig) -> bool:
    """Whether the launch trains a critic, as verl decides it."""
    return bool(config.algorithm.adv_estimator == "gae" if config.critic.enable is None else config.critic.enable)
