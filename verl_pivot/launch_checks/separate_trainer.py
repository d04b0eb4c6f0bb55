"""Config of a launch with `trainer_mode=separate_async` -> an error if verl would stop it once Ray is up."""

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError

_BACKEND = "actor_rollout_ref.rollout.checkpoint_engine.backend"
_ON_GPUS = ("nccl", "hccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded")
"""verl's backends that hand weights over to engines on other GPUs; all of them wait for a GPU, also those for a CPU."""


def check_separate_trainer(config: DictConfig) -> None:
    """Refuse settings with which verl's trainer with separate engines does not start.

    Raises:
        ConfigError: Naming the settings.
    """
    if config.trainer.v1.trainer_mode != "separate_async":
        return
    backend = str(config.actor_rollout_ref.rollout.checkpoint_engine.backend)
    if backend == "naive":
        raise ConfigError(
            f"trainer.v1.trainer_mode=separate_async sends weights to engines on other GPUs, but {_BACKEND}=naive, "
            "verl's default, cannot: set it to nccl, or another backend of verl"
        )
    if backend in _ON_GPUS and config.trainer.device == "cpu":
        raise ConfigError(
            f"{_BACKEND}={backend} needs a GPU, so that trainer.v1.trainer_mode=separate_async does not run with "
            "+local=cpu: try the launch with trainer.v1.trainer_mode=colocate_async"
        )
    batch, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    num_updates = config.trainer.v1.separate_async.parameter_sync_step
    if batch != num_updates * mini_batch:
        raise ConfigError(
            f"with trainer.v1.trainer_mode=separate_async data.train_batch_size={batch} must be trainer.v1."
            f"separate_async.parameter_sync_step={num_updates} times actor_rollout_ref.actor.ppo_mini_batch_size="
            f"{mini_batch}"
        )
