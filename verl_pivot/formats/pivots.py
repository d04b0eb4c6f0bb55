"""Format `pivots`: rows of pivots.parquet, or of its JSON lines, as trajectories whose last turn is the expert's."""

from verl_pivot.data.json_values import BadRowError, as_list, encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.pivots import SCHEMA
from verl_pivot.formats.columns import decoded, decoded_object, first_name
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Role

_NESTED = ("prompt", "tools", "expert", "verifier_options", "metadata")
_TOLD_BY = {"prompt", "expert", "trajectory_id", "turn_index", "verifier"}


def is_pivot(row: JsonObject) -> bool:
    """Whether a row looks like one that `verl-pivot select` wrote."""
    return row.keys() >= _TOLD_BY


@register_format("pivots", detect=is_pivot)
def read_pivots(row: JsonObject) -> Conversation:
    """A row is one turn; its numbers of a profile are left, as they are of the turn and not of the trajectory.

    Raises:
        BadRowError: If the row is no pivot, or its turn_index is not the number of assistant turns before it.
    """
    if missing := [key for key in sorted(_TOLD_BY) if row.get(key) is None]:
        raise BadRowError("no_pivot", f"a row without {', '.join(missing)} is no pivot of `verl-pivot select`")
    state = tuple(parse_message(message) for message in as_list(decoded(row["prompt"], "prompt"), "prompt"))
    index = sum(message.role is Role.ASSISTANT for message in state)
    if row["turn_index"] != index:
        raise BadRowError(
            "bad_turn_index", f"turn_index is {row['turn_index']}, and {index} turns of the assistant's come before it"
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
    """A row of pivots.parquet as a line of JSON: what parquet holds as JSON strings are values.

    Raises:
        BadRowError: If one of them is no JSON.
    """
    return {key: decoded(value, key) if key in _NESTED else value for key, value in row.items()}


def with_json_strings(row: JsonObject) -> JsonObject:
    """The inverse of `with_nested_values`."""
    return {
        key: encode_json(value) if key in _NESTED and not isinstance(value, str) else value
        for key, value in row.items()
    }
