"""ResamplingSettings: the section `pivot.resampling` of the launch command, checked."""

from typing import Annotated, Literal, Self, TypeAlias

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.resampling.dynamic_sampling import EqualRewards
from verl_pivot.validation import Options, validated

ResamplingMode: TypeAlias = Literal["paper", "released", "best_of_n", "farthest"]
"""Rules by which rollouts of a group stay: two of GRPO-RoC, and two that go by the score alone (TSR)."""
_MAX_ROUNDING = 1e-6
"""Largest difference from a whole number at which a product counts as whole: 1.16 * 25 is 28.999999999999996."""


class ResamplingSettings(Options):
    """Keys of `pivot.resampling`, which configs/method/grpo_roc.yaml explains to users."""

    group_size: Annotated[int, Field(ge=2)]
    """Rollouts per prompt that the update sees: verl's `rollout.n`."""
    oversample: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 2.0
    """Rollouts generated per prompt / group_size."""
    mode: ResamplingMode = "paper"
    equal_rewards: EqualRewards = EqualRewards.REJECT
    min_failures: Annotated[int, Field(ge=0)] = 2
    """Minimum number of failures that stay in a group; only with mode released."""
    min_successes: Annotated[int, Field(ge=0)] = 2
    """Minimum number of successes that stay in a group; only with mode released."""
    max_gen_batches: Annotated[int, Field(ge=2)] = 20
    """Budget of prompts per training step, in batches of `data.train_batch_size` prompts."""
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if abs(self.oversample * self.group_size - self.num_generated) > _MAX_ROUNDING:
            raise ValueError(
                f"oversample * rollout.n must be a whole number, got {self.oversample} * {self.group_size}: choose "
                "another rollout.n or oversample"
            )
        if self.mode == "released" and self.min_failures + self.min_successes > self.group_size:
            raise ValueError(
                f"min_failures + min_successes = {self.min_failures + self.min_successes} exceeds rollout.n = "
                f"{self.group_size}: lower one of them"
            )
        return self

    @property
    def goes_by_penalty(self) -> bool:
        """Whether the penalty of a success influences whether it stays; where nothing is drawn, all of them stay."""
        return self.mode in ("paper", "released") and self.oversample > 1

    @property
    def num_generated(self) -> int:
        """Rollouts per prompt that are generated."""
        return round(self.oversample * self.group_size)


def parse_resampling(config: DictConfig) -> ResamplingSettings:
    """Read `pivot.resampling` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong or missing; the message names it.
    """
    chosen = OmegaConf.select(config, "pivot.resampling")
    if chosen is None:
        raise ConfigError("there is no pivot.resampling: add +method=grpo_roc to the command")
    return settings_of(chosen)


def settings_of(chosen: DictConfig) -> ResamplingSettings:
    """Check the section `pivot.resampling`.

    Raises:
        ConfigError: If a key is wrong or missing; the message names it.
    """
    return validated(ResamplingSettings, OmegaConf.to_container(chosen, resolve=True), "pivot.resampling")


def check_batch(config: DictConfig, settings: ResamplingSettings, *, trains_critic: bool) -> None:
    """Refuse settings with which verl could not replace single groups, or would train on another number of rollouts.

    Args:
        config: verl's whole config.
        settings: Its section `pivot.resampling`.
        trains_critic: Whether the launch trains a critic.

    Raises:
        ConfigError: If two keys contradict each other; the message names them.
    """
    if config.data.gen_batch_size != 1:
        raise ConfigError(
            f"pivot.resampling replaces single groups, so that data.gen_batch_size must be 1, got "
            f"{config.data.gen_batch_size}"
        )
    if settings.equal_rewards is EqualRewards.REJECT and config.trainer.v1.trainer_mode == "separate_async":
        raise ConfigError(
            "pivot.resampling.equal_rewards=reject makes updates smaller, which trainer.v1.trainer_mode=separate_async "
            "does not allow: set pivot.resampling.equal_rewards=drop, which replaces such groups"
        )
    if settings.equal_rewards is EqualRewards.REJECT and trains_critic:
        raise ConfigError(
            "pivot.resampling.equal_rewards=reject makes the actor's mini-batches smaller than the critic's, and verl "
            "would pad updates to a common multiple of both, many times the batch: set "
            "pivot.resampling.equal_rewards=keep beside a critic"
        )
    if settings.group_size != config.actor_rollout_ref.rollout.n:
        raise ConfigError(
            f"pivot.resampling.group_size={settings.group_size} must equal actor_rollout_ref.rollout.n="
            f"{config.actor_rollout_ref.rollout.n}: set rollout.n alone, which group_size follows by default"
        )
