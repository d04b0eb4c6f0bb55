"""GPUs that a launch takes and GPUs that it can have -> an error if an engine or the training does not fit."""

import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_pivot.errors import ConfigError

_ROLLOUT = "actor_rollout_ref.rollout"
_PARALLEL = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
_CLUSTER_FILE = "ray/ray_current_cluster"
"""File below Ray's temporary folder that exists while a cluster runs on this machine."""


def check_engine_size(config: DictConfig) -> None:
    """Refuse an engine that takes more GPUs than there are, since verl would then start none.

    Raises:
        ConfigError: Naming the sizes.
    """
    rollout = config.actor_rollout_ref.rollout
    sizes = {key: int(rollout[key]) for key in _PARALLEL}
    num_engine_gpus = prod(sizes.values())
    place, num_gpus = _engine_gpus(config)
    if num_engine_gpus > num_gpus:
        written = " x ".join(f"{key}={size}" for key, size in sizes.items() if size > 1)
        raise ConfigError(
            f"one engine takes {num_engine_gpus} GPUs ({_ROLLOUT}: {written}), but all engines together have "
            f"{num_gpus} ({place}), so verl would start none: lower {_ROLLOUT}.{max(sizes, key=sizes.__getitem__)}"
        )


def _engine_gpus(config: DictConfig) -> tuple[str, int]:
    """The settings that give engines their GPUs, and the number of these GPUs."""
    is_separate = config.trainer.v1.trainer_mode == "separate_async"
    key, section = (_ROLLOUT, config.actor_rollout_ref.rollout) if is_separate else ("trainer", config.trainer)
    return f"{key}: nnodes={section.nnodes} x n_gpus_per_node={section.n_gpus_per_node}", _product(section)


def _product(section: Any) -> int:
    return int(section.nnodes) * int(section.n_gpus_per_node)


def check_gpus(config: DictConfig, num_gpus: int, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a launch on this machine alone that takes more GPUs than it has; verl would say so after Ray is up.

    Args:
        config: verl's whole config.
        num_gpus: GPUs of this machine.
        environment: Environment variables of the launch.

    Raises:
        ConfigError: With the remedies.
    """
    taken = _product(config.trainer)
    if config.trainer.device == "cpu" or taken <= num_gpus or _joins_cluster(config, environment):
        return
    shape = f"trainer: nnodes={config.trainer.nnodes} x n_gpus_per_node={config.trainer.n_gpus_per_node}"
    start = "start the cluster first (ray start --head)"
    if not num_gpus:
        raise ConfigError(
            f"the launch takes GPUs ({shape}), this machine has none, and no Ray cluster runs here: {start}, or add "
            "+local=cpu to try the launch without a GPU"
        )
    raise ConfigError(
        f"the launch takes {taken} GPUs ({shape}), this machine has {num_gpus}, and no Ray cluster runs here: {start}, "
        "or lower trainer.n_gpus_per_node"
    )


def _joins_cluster(config: DictConfig, environment: Mapping[str, str]) -> bool:
    """Whether Ray knows its GPUs from elsewhere: from a cluster that already runs, or from a number in the command."""
    init = config.ray_kwargs.ray_init
    if init.get("address") not in (None, "local") or init.get("num_gpus") is not None:
        return True
    folder = Path(environment.get("RAY_TMPDIR") or tempfile.gettempdir())
    is_running = "RAY_ADDRESS" in environment or (folder / _CLUSTER_FILE).is_file()
    return is_running and init.get("address") is None
