"""`pivot.resampling` of the launch command, checked: how many rollouts are generated and which the update sees."""

from typing import Annotated, Literal, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.resampling.dynamic_sampling import EqualRewards
from verl_pivot.validation import validated


class ResamplingSettings(BaseModel):
    """Keys of `pivot.resampling`; see configs/method/grpo_roc.yaml for what they mean to a user."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: Annotated[int, Field(ge=2)]
    """Rollouts of a prompt that the update sees: verl's rollout.n."""
    oversample: Annotated[float, Field(ge=1.0)] = 2.0
    mode: Literal["paper", "released"] = "paper"
    equal_rewards: EqualRewards = EqualRewards.KEEP
    min_failures: Annotated[int, Field(ge=0)] = 2
    """With mode released."""
    min_successes: Annotated[int, Field(ge=0)] = 2
    """With mode released."""
    max_gen_batches: Annotated[int, Field(ge=2)] = 3
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.oversample * self.group_size).is_integer():
            raise ValueError(
                f"oversample * rollout.n must be a whole number, got {self.oversample} * {self.group_size}: choose "
                "another rollout.n or oversample"
            )
        if self.mode == "released" and self.min_failures + self.min_successes > self.group_size:
            raise ValueError(
                f"min_failures + min_successes = {self.min_failures + self.min_successes} exceeds rollout.n = "
                f"{self.group_size}"
            )
        return self

    @property
    def num_generated(self) -> int:
        """Rollouts of a prompt that are generated."""
        return int(self.oversample * self.group_size)


def parse_resampling(config: DictConfig) -> ResamplingSettings:
    """The settings in verl's whole config.

    Raises:
        ConfigError: Naming the key.
    """
    chosen = OmegaConf.select(config, "pivot.resampling")
    if chosen is None:
        raise ConfigError("there is no pivot.resampling: add +method=grpo_roc to the command")
    return settings_of(chosen)


def settings_of(chosen: DictConfig) -> ResamplingSettings:
    """The settings under `pivot.resampling`.

    Raises:
        ConfigError: Naming the key.
    """
    return validated(ResamplingSettings, OmegaConf.to_container(chosen, resolve=True), "pivot.resampling")


def check_batch(config: DictConfig, settings: ResamplingSettings) -> None:
    """Refuse batches that could not be exact: refills come prompt by prompt, and no update is padded.

    Raises:
        ConfigError: Naming the keys.
    """
    if config.data.gen_batch_size != 1:
        raise ConfigError(
            f"pivot.resampling replaces single groups, for which data.gen_batch_size must be 1, got "
            f"{config.data.gen_batch_size}"
        )
    batch, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % mini_batch:
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size="
            f"{mini_batch}, or verl would pad the update with rows that nobody sampled"
        )
    if settings.group_size != config.actor_rollout_ref.rollout.n:
        raise ConfigError("pivot.resampling.group_size follows actor_rollout_ref.rollout.n: set that instead")
