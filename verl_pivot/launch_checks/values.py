"""Single settings of verl -> an error for a number that allows no step, and for a logger that is not installed."""

import importlib.util
from collections.abc import Sequence
from math import ceil, gcd

from omegaconf import DictConfig, OmegaConf

from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.engine import FSDP

_COUNTS = (
    "pivot.trial_steps",  # first, since `+local=cpu` sets steps and epochs by it
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
"""Keys whose value must be at least 1."""
TOKEN_LIMITS = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
)
"""Keys of the tokens that a micro-batch may have on each GPU with dynamic sizes; verl allows null without them."""
_NUMBERS = (
    "data.dataloader_num_workers",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.data_parallel_size",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "actor_rollout_ref.rollout.val_kwargs.temperature",
    "trainer.save_freq",
    "trainer.test_freq",
    *TOKEN_LIMITS,
)
"""Keys with which verl and other checks compute."""
_MAY_BE_NULL = (
    "trainer.total_training_steps",
    "pivot.trial_steps",
    "actor_rollout_ref.rollout.max_model_len",
    *TOKEN_LIMITS,
)
"""Keys of numbers that may also be null."""
_BY_GROUP = (
    "grpo", "grpo_vectorized", "grpo_passk", "gdpo", "opo", "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized",
)  # fmt: skip
"""Advantage estimators of verl that compare the rollouts of a group with each other."""
_TEMPERATURE = "actor_rollout_ref.rollout.temperature"
_LOGGER_PACKAGES = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")
"""verl's loggers that have the name of the package that they need."""


def check_values(config: DictConfig) -> None:
    """Refuse values with which verl would train no step, learn nothing in a step, or train instead of validating.

    Raises:
        ConfigError: Naming the key, its value and what is allowed.
    """
    _check_numbers(config)
    if config.trainer.get("val_only") and not config.trainer.get("val_before_train", True):
        raise ConfigError(
            "trainer.val_only=True does nothing beside trainer.val_before_train=False, so that verl would train: leave "
            "out trainer.val_before_train=False"
        )
    temperature = OmegaConf.select(config, _TEMPERATURE)
    if not temperature > 0:
        raise ConfigError(
            f"{_TEMPERATURE}={temperature}: must be above 0, or else all rollouts of a group are the same and none has "
            "an advantage"
        )
    estimator, size = str(config.algorithm.adv_estimator), config.actor_rollout_ref.rollout.n
    if estimator in _BY_GROUP and size == 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n=1, and algorithm.adv_estimator={estimator} compares the rollouts of a group: "
            "set n to 2 or more (PivotRL's paper has 16), or choose an estimator without groups, such as "
            "reinforce_plus_plus"
        )


def _check_numbers(config: DictConfig) -> None:
    for key in (*_COUNTS, *_NUMBERS):
        value = OmegaConf.select(config, key, default=1)  # FSDP and Megatron have different keys
        if value is None and key in _MAY_BE_NULL:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in _NUMBERS and not is_number:
            raise ConfigError(f"{key}={_written(value)}: must be a number")
        if key in _COUNTS and not (is_number and isinstance(value, int) and value >= 1):
            raise ConfigError(f"{key}={_written(value)}: must be a whole number of at least 1")


def _written(value: object) -> object:
    return "null" if value is None else value


def check_mini_batch(config: DictConfig) -> None:
    """Refuse a batch that is no multiple of the mini-batch: verl would pad an update with rows that were not sampled.

    Raises:
        ConfigError: Naming both keys.
    """
    batch, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % mini_batch:
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size="
            f"{mini_batch}, or else verl pads the update with rows that were not sampled"
        )


def check_generation_batch(config: DictConfig) -> None:
    """Refuse a size of the batches of prompts that does not divide a step's; verl would say so in the first step.

    Raises:
        ConfigError: Naming both keys.
    """
    size, batch = config.data.get("gen_batch_size"), config.data.train_batch_size
    replaces = OmegaConf.select(config, "algorithm.filter_groups.enable") or OmegaConf.select(
        config, "trainer.v1.sampler.sync_refill_failed_groups"
    )
    if not size or replaces or config.trainer.v1.trainer_mode != "sync":
        return  # verl has a size of its own
    if not isinstance(size, int) or batch % size:
        raise ConfigError(
            f"data.gen_batch_size={size} must divide data.train_batch_size={batch}, since verl takes the prompts of a "
            "step in batches of that size: leave it out, or choose a divisor"
        )


