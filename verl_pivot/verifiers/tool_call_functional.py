"""Functional rule for two calls: whether a tool would do the same with both, by the JSON schema of its arguments."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from verl_pivot.data.json_values import equal, json_type
from verl_pivot.types import Json, JsonObject, ToolCall
from verl_pivot.verifiers.tool_call_schemas import properties_of, required_names, resolved
from verl_pivot.verifiers.tool_call_texts import is_same_date, is_same_member, is_same_path, is_same_prose
from verl_pivot.verifiers.verdicts import Reason

ExpertT = TypeVar("ExpertT")
ActualT = TypeVar("ActualT")

_MAX_MATCHED = 256
"""Most items of two arrays without an order whose items are all compared with each other. From longer arrays, items
that are in both are removed first."""
_PATH_FORMATS = ("path", "file-path", "directory-path")


class Difference(NamedTuple):
    """The first difference found between two calls."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityRules:
    """Rules for equal values; arguments are written "tool.argument", "tool.argument.key" within objects and arrays."""

    number_tolerance: float = 1e-13
    """Largest relative difference of equal numbers if one of them has a fraction; whole numbers must be equal."""
    dates: bool | frozenset[str] = False
    """Arguments in which different spellings of a date are equal; True: if the schema's format is date or date-time."""
    paths: bool | frozenset[str] = False
    """Arguments in which different spellings of a path (a/./b, a//b) are equal; True: if the schema's format is path,
    file-path or directory-path."""
    enums: bool | frozenset[str] = False
    """Arguments in which a member of an enum may be spelt with other case or surrounding space, unless two members
    differ in nothing else; True: wherever the schema has an enum."""
    free_text: frozenset[str] = frozenset()
    """Arguments that hold prose, which is compared by similarity, numbers and negations."""
    min_similarity: float = 0.8
    """Smallest normalised edit similarity, in [0, 1], at which two texts of prose are equal."""
    unordered: frozenset[str] = frozenset()
    """Arguments that hold arrays without an order, in addition to those with uniqueItems in the schema."""
    ignored: frozenset[str] = frozenset()
    """Arguments that are not compared, and that either call may leave out."""

    def named(self) -> Iterator[tuple[str, str]]:
        """(option, argument) for each argument that a rule lists."""
        for option in ("dates", "paths", "enums", "free_text", "unordered", "ignored"):
            arguments = getattr(self, option)
            for argument in sorted(arguments) if isinstance(arguments, frozenset) else ():
                yield option, argument


def find_difference(
    call: ToolCall, expert: ToolCall, parameters: JsonObject, rules: EqualityRules
) -> Difference | None:
    """The first difference that the tool would notice; None if both calls do the same.

    Args:
        call: The policy's call, which is not nested too deeply (see `is_too_deep`).
        expert: The expert's call.
        parameters: JSON schema of the tool's arguments; {} if the row has none.
        rules: Rules for equal values.
    """
    if call.name != expert.name:
        return Difference(Reason.WRONG_TOOL, f"{call.name}, the expert calls {expert.name}")
    return _Comparison(rules, parameters).objects(
        call.arguments, expert.arguments, parameters, _ValuePlace(call.name, call.name)
    )


FindDifference: TypeAlias = Callable[[ToolCall, ToolCall], Difference | None]
"""(the policy's call, the expert's call) -> the first difference; None if both calls do the same."""


def match_all(
    expert: Sequence[ExpertT], actual: Sequence[ActualT], fits: Callable[[ExpertT, ActualT], bool]
) -> list[int | None]:
    """[num_expert] index of the partner of each expert item in a largest possible matching; None without a partner."""
    if not expert:
        return []
    matrix = [[fits(one, other) for other in actual] for one in expert]
    if len(expert) == 1:
        return [matrix[0].index(True) if any(matrix[0]) else None]
    partners = best_partners(matrix)
    return [
        partner if partner is not None and row[partner] else None for row, partner in zip(matrix, partners, strict=True)
    ]


def best_partners(matrix: Sequence[Sequence[float]]) -> list[int | None]:
    """[num_rows] column of the partner of each row, for the largest sum; None for a row without a partner.

    Args:
        matrix: [num_rows][num_columns] how well each row fits each column.
    """
    # Imported here, since the import takes a tenth of a second and most actions are one call.
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows, columns = linear_sum_assignment(matrix, maximize=True)
    partners: list[int | None] = [None] * len(matrix)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        partners[row] = column
    return partners


class _ValuePlace(NamedTuple):
    """Place of a value in a call."""

    name: str
    """Name by which rules list the value, the same for all items of an array: "tool.argument.key"."""
    shown: str
    """The place in a detail: "tool.argument[0].key"."""

    def key(self, key: str) -> "_ValuePlace":
        return _ValuePlace(f"{self.name}.{key}", f"{self.shown}.{key}")

    def item(self, index: int, item: Json) -> "_ValuePlace":
        """The place of an item; an array within an array has another name, since rules for the outer one skip it."""
        return _ValuePlace(f"{self.name}[]" if isinstance(item, list) else self.name, f"{self.shown}[{index}]")


