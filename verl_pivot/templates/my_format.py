"""Format `my_format`: rows with a list of `steps`, each by the user, the agent or a tool."""

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall


@register_format("my_format", detect=lambda row: "steps" in row)
def read_my_format(row: JsonObject) -> Conversation:
    """One conversation; a row that breaks the format is refused with a reason, and nothing is guessed.

    Raises:
        BadRowError: If a step is by an unknown speaker, or a call has no name or arguments.
    """
    solved = row.get("solved")
    return Conversation(
        messages=tuple(_message(as_object(step, "a step")) for step in as_list(row["steps"], "steps")),
        tools=row.get("tools"),
        id=str(row["run"]),
        passed=solved if isinstance(solved, bool) else None,
        columns=frozenset({"run", "steps", "tools", "solved"}),
    )


def _message(step: JsonObject) -> Message:
    text = str(step.get("text") or "")
    match step.get("by"):
        case "user":
            return Message(role=Role.USER, content=text)
        case "agent":
            calls = tuple(_call(call) for call in as_list(step.get("calls"), "calls"))
            return Message(role=Role.ASSISTANT, content=text, tool_calls=calls)
        case "tool":
            return Message(role=Role.TOOL, content=text, name=str(step.get("tool")))
    raise BadRowError("unknown_role", f"a step by {step.get('by')!r}; known: user, agent, tool")


def _call(call: Json) -> ToolCall:
    match call:
        case {"tool": str(name), "arguments": dict(arguments)}:
            return ToolCall(name=name, arguments=arguments)
    raise BadRowError("bad_tool_call", "a call needs tool (text) and arguments (object)")
