"""Chosen config groups -> an error if one of them does not apply to the method, or has no settings of its own left."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_pivot.configuration import config_groups, configs_dir
from verl_pivot.errors import ConfigError
from verl_pivot.hooks import TOOL_METHODS
from verl_pivot.launch_checks.owned_setting import verl_defaults

_APPLY_TO = {
    "stage": ("grpo_roc",),
    "tool_format": TOOL_METHODS,
    "tail": ("pivotrl", *TOOL_METHODS, "l0"),
}
"""{config group: methods that it belongs to}"""
_CHANGE_METHOD = ("stage", "tool_format")
"""Config groups with keys that methods also set, so that the later one in the command counts."""
_METHOD_OF = {
    "notebook": "l0", "resampling": "grpo_roc", "process": "ppr", "objective": "pivotrl", "ruler": "mcp_rl",
    "rubrics": "rubrics", "tree_search": "tree_search", "browser": "web_agent",
    "rollout": "tool_rollout",
}  # fmt: skip
"""{key under `pivot`: method that it identifies}, in the order in which the keys are looked for."""
_OPTIONS_OF_CONFIGS = ("-cn", "-cd", "-cp", "--config")
_SOURCE = re.compile(r"\$\{([\w.]+)\}")
_ALSO = {"pivotrl": ("rollout",)}
"""{method: keys under `pivot` that it reads beside those of its config}: validation on whole tasks reads `rollout`."""


def chosen_groups(choices: Mapping[str, Any], config: DictConfig) -> dict[str, str]:
    """{config group of this package: chosen option} in the order of their composition, however the launch chose them.

    A config of the user's own may name a group as `/method@_global_`, or hold a method with changes under a name of
    its own; such a method is recognised by its settings.

    Args:
        choices: {config group: chosen option} of Hydra, which has the last one first.
        config: verl's whole config.
    """
    last_first = [(group.lstrip("/").partition("@")[0], str(option)) for group, option in choices.items()]
    named = dict(reversed(last_first))
    chosen = {group: option for group, option in named.items() if group in config_groups()}
    pivot = config.get("pivot") or {}
    if not _is_shipped("method", chosen.get("method")):
        told = next((method for key, method in _METHOD_OF.items() if key in pivot), None)
        if told is not None:
            chosen = chosen | {"method": told} if "method" in chosen else {"method": told, **chosen}
    if "router" in pivot and not _is_shipped("router", chosen.get("router")):
        chosen["router"] = "kv_forecast"
    return chosen


def _is_shipped(group: str, option: str | None) -> bool:
    return option in config_groups()[group]


def check_choices(chosen: Mapping[str, str]) -> None:
    """Refuse a stage, a tool format or a tail without its method, or before the method, which would undo it.

    Args:
        chosen: {config group: chosen option}, in the order in which Hydra composed them.

    Raises:
        ConfigError: Naming the methods that the group belongs to.
    """
    method, order = chosen.get("method"), list(chosen)
    for group, methods in _APPLY_TO.items():
        if group in chosen and method not in methods:
            allowed = " or ".join(f"+method={each}" for each in methods)
            got = "no +method" if method is None else f"+method={method}"
            raise ConfigError(f"+{group}={chosen[group]} applies to {allowed}, and the command has {got}")
        is_before = group in chosen and order.index(group) < order.index("method")
        if is_before and group in _CHANGE_METHOD and group not in _groups_within(str(method)):
            raise ConfigError(f"+{group}={chosen[group]} must come after +method={method}, which would undo it")


def _groups_within(method: str) -> set[str]:
    """Config groups that the config of a method of this package includes, so that it may change their keys."""
    return (
        {group for group, _ in _parents("method", method) if group != "method"}
        if _is_shipped("method", method)
        else set()
    )


def check_arguments(words: Sequence[str]) -> None:
    """Apply `check_choices` to a command line without a method, since only a method's config checks the launch.

    Args:
        words: The command line; configs of the user's own that it names may hold the method.

    Raises:
        ConfigError: Naming the methods that the group belongs to.
    """
    arguments = dict(word.lstrip("+").split("=", 1) for word in words if "=" in word)
    if "method" not in arguments and not any(map(names_own_config, words)):
        check_choices({group: arguments[group] for group in _APPLY_TO if group in arguments})


def config_folders(words: Sequence[str]) -> list[Path]:
    """Folders that a command line adds to those in which Hydra looks for configs.

    Example:
        config_folders(["--config-dir", "conf", "hydra.searchpath=[file:///shared/conf]"])
        # [Path("conf"), Path("/shared/conf")]
    """
    return [Path(each.removeprefix("file://")) for each in search_paths(words)]


def search_paths(words: Sequence[str]) -> list[str]:
    """Places that a command line adds to those in which Hydra looks for configs, as they are written."""
    named: list[str] = []
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option in ("--config-dir", "-cd"):
            named.append(value if equals else following)
        elif option.lstrip("+") == "hydra.searchpath":
            named += [each.strip(" '\"") for each in value.strip("[]").split(",")]
    return named


def names_own_config(word: str) -> bool:
    """Whether a word chooses a config file or a config group that may be the user's: `-cn mine`, `+experiment=a`."""
    name = word.partition("=")[0]
    is_group = name.startswith("+") and "." not in name and name.lstrip("+") not in config_groups()
    return is_group or word.startswith(_OPTIONS_OF_CONFIGS)


