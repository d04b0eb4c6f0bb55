"""Functional rule for calls: whether a tool would do the same with both, by the JSON schema of its arguments."""

import math
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar

from rapidfuzz import fuzz

from verl_pivot.data.json_values import equal, json_type
from verl_pivot.types import Json, JsonObject, ToolCall
from verl_pivot.verifiers.verdicts import Reason

ExpertT = TypeVar("ExpertT")
ActualT = TypeVar("ActualT")

_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y")
"""Formats in which day and month cannot be taken for each other."""
_NO_SCHEMA: JsonObject = {}


class Difference(NamedTuple):
    """The first difference found between two calls."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityRules:
    """What counts as the same value."""

    number_tolerance: float = 1e-6
    """Relative difference of equal numbers; numbers that the schema calls integers must be exactly equal."""
    dates: bool = False
    """Whether spellings of one date are the same, where the schema's format is date or date-time."""
    paths: bool = False
    """Whether spellings of one path are the same: a/./b, a//b, a/c/../b."""
    enums: bool = False
    """Whether spellings of an enum's member that differ in case or surrounding space are the same."""
    free_text: frozenset[str] = frozenset()
    """Arguments "tool.argument" that hold prose, which is compared by similarity."""
    min_similarity: float = 0.8
    """Least normalised edit similarity, in [0, 1], of prose that is the same."""
    unordered: frozenset[str] = frozenset()
    """Arguments "tool.argument" that hold arrays without an order, beside those with uniqueItems in the schema."""


def find_difference(
    call: ToolCall, expert: ToolCall, parameters: JsonObject, rules: EqualityRules
) -> Difference | None:
    """The first difference that the tool would notice; None if both calls do the same.

    Args:
        call: The policy's call, which is not nested too deeply (see `is_too_deep`).
        expert: The expert's call.
        parameters: JSON schema of the tool's arguments; {} where the row has none.
        rules: What counts as the same value.
    """
    if call.name != expert.name:
        return Difference(Reason.WRONG_TOOL, f"{call.name}, the expert calls {expert.name}")
    return _Comparison(rules).objects(call.arguments, expert.arguments, parameters, call.name)


def match_all(
    expert: Sequence[ExpertT], actual: Sequence[ActualT], fits: Callable[[ExpertT, ActualT], bool]
) -> list[int | None]:
    """[num_expert] index of the partner of each in a largest possible matching; None without a partner."""
    matrix = [[fits(one, other) for other in actual] for one in expert]
    if len(expert) == 1:
        return [matrix[0].index(True) if any(matrix[0]) else None]
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # takes a tenth of a second: most actions are one call

    rows, columns = linear_sum_assignment(matrix, maximize=True)
    partners: list[int | None] = [None] * len(expert)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if matrix[row][column]:
            partners[row] = column
    return partners


class _Comparison:
    """Comparison of a call's values, by path: "tool.argument", "tool.argument.key", "tool.argument[0]"."""

    def __init__(self, rules: EqualityRules) -> None:
        self._rules = rules

    def objects(
        self, actual: Mapping[str, Json], expert: Mapping[str, Json], schema: JsonObject, path: str
    ) -> Difference | None:
        """The first difference; values at the default of their schema may be left out or spelt out."""
        known = _object(schema.get("properties"))
        actual, expert = _with_defaults(actual, known), _with_defaults(expert, known)
        if missing := expert.keys() - actual.keys():
            return Difference(Reason.MISSING_ARGUMENT, f"{path}.{min(missing)}")
        if extra := actual.keys() - expert.keys():
            reason = Reason.EXTRA_ARGUMENT if extra <= known.keys() or not known else Reason.UNKNOWN_ARGUMENT
            return Difference(reason, f"{path}.{min(extra)}")
        for name, value in expert.items():
            found = self._values(actual[name], value, _object(known.get(name)), f"{path}.{name}")
            if found is not None:
                return found
        return None

    def _values(self, actual: Json, expert: Json, schema: JsonObject, path: str) -> Difference | None:
        if json_type(actual) != json_type(expert):
            return Difference(Reason.WRONG_TYPE, f"{path}: {_shown(actual)}, the expert gives {_shown(expert)}")
        if isinstance(actual, dict) and isinstance(expert, dict):
            return self.objects(actual, expert, schema, path)
        if isinstance(actual, list) and isinstance(expert, list):
            return self._arrays(actual, expert, schema, path)
        if self._is_same(actual, expert, schema, path):
            return None
        return Difference(Reason.WRONG_VALUE, f"{path}: {_shown(actual)}, the expert gives {_shown(expert)}")

    def _arrays(self, actual: list[Json], expert: list[Json], schema: JsonObject, path: str) -> Difference | None:
        if len(actual) != len(expert):
            return Difference(Reason.WRONG_VALUE, f"{path}: {len(actual)} items, the expert gives {len(expert)}")
        items = _object(schema.get("items"))
        if not expert:
            return None
        if schema.get("uniqueItems") is True or path in self._rules.unordered:
            partners = match_all(expert, actual, lambda one, other: not self._values(other, one, items, path))
            if None not in partners:
                return None
            return Difference(Reason.WRONG_VALUE, f"{path}: no item is {_shown(expert[partners.index(None)])}")
        pairs = enumerate(zip(actual, expert, strict=True))
        found = (self._values(one, other, items, f"{path}[{index}]") for index, (one, other) in pairs)
        return next((each for each in found if each is not None), None)

    def _is_same(self, actual: Json, expert: Json, schema: JsonObject, path: str) -> bool:
        if equal(actual, expert):
            return True
        if isinstance(actual, str) and isinstance(expert, str):
            return self._is_same_text(actual, expert, schema, path)
        if isinstance(actual, bool) or not isinstance(actual, int | float) or not isinstance(expert, int | float):
            return False
        return schema.get("type") != "integer" and _is_close(actual, expert, self._rules.number_tolerance)

    def _is_same_text(self, actual: str, expert: str, schema: JsonObject, path: str) -> bool:
        rules = self._rules
        if path in rules.free_text:
            return bool(actual.strip()) and _similarity(actual, expert) >= rules.min_similarity
        if rules.enums and isinstance(members := schema.get("enum"), list):
            return _member(actual, members) == _member(expert, members) is not None
        if rules.dates and schema.get("format") in ("date", "date-time"):
            return _date(actual) == _date(expert) is not None
        return rules.paths and posixpath.normpath(actual) == posixpath.normpath(expert) and bool(actual)


def _with_defaults(arguments: Mapping[str, Json], known: JsonObject) -> Mapping[str, Json]:
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
    """Normalised edit similarity in [0, 1], of texts without case and repeated space."""
    return fuzz.ratio(" ".join(text.casefold().split()), " ".join(other.casefold().split())) / 100.0


def _member(text: str, members: list[Json]) -> str | None:
    """The enum's member that a text spells; None if it spells none."""
    spelling = text.strip().casefold()
    return next((each for each in members if isinstance(each, str) and each.casefold() == spelling), None)


def _date(text: str) -> datetime | None:
    """The date that a text spells; None if it spells none."""
    text = text.strip()
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    for date_format in _DATE_FORMATS:
        try:
            return datetime.strptime(text, date_format)
        except ValueError:
            continue
    return None


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
