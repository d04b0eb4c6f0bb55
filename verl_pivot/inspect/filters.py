"""Filter and order of a user -> SQL over the table `rollouts`: a condition with its values, and an order."""

from typing import Any, Literal, NamedTuple

import msgspec

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra

with extra("data"):
    import duckdb

SortColumn = Literal[
    "id", "run", "part", "step", "score", "reason", "detail", "left_out", "stop_reason", "error_kinds", "tools",
    "num_turns", "num_calls", "num_errors", "sampled_tokens", "prompt_tokens", "response_tokens", "generate_seconds",
    "tool_seconds", "prompt_id", "data_source",
]  # fmt: skip
"""Columns by which rollouts are sorted."""


class SqlCondition(NamedTuple):
    """A condition with a question mark for each value."""

    text: str
    values: list[Any]


class RolloutFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of the listed rollouts; each field that is set leaves out rollouts with another value.

    Example:
        RolloutFilter(step=12, score_to=0.0, reason="wrong_value")
    """

    run: int | None = None
    """Number of the run, from 0."""
    part: str | None = None
    """`training` or `validation`."""
    step: int | None = None
    reason: str | None = None
    left_out: str | None = None
    stop_reason: str | None = None
    error_kinds: str | None = None
    data_source: str | None = None
    prompt_id: str | None = None
    group_name: str | None = None
    trajectory_id: str | None = None
    turn_index: int | None = None
    is_kept: bool | None = None
    score_from: float | None = None
    score_to: float | None = None
    words: str | None = None
    """Words that a text of the rollout holds exactly as given, except for upper and lower case."""
    condition: str | None = None
    """A condition in SQL over the columns of `rollouts`."""

    def sql(self) -> SqlCondition:
        """Condition of all fields but `words`, since the texts are in no column.

        Raises:
            ConfigError: If `condition` is not exactly one condition.
        """
        texts, values = ["TRUE"], []
        for name in _EQUAL:
            if (value := getattr(self, name)) is not None:
                texts.append(f"{name} = ?")
                values.append(value)
        for name, comparison in _COMPARED.items():
            if (value := getattr(self, name)) is not None:
                texts.append(comparison)
                values.append(value)
        if self.condition is not None and self.condition.strip():
            texts.append(_only_condition(self.condition))
        return SqlCondition(" AND ".join(texts), values)


_EQUAL = (
    "run", "part", "step", "reason", "left_out", "stop_reason", "error_kinds", "data_source", "prompt_id", "group_name",
    "trajectory_id", "turn_index",
)  # fmt: skip
_COMPARED = {
    "is_kept": "coalesce(kept, TRUE) = ?",
    "score_from": "score >= ?",
    "score_to": "score <= ?",
}


class RolloutOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Column by which rollouts are sorted; equal ones keep the order in which they were read, empty cells come last."""

    sort: SortColumn = "id"
    is_descending: bool = False

    def sql(self) -> str:
        return f"{self.sort} {'DESC' if self.is_descending else 'ASC'} NULLS LAST, id"


def _only_condition(text: str) -> str:
    """The condition in parentheses, so that it binds as a whole and a comment at its end does no harm.

    Raises:
        ConfigError: If it is no condition, or if another statement follows it.
    """
    condition = f"({text}\n)"
    try:
        statements = duckdb.extract_statements(f"SELECT 1 FROM rollouts WHERE {condition}")
    except duckdb.Error as error:
        raise ConfigError(f"the condition is not valid SQL: {str(error).partition(chr(10))[0]}") from error
    if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
        raise ConfigError("the condition must be a single expression, such as score < 0.5 AND num_calls > 2")
    return condition
