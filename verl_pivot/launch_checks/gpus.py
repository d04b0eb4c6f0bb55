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
    """Refuse an engine that takes more GPUs than there are, or that leaves some of the training's GPUs without one.

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
    if not _is_separate(config) and num_gpus % num_engine_gpus:
        raise ConfigError(
            f"{num_gpus} GPUs ({place}) cannot be shared by engines of {num_engine_gpus} GPUs each without a rest, "
            f"which verl does not allow: change {_ROLLOUT}.{max(sizes, key=sizes.__getitem__)} or "
            "trainer.n_gpus_per_node"
        )


def _engine_gpus(config: DictConfig) -> tuple[str, int]:
    """The settings that give engines their GPUs, and the number of these GPUs."""
    key, section = (_ROLLOUT, config.actor_rollout_ref.rollout) if _is_separate(config) else ("trainer", config.trainer)
    return _written(key, section), _product(section)


def _is_separate(config: DictConfig) -> bool:
    """Whether engines have GPUs of their own beside those of the training."""
    return bool(config.trainer.v1.trainer_mode == "separate_async")


def _written(key: str, section: Any) -> str:
    return f"{key}: nnodes={section.nnodes} x n_gpus_per_node={section.n_gpus_per_node}"


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
    sections = {"trainer": config.trainer}
    if _is_separate(config):
        sections[_ROLLOUT] = config.actor_rollout_ref.rollout
    taken = sum(map(_product, sections.values()))
    if config.trainer.device == "cpu" or taken <= num_gpus or _joins_cluster(config, environment):
        return
    shape = ", ".join(_written(key, section) for key, section in sections.items())
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
