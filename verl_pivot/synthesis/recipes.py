"""YAML of a recipe -> Recipe: the source of its items, the steps over them, and the filters at the end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import yaml
from pydantic import Field

from verl_pivot.configuration import configs_dir
from verl_pivot.data.files import check_file, num_rows, read_rows
from verl_pivot.data.json_values import BadRowError, encode_json, type_in_words
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.quality.rules import FilterRules, parse_rules
from verl_pivot.synthesis.drafts import Draft, draft_as_dict
from verl_pivot.synthesis.steps import RegisteredStep, get_step, load_step_modules
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, validated

_QUALITY = "quality"
"""Name of the last step, which runs the filters of `verl-pivot filter` over all trajectories."""


class ItemSource(StrEnum):
    """Source of a recipe's items; it is the first entry of the recipe's list."""

    TASKS = "tasks"
    """Each row of --tasks is a draft with a task."""
    TRAJECTORIES = "trajectories"
    """Each line of --trajectories is a draft with a trajectory."""
    NUMBERS = "numbers"
    """Drafts with only an id, for steps that make drafts from the whole input, such as walks in a graph."""


_SOURCES = frozenset(source.value for source in ItemSource)


class NumberedItems(Options):
    num: int = Field(ge=0)
    """Number of items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeStep:
    """One step of a recipe."""

    label: str
    """Name of the step, with a number if the recipe uses it again: judge, judge 2."""
    options: JsonObject
    step: RegisteredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A synthesis method: items, steps over each item, and filters over all remaining trajectories."""

    name: str
    """Name of the recipe's file without its extension."""
    source: ItemSource
    num_numbered: int
    """Number of items if the source is `numbers`; 0 otherwise."""
    steps: tuple[RecipeStep, ...]
    """Steps over the drafts of one item, then steps that choose across items."""
    filters: FilterRules | None
    """Filters over the trajectories that the steps keep; None runs no filter."""
    content: list[object]
    """The recipe's list, including the changes by `--set`."""

    @property
    def item_steps(self) -> tuple[RecipeStep, ...]:
        return tuple(each for each in self.steps if not each.step.across_items)

    @property
    def cross_steps(self) -> tuple[RecipeStep, ...]:
        """Steps that choose among drafts of several items."""
        return tuple(each for each in self.steps if each.step.across_items)


def shipped_recipes() -> dict[str, Path]:
    """{name of a method: its file} for the recipes in this package."""
    return {path.stem: path for path in sorted((configs_dir() / "synthesis").glob("*.yaml"))}


def read_recipe(name: str, changes: Mapping[str, object], modules: Iterable[str] = ()) -> Recipe:
    """The recipe of a shipped method, or the recipe in a YAML file.

    Args:
        name: Name of a shipped recipe, or path of a file that ends in .yaml.
        changes: {"step.option": value} that replace or add options.
        modules: Modules that register the user's own steps and filters.

    Raises:
        ConfigError: If there is no such recipe, or its format is wrong; the message names the place and known names.
    """
    load_step_modules(modules)
    shipped = shipped_recipes()
    if name not in shipped and not name.endswith((".yaml", ".yml")):
        raise ConfigError(f"no method is named {name!r}; known: {', '.join(shipped)}. Or give the path of a YAML file")
    path = shipped.get(name) or Path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{path} must be a list that begins with an item source, got {type_in_words(content)}")
    return recipe_of(content, path, changes, modules)


def recipe_of(content: list[object], path: Path, changes: Mapping[str, object], modules: Iterable[str]) -> Recipe:
    """The recipe that a list describes, such as `Recipe.content` in another process; raises as `read_recipe`.

    Args:
        content: List of steps.
        path: File of the recipe, for error messages.
        changes: {"step.option": value} that replace or add options.
        modules: Modules that register the user's own filters; they are imported.
    """
    return _recipe(path, _changed(_entries(content, path), changes), modules)


@dataclass(frozen=True, slots=True)
class _RecipeEntry:
    """One entry of the recipe's list."""

    place: str
    """File and number of the entry, for error messages."""
    label: str
    name: str
    options: dict[str, object]


def _entries(content: list[object], path: Path) -> list[_RecipeEntry]:
    entries: list[_RecipeEntry] = []
    for number, item in enumerate(content, start=1):
        place = f"{path}, step {number}"
        pair = {item: None} if isinstance(item, str) else item
        if not isinstance(pair, dict) or len(pair) != 1:
            raise ConfigError(
                f"{place}: one name with its options is needed, as in `rollouts: {{num: 8}}`, got {item!r}"
            )
        ((name, options),) = pair.items()
        if not isinstance(name, str) or not isinstance(options, dict | None):
            raise ConfigError(f"{place}: the options of {name} must be names with values, got {type_in_words(options)}")
        count = sum(each.name == name for each in entries) + 1
        entries.append(_RecipeEntry(place, name if count == 1 else f"{name} {count}", name, dict(options or {})))
    return entries


