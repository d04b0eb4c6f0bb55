"""Hydra configs of this package: the folder that holds them, and the resolvers that they use.

Every start of Hydra imports this module, so it must not import anything slow.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_pivot.errors import ConfigError
from verl_pivot.objective.settings import OBJECTIVES

_NO_GROUPS = frozenset({"tools", "chat_templates", "principles", "rewards", "synthesis"})
"""Folders of configs/ that Hydra does not read."""
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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
    path = private_folder() / f"router-{sha256(text.encode()).hexdigest()[:16]}.yaml"
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
    return str(path)


def private_folder() -> Path:
    """Folder below the temporary folder to which only this user writes; it is made if it is not there.

    Raises:
        ConfigError: If something else has its name, such as a folder that another user of the machine made.
    """
    folder = Path(tempfile.gettempdir()) / f"verl-pivot-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _WRITTEN_BY_OTHERS:
        raise ConfigError(
            f"{folder} is not a folder to which only you can write, and verl would read the router's settings from it: "
            "remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def _validation_file(train_files: object) -> object:
    """Path of the validation file that `verl-pivot select` wrote: pivots.parquet -> pivots.validation.parquet."""
    if isinstance(train_files, str) and train_files.endswith(".parquet"):
        return train_files.removesuffix(".parquet") + ".validation.parquet"
    return train_files
