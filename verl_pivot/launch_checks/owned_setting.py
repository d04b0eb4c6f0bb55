"""OwnedSetting: a key of verl that a method owns, and the function that finds out whether a launch sets it in vain."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf


class Launch(NamedTuple):
    """A launch, as the checks see it."""

    config: DictConfig
    given: frozenset[str]
    """Keys that the command line sets."""

    def value(self, key: str) -> Any:
        return OmegaConf.select(self.config, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSetting:
    """A key of verl, or a section of keys, that a method makes void or cannot work without."""

    key: str
    parts: tuple[str, ...]
    """Parts of the command line that own it, such as "+method=pivotrl"."""
    effect: str
    """Effect of the setting, as the rest of a sentence that begins with the key and its value."""
    remedy: str
    misused: Callable[[Launch, str], str | None]
    """(launch, key) -> the key that is set in vain; None if none is."""


@cache
def verl_defaults() -> DictConfig:
    """verl's own config, as its release writes it into one file."""
    text = files("verl.trainer.config").joinpath("_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    defaults = OmegaConf.create(text)
    assert isinstance(defaults, DictConfig), type(defaults)
    return defaults


def default_keys(key: str) -> Iterator[str]:
    """Keys of verl below a section in their order; the key itself if it is no section."""
    section = OmegaConf.select(verl_defaults(), key)
    if not isinstance(section, DictConfig):
        yield key
        return
    for name in section:
        if name != "_target_":
            yield from default_keys(f"{key}.{name}")


def changed(launch: Launch, key: str) -> str | None:
    """The first key below `key` whose value is not verl's default."""
    return next((each for each in default_keys(key) if is_changed(launch, each)), None)


def is_changed(launch: Launch, key: str) -> bool:
    value, default = launch.value(key), OmegaConf.select(verl_defaults(), key)
    return value is not None and value != default


def other_than(value: Any) -> Callable[[Launch, str], str | None]:
    """Function for `misused` that returns the key if it has another value than this one."""
    return lambda launch, key: None if launch.value(key) == value else key
