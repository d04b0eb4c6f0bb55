"""YAML of rules -> FilterStep: which filters run, in which order, with which options."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from verl_pivot.configuration import configs_dir
from verl_pivot.data.json_values import BadRowError, encode_json, type_in_words
from verl_pivot.errors import ConfigError
from verl_pivot.quality.registry import Filter, load_filter_modules, make_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterStep:
    """One filter of the rules; hashable, and small enough to be sent to a process with every chunk of rows."""

    name: str
    options: str
    """Options as a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Filters to run, in order."""

    path: str
    """File that the rules were read from, for messages."""
    steps: tuple[FilterStep, ...]
    modules: tuple[str, ...] = ()
    """Modules that register the user's own filters."""

    @property
    def labels(self) -> tuple[str, ...]:
        """[num_steps] names of the filters, numbered where one is used again: leakage, leakage 2."""
        names = [step.name for step in self.steps]
        counts = [names[: position + 1].count(name) for position, name in enumerate(names)]
        return tuple(name if count == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True))


def shipped_rules() -> Path:
    """Path of the rules that are used unless others are given."""
    return configs_dir() / "quality.yaml"


def read_rules(path: Path, modules: Iterable[str] = ()) -> FilterRules:
    """Read the rules of a file, and make every filter once to check its options.

    Raises:
        ConfigError: If the file is no list of filters with valid options; the message names the place in it.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"rules cannot be read from {path}: {error}") from error
    return parse_rules(content, str(path), modules)


def parse_rules(content: object, place: str, modules: Iterable[str] = ()) -> FilterRules:
    """The rules in a list of YAML; every filter is made once to check its options.

    Args:
        content: The list, as YAML gives it.
        place: Name of the list's file or place, for messages.
        modules: Modules that register the user's own filters.

    Raises:
        ConfigError: If it is no list of filters with valid options; the message names the place in it.
    """
    if not isinstance(content, list) or not content:
        raise ConfigError(
            f"{place} must be a list of filters such as `- correctness: {{}}`, got {type_in_words(content)}"
        )
    steps = tuple(_rule(item, f"{place}, rule {number}") for number, item in enumerate(content, start=1))
    rules = FilterRules(path=place, steps=steps, modules=tuple(modules))
    filters_of(rules)
    return rules


def _rule(item: object, place: str) -> FilterStep:
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, dict) or len(item) != 1:
        raise ConfigError(f"{place}: one name with its options is needed, as in `correctness: {{}}`, got {item!r}")
    ((name, options),) = item.items()
    if not isinstance(name, str) or not isinstance(options, dict | None):
        raise ConfigError(f"{place}: the options of {name} must be names with values, got {type_in_words(options)}")
    try:
        return FilterStep(name=name, options=encode_json(options or {}, sort_keys=True))
    except BadRowError as error:  # YAML has dates, sets and keys that are no text
        raise ConfigError(f"{place}: an option of {name} is no plain value ({error}); put it in quotes") from error


@lru_cache(maxsize=1)
def filters_of(rules: FilterRules) -> tuple[Filter, ...]:
    """[num_steps] the filters, made once in each process.

    Raises:
        ConfigError: If no filter has such a name, or it does not take its options.
    """
    load_filter_modules(rules.modules)
    return tuple(_filter(rules, number, step) for number, step in enumerate(rules.steps, start=1))


def _filter(rules: FilterRules, number: int, step: FilterStep) -> Filter:
    try:
        return make_filter(step.name, json.loads(step.options))
    except ConfigError as error:
        raise ConfigError(f"{rules.path}, rule {number}: {error}") from error
