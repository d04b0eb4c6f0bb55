"""Where our Hydra configs lie, and the resolvers that they use. Imported at every Hydra start: keep it light."""

import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

_NO_GROUPS = frozenset({"tools"})
"""Folders of configs/ that Hydra does not read."""


def configs_dir() -> Path:
    """The folder `configs/`: inside the package once installed from a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_groups() -> dict[str, list[str]]:
    """Our Hydra groups and the options of each: {"method": ["pivotrl", ...], "local": ["cpu"], ...}."""
    folders = (folder for folder in configs_dir().iterdir() if folder.is_dir() and folder.name not in _NO_GROUPS)
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def register_resolvers() -> None:
    """Register `${verl_pivot.*}`; harmless to repeat, needed in every process that resolves the config."""
    resolvers: dict[str, Callable[..., object]] = {
        "verl_pivot.config": lambda name: str(configs_dir() / str(name)),
        "verl_pivot.replay_buffer": _replay_buffer,
        "verl_pivot.router_file": _router_file,
        "verl_pivot.validation_file": _validation_file,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _replay_buffer(trainer_mode: str, kind: str = "Pivot") -> str:
    """Name of the class: PivotReplayBuffer, RocReplayBufferAsync, ..."""
    return f"{kind}ReplayBuffer" if trainer_mode == "sync" else f"{kind}ReplayBufferAsync"


def _router_file(section: DictConfig) -> str:
    """`pivot.router` as the YAML file that verl wants: a path of this machine, the same for the same settings."""
    text = OmegaConf.to_yaml(section, resolve=True)
    folder = Path(tempfile.gettempdir()) / f"verl-pivot-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"router-{sha256(text.encode()).hexdigest()[:16]}.yaml"
    begun = path.with_suffix(f".{os.getpid()}")
    begun.write_text(text)
    begun.replace(path)
    return str(path)


def _validation_file(train_files: object) -> object:
    """What `verl-pivot select` wrote beside the training file: pivots.parquet -> pivots.validation.parquet."""
    if isinstance(train_files, str) and train_files.endswith(".parquet"):
        return train_files.removesuffix(".parquet") + ".validation.parquet"
    return train_files
