"""Hydra in the suite: each YAML text is parsed once in a process, and each choice of config groups composed once.

Hydra first composes the files of the chosen groups, and then sets the values of a launch. Thousands of tests differ in
such values alone: they begin with a copy of what was composed.
"""

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

_read_file = OmegaConf.load
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_texts: dict[str, bytes] = {}
"""{text of a YAML file: its pickled configuration}"""
_choices: dict[object, DefaultsList] = {}
"""{config, its sources and the overrides that choose groups: the files to compose}"""
_composed: dict[int, bytes] = {}
"""{id of a list of files in `_choices`: their pickled configuration}"""


def compose_once() -> None:
    """Let Hydra and OmegaConf in this process keep what they have read and composed."""
    OmegaConf.load = staticmethod(_load)  # type: ignore[method-assign]
    config_loader_impl.create_defaults_list = _chosen  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = _copy_of_composed  # type: ignore[method-assign]


def _load(file_: str | Path | TextIO) -> DictConfig | ListConfig:
    if isinstance(file_, str | Path):
        return _read_file(file_)
    text = file_.read()
    if text not in _texts:
        _texts[text] = pickle.dumps(_read_file(io.StringIO(text)))  # type: ignore[arg-type]  # it needs no more
    return pickle.loads(_texts[text])  # type: ignore[no-any-return]


def _chosen(repo: Any, config_name: str | None, overrides_list: Sequence[Override], **others: bool) -> DefaultsList:
    values: list[Override] = []
    of_groups: list[Override] = []
    for override in overrides_list:
        is_value = isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
        (values if is_value else of_groups).append(override)
    sources = tuple((source.scheme(), source.path) for source in repo.get_sources())
    key = (config_name, sources, tuple(override.input_line for override in of_groups), *sorted(others.items()))
    if key not in _choices:
        _choices[key] = create_defaults_list(repo, config_name, of_groups, **others)
    return replace(_choices[key], config_overrides=values)


def _copy_of_composed(self: ConfigLoaderImpl, defaults: list[Any], repo: Any) -> DictConfig:
    if id(defaults) not in _composed:
        composed = _compose(self, defaults, repo)
        if not any(defaults is kept.defaults for kept in _choices.values()):
            return composed
        _composed[id(defaults)] = pickle.dumps(composed)
    return pickle.loads(_composed[id(defaults)])  # type: ignore[no-any-return]