def check_shared_mini_batches(config: DictConfig, *, trains_critic: bool) -> None:
    """Refuse mini-batches that FSDP cannot share among the GPUs; verl would end in the first update.

    Args:
        config: verl's whole config.
        trains_critic: Whether the launch trains a critic.

    Raises:
        ConfigError: Naming the sizes that are possible.
    """
    num_gpus, group_size = config.trainer.nnodes * config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n
    sections = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor}
    for name, section in (sections | ({"critic": config.critic} if trains_critic else {})).items():
        if section.strategy not in FSDP:
            continue
        num_parts = max(1, num_gpus // sequence_parallel_size(section))
        multiple = num_parts // gcd(num_parts, group_size)
        if section.ppo_mini_batch_size % multiple:
            raise ConfigError(
                f"{name}.ppo_mini_batch_size={section.ppo_mini_batch_size} prompts of actor_rollout_ref.rollout.n="
                f"{group_size} rollouts cannot be shared equally among {num_parts} GPUs (trainer.nnodes x "
                "trainer.n_gpus_per_node / ulysses_sequence_parallel_size), and verl would end in the first update: "
                f"set it, and data.train_batch_size with it, to a multiple of {multiple}"
            )


def check_token_limits(config: DictConfig, context: int | None, *, trains_critic: bool) -> None:
    """Refuse micro-batches cut by tokens that cannot hold the longest row; verl would end at the first longer row.

    Args:
        config: verl's whole config.
        context: Tokens of the engine's context; None if it is not known.
        trains_critic: Whether the launch trains a critic.

    Raises:
        ConfigError: With the number that suffices.
    """
    source = "data.max_prompt_length + data.max_response_length"
    longest = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    if "notebook" in config.pivot:
        source, longest = "pivot.notebook.max_context_tokens", int(config.pivot.notebook.max_context_tokens)
    longest = min(longest, context or longest)
    model, actor = config.actor_rollout_ref, config.actor_rollout_ref.actor
    has_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    used = {
        "actor_rollout_ref.actor.ppo": actor if actor.use_dynamic_bsz else None,
        "actor_rollout_ref.rollout.log_prob": actor if actor.use_dynamic_bsz else None,
        "actor_rollout_ref.ref.log_prob": model.ref if has_reference and model.ref.log_prob_use_dynamic_bsz else None,
        "critic.ppo": config.critic if trains_critic and config.critic.use_dynamic_bsz else None,
    }
    for name, section in used.items():
        key = f"{name}_max_token_len_per_gpu"
        limit = OmegaConf.select(config, key)
        if section is not None and (limit or 0) * sequence_parallel_size(section) < longest:
            raise ConfigError(
                f"{key}={_written(limit)} cannot hold a row of {longest} tokens, as long as rows may be, and with "
                "use_dynamic_bsz=True verl would end at the first such row: set it to "
                f"{ceil(longest / sequence_parallel_size(section))} or more, or lower {source}"
            )


def sequence_parallel_size(section: DictConfig) -> int:
    """GPUs of FSDP over which each sequence is split.

    Args:
        section: `actor_rollout_ref.actor` or `critic`; verl reads the key of its engine if its own key is left at 1.
    """
    engine = section.get("fsdp_config") or section.get("fsdp") or {}
    return max(int(each.get("ulysses_sequence_parallel_size", 1)) for each in (section, engine))


def check_loggers(names: str | Sequence[str] | None) -> None:
    """Refuse a logger whose package is missing; verl would say so after the policy and the engines are up.

    Args:
        names: `trainer.logger`, a name or a list.

    Raises:
        ConfigError: Naming the command that installs it.
    """
    for name in [names] if isinstance(names, str) else names or ():
        if name in _LOGGER_PACKAGES and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"trainer.logger names {name}, which is not installed: pip install {name}, or trainer.logger=[console]"
            )