def check_settings_of_groups(config: DictConfig, chosen: Mapping[str, str]) -> None:
    """Refuse settings under `pivot` of groups that were not chosen, and chosen groups without their settings.

    Raises:
        ConfigError: Naming the setting and the group.
    """
    shipped = {group: option for group, option in chosen.items() if _is_shipped(group, option)}
    for group, option in shipped.items():
        for key in () if group == "router" else shipped_settings(group, option):  # options of a router have defaults
            if (lost := _lost(config, key)) is not None:
                raise ConfigError(
                    f"{lost} is removed or null, but +{group}={option} needs {key}: keep it, or set single keys to "
                    "other values"
                )
        _check_followers(config, shipped_settings(group, option))
    known = {key.split(".")[1] for each in shipped.items() for key in shipped_settings(*each) if _is_own(key)}
    for name in sorted({str(name) for name in config.pivot} - known - {*_ALSO.get(chosen.get("method", ""), ())}):
        if owners := _owners(name):
            raise ConfigError(
                f"pivot.{name} does nothing here, since it is a setting of {' and '.join(owners)}: leave it out"
            )


def _check_followers(config: DictConfig, settings: Mapping[str, Any]) -> None:
    """Refuse another value for a key of this package that only copies the value of another key."""
    for key, value in settings.items():
        source = _SOURCE.fullmatch(str(value))
        if source is None or _is_own(key) or _is_verls(key):
            continue
        if OmegaConf.select(config, key) != OmegaConf.select(config, source[1]):
            raise ConfigError(
                f"{key} must equal {source[1]}, but the launch gives it another value: set only {source[1]}"
            )


def _is_verls(key: str) -> bool:
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(verl_defaults(), parent)
    return isinstance(section, DictConfig) and name in section


def _owners(name: str) -> list[str]:
    """Groups that have a key of this name under `pivot`."""
    return [
        f"+{group}={option}"
        for group, options in config_groups().items()
        for option in options
        if any(key.split(".")[1] == name for key in shipped_settings(group, option) if _is_own(key))
    ]


def _is_own(key: str) -> bool:
    return key.startswith("pivot.")


def _lost(config: DictConfig, key: str) -> str | None:
    """The part of a key's path that the config does not have; None if the key is there."""
    node: Any = config
    names = key.split(".")
    for number, name in enumerate(names):
        if not isinstance(node, DictConfig) or name not in node:
            return ".".join(names[: max(number, 1)] if not isinstance(node, DictConfig) else names[: number + 1])
        if number < len(names) - 1:
            node = node[name]
    return None


@cache
def shipped_settings(group: str, option: str) -> dict[str, Any]:
    """{key: value} that a config of this package and its parent configs set; interpolations are not resolved."""
    shipped = OmegaConf.to_container(OmegaConf.load(configs_dir() / group / f"{option}.yaml"), resolve=False)
    assert isinstance(shipped, dict), option
    shipped.pop("defaults", None)
    found = {key: value for parent in _parents(group, option) for key, value in shipped_settings(*parent).items()}
    return {**found, **{key: value for key, value in leaves(shipped) if not key.startswith("hydra.")}}


@cache
def _parents(group: str, option: str) -> tuple[tuple[str, str], ...]:
    """(group, option) of the configs that a config of this package builds on."""
    defaults = OmegaConf.load(configs_dir() / group / f"{option}.yaml").get("defaults", ())
    listed = [each if isinstance(each, str) else dict(each) for each in defaults if each != "_self_"]
    pairs = [{group: each} if isinstance(each, str) else each for each in listed]
    return tuple((str(name).lstrip("/"), str(parent)) for pair in pairs for name, parent in pair.items())


def leaves(node: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(key with dots, value) of each value in nested dictionaries; an empty dictionary is a value."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and value:
            yield from leaves(value, key)
        else:
            yield key, value
