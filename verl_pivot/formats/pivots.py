"""Format `pivots`: rows of pivots.parquet, or of its export to JSON lines; each row is one turn with its state."""

from verl_pivot.data.json_values import BadRowError, as_list, encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.pivots import SCHEMA
from verl_pivot.formats.columns import decoded, decoded_object, first_name
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Role

_NESTED_COLUMNS = ("prompt", "tools", "expert", "verifier_options", "metadata")
_NEEDED_COLUMNS = {"prompt", "expert", "trajectory_id", "turn_index", "verifier"}


def is_pivot(row: JsonObject) -> bool:
    """Whether a row looks like one that `verl-pivot select` wrote."""
    return row.keys() >= _NEEDED_COLUMNS


@register_format("pivots", detect=is_pivot)
def read_pivots(row: JsonObject) -> Conversation:
    """The turn of a row, as a conversation whose last turn is the expert's; numbers of its profile are not read.

    Raises:
        BadRowError: If the row is not a pivot, or its turn_index is not the number of assistant turns before it.
    """
    if missing := [key for key in sorted(_NEEDED_COLUMNS) if row.get(key) is None]:
        raise BadRowError(
            "no_pivot", f"a row without {', '.join(missing)} is not a pivot; write the file with `verl-pivot select`"
        )
    state = tuple(parse_message(message) for message in as_list(decoded(row["prompt"], "prompt"), "prompt"))
    index = sum(message.role is Role.ASSISTANT for message in state)
    if row["turn_index"] != index:
        raise BadRowError(
            "bad_turn_index",
            f"turn_index must be {index}, the number of assistant turns before, got {row['turn_index']}",
        )
    return Conversation(
        messages=(*state, parse_message(decoded(row["expert"], "expert"))),
        tools=row.get("tools"),
        id=first_name(row, ("trajectory_id",)),
        expert_turns="last",
        metadata=decoded_object(row.get("metadata"), "metadata"),
        columns=frozenset(SCHEMA.names),
    )


def with_nested_values(row: JsonObject) -> JsonObject:
    """A row of pivots.parquet with values instead of the JSON strings that parquet holds for nested data.

    Raises:
        BadRowError: If one of the strings is not JSON.
    """
    return {key: decoded(value, key) if key in _NESTED_COLUMNS else value for key, value in row.items()}


def with_json_strings(row: JsonObject) -> JsonObject:
    """A row with nested data as JSON strings, as parquet holds it; the inverse of `with_nested_values`."""
    return {
        key: encode_json(value) if key in _NESTED_COLUMNS and not isinstance(value, str) else value
        for key, value in row.items()
    }
