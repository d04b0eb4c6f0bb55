"""An assistant turn and the next call of a path -> the problem of the turn, found by a program alone."""

from collections.abc import Sequence

from verl_pivot.data.json_values import encode_json, is_too_deep
from verl_pivot.data.tool_schemas import name_of, schemas_by_name
from verl_pivot.synthesis.argument_sources import asks_for, is_known, unsourced_values
from verl_pivot.synthesis.data_flow import argument_values, result_value, scalars
from verl_pivot.synthesis.tool_paths import PathCall
from verl_pivot.types import JsonObject, Malformed, Message, ToolCall


def call_problem(
    action: Message,
    planned: PathCall,
    *,
    messages: Sequence[Message],
    results: Sequence[Message],
    tools: Sequence[JsonObject],
    may_write: Sequence[str] = (),
) -> Malformed | None:
    """Why an action is not the next call of the path; None if it is.

    It must be a single call of the path's tool, its arguments must match the schema, each linked argument must have its
    value from the linked result, and every other value must occur in a message or the schema.

    Args:
        action: Turn of the assistant.
        planned: The path's call.
        messages: All messages before the action.
        results: [num_calls] results of the path's earlier calls.
        tools: Schemas of the tools.
        may_write: Arguments, as tool.argument, whose text the caller composes itself.
    """
    if len(action.tool_calls) != 1:
        names = ", ".join(call.name for call in action.tool_calls) or "none"
        return Malformed(reason="not_one_call", detail=f"calls: {names}; the path has {planned.tool}")
    call = action.tool_calls[0]
    if call.name != planned.tool:
        return Malformed(reason="other_tool", detail=f"{call.name}, the path has {planned.tool}")
    if problem := schema_problem(call, tools):
        return problem
    for link in planned.links:
        given = {each.value for each in scalars(result_value(results[link.call].content)) if each.path == link.result}
        taken = {each.value for each in argument_values(call.arguments) if each.path == link.argument}
        if not given & taken:
            detail = f"{call.name}.{link.argument} has no value of {link.result or 'the text'} of call {link.call}"
            return Malformed(reason="value_not_passed_on", detail=detail)
    return invented_problem(call, messages, tools, may_write)


def text_problem(action: Message, withheld: str | None) -> Malformed | None:
    """Why an action is not the text that is due now; None if it is.

    Args:
        action: Turn of the assistant.
        withheld: Argument for which the text has to ask; None if all calls of the request are made.
    """
    if action.tool_calls:
        names = ", ".join(call.name for call in action.tool_calls)
        return Malformed(reason="call_instead_of_message", detail=f"called {names}")
    if withheld is not None and not asks_for(action.content, withheld):
        return Malformed(reason="did_not_ask", detail=f"does not ask for {withheld}: {action.content!r}")
    return None


def withheld_problem(call: ToolCall, argument: str, before: Sequence[Message]) -> Malformed | None:
    """Why a value was not withheld: earlier messages have it, or the call lacks it; None if it was withheld."""
    if argument not in call.arguments:
        return Malformed(reason="withheld_value_unused", detail=f"the call has no {argument}")
    values = [each.value for each in scalars(call.arguments[argument])]
    if values and all(is_known(value, before) for value in values):
        return Malformed(reason="not_withheld", detail=f"{argument} was known before the assistant asked")
    return None


def schema_problem(call: ToolCall, tools: Sequence[JsonObject]) -> Malformed | None:
    """Why a call's arguments do not match the schema of its tool, which must be in `tools`; None if they do."""
    if is_too_deep(call.arguments):
        return Malformed(reason="bad_arguments", detail=f"{call.name}: the arguments are nested too deeply")
    schema = schemas_by_name(encode_json(list(tools)))[call.name]
    if problem := schema.problem(call.arguments):
        reason = "unusable_schema" if problem.is_unusable else "bad_arguments"
        return Malformed(reason=reason, detail=f"{call.name}: {problem.detail}")
    if (unnamed := schema.first_unknown(call.arguments)) is not None:
        return Malformed(reason="unnamed_argument", detail=f"{call.name}: {unnamed} is not in its schema")
    return None


def invented_problem(
    call: ToolCall, messages: Sequence[Message], tools: Sequence[JsonObject], may_write: Sequence[str]
) -> Malformed | None:
    """The values of a call that occur in no message and no schema; None if there are none. See `call_problem`."""
    tool = next(tool for tool in tools if name_of(tool) == call.name)
    unsourced = unsourced_values(call, messages, tool, may_write)
    return Malformed(reason="invented_value", detail="; ".join(unsourced)) if unsourced else None
