"""Where our Hydra configs lie, and the resolvers that they use. Imported at every Hydra start: keep it light."""

from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf

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
        "verl_pivot.validation_file": _validation_file,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _replay_buffer(trainer_mode: str, kind: str = "Pivot") -> str:
    """Name of the class: PivotReplayBuffer, RocReplayBufferAsync, ..."""
    return f"{kind}ReplayBuffer" if trainer_mode == "sync" else f"{kind}ReplayBufferAsync"


def _validation_file(train_files: object) -> object:
    """What `verl-pivot select` wrote beside the training file: pivots.parquet -> pivots.validation.parquet."""
    if isinstance(train_files, str) and train_files.endswith(".parquet"):
        return train_files.removesuffix(".parquet") + ".validation.parquet"
    return train_files
