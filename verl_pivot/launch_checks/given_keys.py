"""Overrides of a command line -> the keys that they give a value, in every spelling that Hydra reads."""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override


def given_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Leaf keys that overrides set: `a.b=1`, `++a.b=1` and `a={b: 1}` give a.b, and `~a.b` gives none."""
    parsed: list[Override] = OverridesParser.create().parse_overrides(list(overrides))
    return frozenset(key for each in parsed if not each.is_delete() for key in _leaves(each.key_or_group, each.value()))


def _leaves(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield key
        return
    for name, each in value.items():
        yield from _leaves(f"{key}.{name}", each)
