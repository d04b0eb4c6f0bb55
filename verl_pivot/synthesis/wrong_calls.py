"""A turn with one call -> calls that a careless policy would make instead: a value from elsewhere, or another tool."""

from collections.abc import Iterator
from random import Random

from verl_pivot.data.json_values import encode_json, equal, json_type
from verl_pivot.data.tool_schemas import name_of, schemas_by_name
from verl_pivot.synthesis.data_flow import result_value, scalars
from verl_pivot.synthesis.tool_graph import parameters_of
from verl_pivot.types import Json, JsonObject, Role, ToolCall, Turn


def wrong_calls(turn: Turn, rng: Random) -> list[ToolCall]:
    """Calls that differ from the expert's, the most plausible first, otherwise in random order.

    Calls that match a schema come first; among them, a wrong value comes before a wrong tool. Wrong values have the
    same JSON type, and come from earlier results and the call's other arguments. A wrong tool gets the arguments whose
    names it shares.

    Args:
        turn: A turn whose expert makes one call.
        rng: Random generator of all draws.
    """
    (call,) = turn.expert.tool_calls
    schemas = schemas_by_name(encode_json(list(turn.tools)))

    def is_refused_by_schema(wrong: ToolCall) -> bool:
        return wrong.name not in schemas or schemas[wrong.name].problem(wrong.arguments) is not None

    return sorted([*_with_other_value(turn, call, rng), *_of_other_tool(turn, call, rng)], key=is_refused_by_schema)


def _with_other_value(turn: Turn, call: ToolCall, rng: Random) -> Iterator[ToolCall]:
    names = list(call.arguments)
    for name in rng.sample(names, len(names)):
        others = _other_values(turn, call.arguments, name)
        if others:
            yield ToolCall(name=call.name, arguments={**call.arguments, name: rng.choice(others)}, id=call.id)


def _of_other_tool(turn: Turn, call: ToolCall, rng: Random) -> Iterator[ToolCall]:
    tools = [tool for tool in turn.tools if name_of(tool) != call.name]
    for tool in rng.sample(tools, len(tools)):
        known = parameters_of(tool).get("properties")
        names = known if isinstance(known, dict) else {}
        kept = {name: value for name, value in call.arguments.items() if name in names}
        yield ToolCall(name=name_of(tool), arguments=kept, id=call.id)


def _other_values(turn: Turn, arguments: JsonObject, name: str) -> list[Json]:
    """Distinct values of an argument's JSON type, from earlier results and then from the other arguments."""
    results = [message.content for message in turn.state if message.role is Role.TOOL]
    read = [each.value for result in results for each in scalars(result_value(result))]
    own = [value for other, value in arguments.items() if other != name]
    kind = json_type(arguments[name])
    found = {encode_json(value): value for value in (*read, *own) if json_type(value) == kind}
    return [value for value in found.values() if not equal(value, arguments[name])]
