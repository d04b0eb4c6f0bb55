"""One call against the expert's: whether a tool would do the same with it, by the tool's JSON schema."""

import math
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rapidfuzz import fuzz

from verl_pivot.types import Json, JsonObject, ToolCall
from verl_pivot.verifiers.json_values import equal, kind_of
from verl_pivot.verifiers.matching import match_all
from verl_pivot.verifiers.reasons import Reason

_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y")
"""None in which day and month could be taken for each other."""
_NO_SCHEMA: JsonObject = {}


class Difference(NamedTuple):
    """The first one found."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as the same value."""

    number_tolerance: float = 1e-6
    """Relative; numbers that the schema calls integers must be equal."""
    dates: bool = False
    """Spellings of one date are the same, where the schema's format is date or date-time."""
    paths: bool = False
    """Spellings of one path are the same: a/./b, a//b, a/c/../b."""
    enums: bool = False
    """Spellings of one member of an enum are the same but for case and surrounding space."""
    free_text: frozenset[str] = frozenset()
    """Names "tool.argument" of prose, compared by similarity."""
    min_similarity: float = 0.8
    """Of prose: normalised edit similarity, in [0, 1]."""
    unordered: frozenset[str] = frozenset()
    """Names "tool.argument" of arrays whose order says nothing, beside those with uniqueItems in the schema."""


def difference(call: ToolCall, expected: ToolCall, parameters: JsonObject, rules: Rules) -> Difference | None:
    """None if `call` does what `expected` does.

    Args:
        call: The policy's; not too deep.
        expected: The expert's.
        parameters: JSON schema of the tool's arguments; {} where the row has none.
        rules: See there.
    """
    if call.name != expected.name:
        return Difference(Reason.WRONG_TOOL, f"{call.name}, expected {expected.name}")
    return _Comparison(rules).objects(call.arguments, expected.arguments, parameters, call.name)


class _Comparison:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def objects(
        self, actual: Mapping[str, Json], expected: Mapping[str, Json], schema: JsonObject, at: str
    ) -> Difference | None:
        """Arguments that the schema has a default for may be left out or spelt out."""
        known = _object(schema.get("properties"))
        actual, expected = _filled(actual, known), _filled(expected, known)
        if missing := expected.keys() - actual.keys():
            return Difference(Reason.MISSING_ARGUMENT, f"{at}.{min(missing)}")
        if extra := actual.keys() - expected.keys():
            reason = Reason.EXTRA_ARGUMENT if extra <= known.keys() or not known else Reason.UNKNOWN_ARGUMENT
            return Difference(reason, f"{at}.{min(extra)}")
        for name, value in expected.items():
            found = self._values(actual[name], value, _object(known.get(name)), f"{at}.{name}")
            if found is not None:
                return found
        return None

    def _values(self, actual: Json, expected: Json, schema: JsonObject, at: str) -> Difference | None:
        if kind_of(actual) != kind_of(expected):
            return Difference(Reason.WRONG_TYPE, f"{at}: {_shown(actual)}, expected {_shown(expected)}")
        if isinstance(actual, dict) and isinstance(expected, dict):
            return self.objects(actual, expected, schema, at)
        if isinstance(actual, list) and isinstance(expected, list):
            return self._arrays(actual, expected, schema, at)
        if self._is_same(actual, expected, schema, at):
            return None
        return Difference(Reason.WRONG_VALUE, f"{at}: {_shown(actual)}, expected {_shown(expected)}")

    def _arrays(self, actual: list[Json], expected: list[Json], schema: JsonObject, at: str) -> Difference | None:
        if len(actual) != len(expected):
            return Difference(Reason.WRONG_VALUE, f"{at}: {len(actual)} items, expected {len(expected)}")
        items = _object(schema.get("items"))
        if not expected:
            return None
        if schema.get("uniqueItems") is True or at in self._rules.unordered:
            partners = match_all(expected, actual, lambda wanted, given: not self._values(given, wanted, items, at))
            missing = next((value for value, partner in zip(expected, partners, strict=True) if partner is None), None)
            if None not in partners:
                return None
            return Difference(Reason.WRONG_VALUE, f"{at}: no item is {_shown(missing)}")
        pairs = enumerate(zip(actual, expected, strict=True))
        found = (self._values(given, wanted, items, f"{at}[{index}]") for index, (given, wanted) in pairs)
        return next((each for each in found if each is not None), None)

    def _is_same(self, actual: Json, expected: Json, schema: JsonObject, at: str) -> bool:
        if equal(actual, expected):
            return True
        if isinstance(actual, str) and isinstance(expected, str):
            return self._is_same_text(actual, expected, schema, at)
        if isinstance(actual, bool) or not isinstance(actual, int | float) or not isinstance(expected, int | float):
            return False
        return schema.get("type") != "integer" and _is_close(actual, expected, self._rules.number_tolerance)

    def _is_same_text(self, actual: str, expected: str, schema: JsonObject, at: str) -> bool:
        rules = self._rules
        if at in rules.free_text:
            return bool(actual.strip()) and _similarity(actual, expected) >= rules.min_similarity
        if rules.enums and isinstance(members := schema.get("enum"), list):
            return _member(actual, members) == _member(expected, members) is not None
        if rules.dates and schema.get("format") in ("date", "date-time"):
            return _date(actual) == _date(expected) is not None
        return rules.paths and posixpath.normpath(actual) == posixpath.normpath(expected) and bool(actual)


def _filled(arguments: Mapping[str, Json], known: JsonObject) -> Mapping[str, Json]:
    defaults = {
        name: schema["default"]
        for name, schema in known.items()
        if name not in arguments and isinstance(schema, dict) and "default" in schema
    }
    return {**arguments, **defaults} if defaults else arguments


def _object(schema: Json) -> JsonObject:
    return schema if isinstance(schema, dict) else _NO_SCHEMA


def _is_close(value: float, other: float, tolerance: float) -> bool:
    try:
        return math.isclose(value, other, rel_tol=tolerance)
    except OverflowError:  # an integer too large for a float
        return False


def _similarity(text: str, other: str) -> float:
    return fuzz.ratio(" ".join(text.casefold().split()), " ".join(other.casefold().split())) / 100.0


def _member(text: str, members: list[Json]) -> str | None:
    spelling = text.strip().casefold()
    return next((each for each in members if isinstance(each, str) and each.casefold() == spelling), None)


def _date(text: str) -> datetime | None:
    text = text.strip()
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    for form in _DATE_FORMATS:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