def _changed(entries: list[_RecipeEntry], changes: Mapping[str, object]) -> list[_RecipeEntry]:
    """The entries with the options of `--set`, which must name a step of the recipe."""
    by_label = {entry.label: entry for entry in entries}
    for key, value in changes.items():
        label, _, option = key.partition(".")
        if label not in by_label or not option:
            raise ConfigError(f"--set {key}: give step.option=value; the steps are {', '.join(by_label)}")
        by_label[label].options[option] = value
    return entries


def _recipe(path: Path, entries: list[_RecipeEntry], modules: Iterable[str]) -> Recipe:
    first, *rest = entries
    if first.name not in _SOURCES:
        raise ConfigError(f"{first.place}: must be an item source ({', '.join(ItemSource)}), got {first.name!r}")
    source, num = ItemSource(first.name), 0
    if source is ItemSource.NUMBERS:
        num = validated(NumberedItems, first.options, f"{first.place}: numbers").num
    elif first.options:
        raise ConfigError(f"{first.place}: {source} takes no options, got {sorted(first.options)}")
    filters = None
    if rest and rest[-1].name == _QUALITY:
        last = rest.pop()
        filters = _filters(last, modules)
    steps = tuple(map(_step, rest))
    for before, behind in pairwise(steps):
        if before.step.across_items and not behind.step.across_items:
            raise ConfigError(
                f"{path}: step {behind.label} comes after {before.label}, which waits for all items; put "
                f"{before.label} after {behind.label}"
            )
    content: list[object] = [{entry.name: entry.options} for entry in entries]
    return Recipe(name=path.stem, source=source, num_numbered=num, steps=steps, filters=filters, content=content)


def _filters(entry: _RecipeEntry, modules: Iterable[str]) -> FilterRules:
    if entry.options.keys() != {"rules"}:
        raise ConfigError(f"{entry.place}: quality takes rules, a list of filters, got {sorted(entry.options)}")
    return parse_rules(entry.options["rules"], entry.place, modules)


def _step(entry: _RecipeEntry) -> RecipeStep:
    if entry.name == _QUALITY:
        raise ConfigError(f"{entry.place}: quality filters all trajectories, so it must be the last entry")
    if entry.name in _SOURCES:
        raise ConfigError(f"{entry.place}: {entry.name} is an item source and may only be the first entry")
    try:
        encode_json(entry.options)  # type: ignore[arg-type]  # raises for YAML values that JSON lacks
        step = get_step(entry.name, entry.options)  # type: ignore[arg-type]
    except BadRowError as error:
        raise ConfigError(
            f"{entry.place}: an option of {entry.name} cannot be written as JSON ({error}); put it in quotes"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{entry.place}: {error}") from error
    return RecipeStep(label=entry.label, options=entry.options, step=step)  # type: ignore[arg-type]


def num_items(recipe: Recipe, inputs: Inputs) -> int | None:
    """Number of the recipe's items; None if it is unknown until the file is read to its end.

    Raises:
        ConfigError: If the command does not name the items' file.
        DataError: If there is no such file.
    """
    if recipe.source is ItemSource.NUMBERS:
        return recipe.num_numbered
    path = _input(recipe, inputs)
    check_file(path)
    return num_rows(path)


def items(recipe: Recipe, inputs: Inputs) -> Iterator[Draft]:
    """The recipe's items in order, read one by one; an item that cannot be read is a rejected draft.

    Raises:
        ConfigError: If the command does not name the items' file.
        DataError: If the file cannot be read.
    """
    if recipe.source is ItemSource.NUMBERS:
        yield from (Draft(id=str(number)) for number in range(recipe.num_numbered))
        return
    path = _input(recipe, inputs)
    for number, row in enumerate(read_rows(path), start=1):
        draft = Draft(id=f"{path.stem}-{number}")
        try:
            if recipe.source is ItemSource.TASKS:
                read = replace(draft, task=row.decoded())
            else:
                read = replace(draft, trajectory=read_trajectory(row))
            encode_json(draft_as_dict(read))  # raises for half of a surrogate pair, which no journal can hold
        except DataError as error:
            read = draft.rejected("unreadable_row", str(error))
        yield read


def _input(recipe: Recipe, inputs: Inputs) -> Path:
    path = inputs.tasks if recipe.source is ItemSource.TASKS else inputs.trajectories
    if path is None:
        raise ConfigError(f"method {recipe.name} works on {recipe.source}: give --{recipe.source} FILE")
    return path
