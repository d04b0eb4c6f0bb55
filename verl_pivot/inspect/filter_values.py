"""Values of a filter -> the filter, or a sentence that says what a value must be and lists the known ones."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec

from verl_pivot.data.rollout_dumps import LeftOut
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import ConfigError
from verl_pivot.inspect.filters import RolloutFilter
from verl_pivot.runs.run import RunPart
from verl_pivot.types import ErrorKind
from verl_pivot.verifiers.verdicts import Reason

FilterT = TypeVar("FilterT", bound=msgspec.Struct)

SHIPPED: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(each.value for each in kind)
    for name, kind in (
        ("part", RunPart),
        ("stop_reason", StopReason),
        ("error_kinds", ErrorKind),
        ("left_out", LeftOut),
        ("reason", Reason),
    )
}
"""{column: values that this package writes}; the user's own verifiers and other versions may write others."""
_WORDS: Final = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def filter_from(values: Mapping[str, Any], kind: type[FilterT]) -> FilterT:
    """The filter with these fields, whose values may be texts.

    Raises:
        ConfigError: If there is no such field, or its value is of another type.
    """
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$\.(\w+)`", str(error))
        wanted = re.search(r"Expected `(\w+)", str(error))
        if field and wanted and wanted[1] in _WORDS:
            raise ConfigError(
                f"the filter cannot be used: {field[1]} must be {_WORDS[wanted[1]]}, not {values[field[1]]!r}"
            ) from error
        names = ", ".join(kind.__struct_fields__)
        raise ConfigError(f"the filter cannot be used: {error}; its fields are {names}") from error


def refuse_impossible(wanted: RolloutFilter, num_runs: int, values: Callable[[str], Collection[str]]) -> None:
    """Refuse a filter with a value that no rollout has, and that this version does not write.

    Args:
        wanted: The filter. Its `error_kinds` may be several with commas, or "" for rollouts without errors.
        num_runs: Number of runs that are looked at.
        values: Gives the values that some rollout has in a column.

    Raises:
        ConfigError: If the filter has such a value; the message lists the known ones.
    """
    if wanted.run is not None and not 0 <= wanted.run < num_runs:
        known_runs = ", ".join(map(str, range(num_runs)))
        raise ConfigError(f"the filter cannot be used: there is no run {wanted.run}; known: {known_runs}")
    for column, shipped in SHIPPED.items():
        value: str | None = getattr(wanted, column)
        if value is not None and value not in shipped:
            _refuse_unknown(column, value, shipped | {*values(column)})


def _refuse_unknown(column: str, value: str, known: Collection[str]) -> None:
    parts = [value]
    if column == "error_kinds":
        parts = [part for part in value.split(",") if part]
        known = {part for each in known for part in each.split(",")}
    if unknown := [part for part in parts if part not in known]:
        raise ConfigError(
            f"the filter cannot be used: no rollout has {column}={unknown[0]}; known: {', '.join(sorted(known))}"
        )
