"""Hydra configs of this package: the folder that holds them, and the resolvers that they use.

Every start of Hydra imports this module, so it must not import anything slow.
"""

import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_pivot.objective.settings import OBJECTIVES

_NO_GROUPS = frozenset({"tools", "chat_templates", "principles", "rewards", "synthesis"})
"""Folders of configs/ that Hydra does not read."""


def configs_dir() -> Path:
    """Path of the folder `configs/`: inside the package if a wheel installed it, beside the package in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_groups() -> dict[str, list[str]]:
    """Hydra groups of this package with their options: {"method": ["pivotrl", ...], "local": ["cpu"], ...}."""
    folders = (folder for folder in configs_dir().iterdir() if folder.is_dir() and folder.name not in _NO_GROUPS)
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def register_resolvers() -> None:
    """Register the resolvers `${verl_pivot.*}`; every process that resolves the config needs them."""
    resolvers: dict[str, Callable[..., object]] = {
        "verl_pivot.config": lambda name: str(configs_dir() / str(name)),
        "verl_pivot.objective": lambda objective, setting: getattr(OBJECTIVES[objective], setting),
        "verl_pivot.replay_buffer": _replay_buffer,
        "verl_pivot.router_file": router_file,
        "verl_pivot.text": lambda name: (configs_dir() / str(name)).read_text(encoding="utf-8"),
        "verl_pivot.validation_file": _validation_file,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _replay_buffer(trainer_mode: str, kind: str = "Pivot") -> str:
    """Name of the replay buffer's class: PivotReplayBuffer, RocReplayBufferAsync, ..."""
    return f"{kind}ReplayBuffer" if trainer_mode == "sync" else f"{kind}ReplayBufferAsync"


def router_file(section: DictConfig) -> str:
    """Path of a YAML file with the section `pivot.router`, which verl reads; equal settings give the same path."""
    text = OmegaConf.to_yaml(section, resolve=True)
    folder = Path(tempfile.gettempdir()) / f"verl-pivot-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"router-{sha256(text.encode()).hexdigest()[:16]}.yaml"
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
    return str(path)


def _validation_file(train_files: object) -> object:
    """Path of the validation file that `verl-pivot select` wrote: pivots.parquet -> pivots.validation.parquet."""
    if isinstance(train_files, str) and train_files.endswith(".parquet"):
        return train_files.removesuffix(".parquet") + ".validation.parquet"
    return train_files
