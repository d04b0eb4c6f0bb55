"""`pivot.rewards` -> the Composition that its YAML describes, checked against the limits of the launch."""

import math
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import DictConfig
from pydantic import ValidationError

from verl_pivot.configuration import configs_dir
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.compose import Composition, Term, named_terms
from verl_pivot.rewards.reward_sums import ValueRange, check_conditions, narrower_sums, worst_and_best
from verl_pivot.rewards.term_values import VALUES, ValueLimits
from verl_pivot.validation import first_problem, place_of
from verl_pivot.verifiers.registry import check_verifier, known_verifiers

KEY: Final = "pivot.rewards"
_SECTION_OF: Final = {"ruler": "ruler", "rubric": "rubrics", "process": "process"}
"""{value: section of `pivot` that gives it}"""


def reward_presets() -> tuple[str, ...]:
    """Names of the presets that `pivot.rewards` accepts; it also accepts paths of files."""
    return tuple(sorted(path.stem for path in (configs_dir() / "rewards").glob("*.yaml")))


def composition_of(config: DictConfig) -> Composition | None:
    """The composition that a launch names; None if it names none.

    Raises:
        ConfigError: If the composition cannot be read, or contradicts itself.
    """
    given = config.pivot.get("rewards")
    return None if given is None else read_composition(str(given))


def values_of_terms(config: DictConfig) -> frozenset[str]:
    """Names of the values that the terms of a launch have, such as outcome or turns; none without `pivot.rewards`.

    Raises:
        ConfigError: If the composition cannot be read, or contradicts itself.
    """
    composition = composition_of(config)
    terms = () if composition is None else named_terms(composition)
    return frozenset(term.value for _, term, _ in terms if term.value is not None)


@lru_cache(maxsize=8)
def read_composition(given: str) -> Composition:
    """The composition of a YAML file, or of a preset.

    Args:
        given: Path of the file, or name of the preset.

    Raises:
        ConfigError: If it cannot be read or contradicts itself; the message names the file, the key and the remedy.
    """
    written, place = _written(given, ())
    try:
        composition = Composition.model_validate(written)
        for name, term, _ in named_terms(composition):
            _check_source(name, term)
        check_conditions(composition)
    except ValidationError as error:
        raise ConfigError(f"{KEY}: {place}: {first_problem(error, model=Composition)}") from error
    except ValueError as error:
        raise ConfigError(f"{KEY}: {place}: {error}") from error
    return composition


def sums_of(given: str, composition: Composition, limits: ValueLimits) -> ValueRange:
    """Least and largest reward of a launch.

    Raises:
        ConfigError: If a condition or a bound contradicts the range of a value.
    """
    try:
        return worst_and_best(composition, _ranges(composition, limits), limits.max_turns)
    except ValueError as error:
        raise ConfigError(f"{KEY}={given}: {error}") from error


def best_of_failures(composition: Composition, limits: ValueLimits) -> float:
    """Largest reward of a rollout whose outcome is not above 0; `sums_of` has accepted the composition."""
    failed = {name: ValueRange(-math.inf, 0.0) for name, term, _ in named_terms(composition) if term.value == "outcome"}
    return narrower_sums(composition, {**_ranges(composition, limits), **failed}, limits.max_turns).largest


def sums_of_shares(composition: Composition, limits: ValueLimits) -> ValueRange:
    """Least and largest reward if scores without bounds lie in [0, 1]; `sums_of` has accepted the composition."""
    ranges = _ranges(composition, limits)
    unbounded = {name: ValueRange(0.0, 1.0) for name, each in ranges.items() if not all(map(math.isfinite, each))}
    return narrower_sums(composition, {**ranges, **unbounded}, limits.max_turns)


def _ranges(composition: Composition, limits: ValueLimits) -> dict[str, ValueRange]:
    """{name of a term with a source of its own: range of its value, before scale and bounds}"""
    return {
        name: ValueRange(0.0, 1.0) if term.value is None else VALUES[term.value].range(limits)
        for name, term, _ in named_terms(composition)
        if term.terms is None
    }


def check_sections(given: str, composition: Composition, sections: Collection[str]) -> None:
    """Refuse a value whose section of `pivot` the launch does not have.

    Raises:
        ConfigError: If there is such a value; the message names the term and the section.
    """
    for name, term, _ in named_terms(composition):
        section = _SECTION_OF.get(term.value or "")
        if section is not None and section not in sections:
            raise ConfigError(
                f"{KEY}={given}: terms.{name} has the value {term.value}, but the launch has no section "
                f"pivot.{section}, which gives it: choose a method with this section, or remove the term"
            )


def _check_source(name: str, term: Term) -> None:
    """Refuse an unknown value or verifier, and options that the verifier does not accept; raises ValueError."""
    if term.value is not None and term.value not in VALUES:
        raise ValueError(f"terms.{name}.value: unknown value {term.value!r}; known values: {', '.join(VALUES)}")
    if term.verifier is None:
        return
    if term.verifier.name not in known_verifiers():
        known = ", ".join(known_verifiers())
        raise ValueError(
            f"terms.{name}.verifier.name: unknown verifier {term.verifier.name!r}; known verifiers: {known}"
        )
    if term.verifier.options is not None:
        try:
            check_verifier(term.verifier.name, term.verifier.options)
        except ConfigError as error:
            raise ValueError(f"terms.{name}.verifier.options: {error}") from error


def _written(given: str, within: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """Keys of a file, merged over those of the preset that the file names, and the file's path."""
    presets = reward_presets()
    path = configs_dir() / "rewards" / f"{given}.yaml" if given in presets else Path(given).expanduser()
    if given in within:
        raise ConfigError(f"{KEY}: {' -> '.join((*within, given))}: a preset cannot build on itself; remove its preset")
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{KEY}={given}: there is no such file{place_of(path)} that can be read ({error.strerror}); give the path "
            f"of a YAML file, or one of the presets {', '.join(presets)}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{KEY}: {path} is not valid YAML: {error}") from error
    if not isinstance(written, dict):
        raise ConfigError(f"{KEY}: {path} has no terms: it must be a YAML file with the key terms (docs/rewards.md)")
    base = written.pop("preset", None)
    if base is None:
        return written, str(path)
    below, _ = _written(str(base), (*within, given))
    return _merged(below, written), str(path)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Options of a preset, overridden key by key by those of a file; null removes a key."""
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(below.get(key), dict):
            merged[key] = _merged(below[key], value)
        else:
            merged[key] = value
    return merged