class _Comparison:
    """Comparison of a call's values, by their places."""

    def __init__(self, rules: EqualityRules, parameters: JsonObject) -> None:
        self._rules = rules
        self._parameters = parameters

    def objects(
        self, actual: Mapping[str, Json], expert: Mapping[str, Json], schema: JsonObject, place: _ValuePlace
    ) -> Difference | None:
        """The first difference; a value that is the default of its schema may be left out or written."""
        schema = resolved(schema, self._parameters)
        known = properties_of(schema, self._parameters)
        if self._rules.ignored:
            actual, expert = self._compared(actual, place), self._compared(expert, place)
        actual, expert = (
            _with_defaults(actual, known, required_names(schema) & expert.keys()),
            _with_defaults(expert, known, frozenset()),
        )
        if missing := expert.keys() - actual.keys():
            return Difference(Reason.MISSING_ARGUMENT, place.key(min(missing)).shown)
        if extra := actual.keys() - expert.keys():
            reason = Reason.EXTRA_ARGUMENT if extra <= known.keys() or not known else Reason.UNKNOWN_ARGUMENT
            return Difference(reason, place.key(min(extra)).shown)
        for name, value in expert.items():
            found = self._values(actual[name], value, known.get(name, {}), place.key(name))
            if found is not None:
                return found
        return None

    def _compared(self, arguments: Mapping[str, Json], place: _ValuePlace) -> Mapping[str, Json]:
        """The arguments without those that are ignored."""
        return {name: value for name, value in arguments.items() if place.key(name).name not in self._rules.ignored}

    def _values(self, actual: Json, expert: Json, schema: JsonObject, place: _ValuePlace) -> Difference | None:
        if json_type(actual) != json_type(expert):
            return Difference(Reason.WRONG_TYPE, f"{place.shown}: {_shown(actual)}, the expert gives {_shown(expert)}")
        if isinstance(actual, dict) and isinstance(expert, dict):
            return self.objects(actual, expert, schema, place)
        if isinstance(actual, list) and isinstance(expert, list):
            return self._arrays(actual, expert, schema, place)
        if self._is_same(actual, expert, schema, place):
            return None
        return Difference(Reason.WRONG_VALUE, f"{place.shown}: {_shown(actual)}, the expert gives {_shown(expert)}")

    def _arrays(
        self, actual: list[Json], expert: list[Json], schema: JsonObject, place: _ValuePlace
    ) -> Difference | None:
        if len(actual) != len(expert):
            return Difference(Reason.WRONG_VALUE, f"{place.shown}: {len(actual)} items, the expert gives {len(expert)}")
        items = resolved(schema.get("items"), self._parameters)
        if not expert:
            return None
        if schema.get("uniqueItems") is True or place.name in self._rules.unordered:
            if len(expert) > _MAX_MATCHED:
                actual, expert = _without_shared(actual, expert)
            if len(expert) > _MAX_MATCHED:
                return Difference(Reason.WRONG_VALUE, f"{place.shown}: {len(expert)} items differ from the expert's")
            partners = match_all(
                expert, actual, lambda one, other: not self._values(other, one, items, place.item(0, one))
            )
            if None not in partners:
                return None
            return Difference(Reason.WRONG_VALUE, f"{place.shown}: no item is {_shown(expert[partners.index(None)])}")
        pairs = enumerate(zip(actual, expert, strict=True))
        found = (self._values(one, other, items, place.item(index, other)) for index, (one, other) in pairs)
        return next((each for each in found if each is not None), None)

    def _is_same(self, actual: Json, expert: Json, schema: JsonObject, place: _ValuePlace) -> bool:
        if equal(actual, expert):
            return True
        if isinstance(actual, str) and isinstance(expert, str):
            return self._is_same_text(actual, expert, schema, place)
        if isinstance(actual, bool) or not isinstance(actual, int | float) or not isinstance(expert, int | float):
            return False
        return schema.get("type") != "integer" and _is_close(actual, expert, self._rules.number_tolerance)

    def _is_same_text(self, actual: str, expert: str, schema: JsonObject, place: _ValuePlace) -> bool:
        rules = self._rules
        if place.name in rules.free_text:
            return is_same_prose(actual, expert, rules.min_similarity)
        if _applies(rules.enums, place.name) and isinstance(members := schema.get("enum"), list):
            return is_same_member(actual, expert, members)
        if _applies(rules.dates, place.name, schema.get("format") in ("date", "date-time")):
            return is_same_date(actual, expert)
        return _applies(rules.paths, place.name, schema.get("format") in _PATH_FORMATS) and is_same_path(actual, expert)


def _applies(arguments: bool | frozenset[str], path: str, is_default: bool = True) -> bool:
    """Whether a rule applies to one argument: if the rule lists it, or is True and the schema says so."""
    return path in arguments if isinstance(arguments, frozenset) else arguments and is_default


def _with_defaults(
    arguments: Mapping[str, Json], known: Mapping[str, JsonObject], required: Set[str]
) -> Mapping[str, Json]:
    """The arguments, with the defaults of those that are left out and not required."""
    defaults = {
        name: schema["default"]
        for name, schema in known.items()
        if name not in arguments and name not in required and "default" in schema
    }
    return {**arguments, **defaults} if defaults else arguments


def _without_shared(items: list[Json], others: list[Json]) -> tuple[list[Json], list[Json]]:
    """Both lists without their shared items; an item is removed as often as both lists have it."""
    left = Counter(map(_key, others))
    rest, shared = [], Counter[Hashable]()
    for item in items:
        key = _key(item)
        if shared[key] < left[key]:
            shared[key] += 1
        else:
            rest.append(item)
    other_rest = []
    for item in others:
        key = _key(item)
        if shared[key] > 0:
            shared[key] -= 1
        else:
            other_rest.append(item)
    return rest, other_rest


def _key(value: Json) -> Hashable:
    """Key that is the same for equal JSON values."""
    if isinstance(value, dict):
        return frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    return (json_type(value), value)


def _is_close(value: float, other: float, tolerance: float) -> bool:
    """Whether two different numbers are equal up to rounding; two whole numbers never are."""
    try:
        num_whole = float(value).is_integer() + float(other).is_integer()
    except OverflowError:  # an integer too large for a float
        return False
    is_near = num_whole == 0 or abs(value - other) < 0.5
    return num_whole < 2 and is_near and math.isclose(value, other, rel_tol=tolerance)


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
