"""Format `harbor`: trajectories in Harbor's Agent Trajectory Interchange Format (ATIF), such as trajectory.json."""

from collections.abc import Iterator
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import parse_call, text_of
from verl_pivot.formats.columns import conversation, tool_list
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}
_DESCRIPTIONS = ("schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra")


def _is_harbor(row: JsonObject) -> bool:
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-") and isinstance(row.get("steps"), list)


@register_format("harbor", detect=_is_harbor)
def read_harbor(row: JsonObject) -> Conversation:
    """One trajectory; its outcome comes from a column `reward` or `passed`, since Harbor keeps it in another file.

    Raises:
        BadRowError: If a step breaks the format, or its observation has no place in a conversation.
    """
    steps = [as_object(step, "a step") for step in as_list(row.get("steps"), "steps")]
    agent = as_object(row.get("agent") or {}, "agent")
    messages = [message for step in steps for message in _messages(step)]
    found = conversation(row, messages, tools=tool_list(agent.get("tool_definitions")), columns=_DESCRIPTIONS)
    session = row.get("trajectory_id") or row.get("session_id")
    return replace(found, id=found.id or session) if isinstance(session, str) else found


def _messages(step: JsonObject) -> Iterator[Message]:
    """The message of a step, and its observation: results of its calls, or text from the environment."""
    source = step.get("source")
    if not isinstance(source, str) or source not in _ROLES:
        raise BadRowError("unknown_role", f"a step has source {source!r}; known are {', '.join(_ROLES)}")
    role, calls = _ROLES[source], as_list(step.get("tool_calls") or [], "tool_calls")
    results = _results(step)
    if role is not Role.ASSISTANT and (calls or results):
        raise BadRowError("unclear_observation", f"a step of source {source!r} has calls or an observation")
    reasoning = step.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise BadRowError("not_text", "reasoning_content must be text")
    yield Message(
        role=role,
        content=text_of(step.get("message"), may_be_none=bool(calls)),
        reasoning=reasoning or None,
        tool_calls=tuple(_call(as_object(call, "a tool call")) for call in calls),
    )
    if not calls:  # an agent that writes commands as text gets the terminal's output as a user message
        shown = "\n".join(text_of(result.get("content"), may_be_none=True) for result in results)
        yield from [Message(role=Role.USER, content=shown)] if results else []
        return
    for result in results:
        call_id = result.get("source_call_id")
        yield Message(
            role=Role.TOOL,
            content=text_of(result.get("content"), may_be_none=True),
            tool_call_id=call_id if isinstance(call_id, str) else None,
        )


def _results(step: JsonObject) -> list[JsonObject]:
    observation = as_object(step.get("observation") or {}, "observation")
    return [
        as_object(result, "a result") for result in as_list(observation.get("results") or [], "observation.results")
    ]


def _call(call: JsonObject) -> ToolCall:
    identity: Json = call.get("tool_call_id")
    return parse_call(call.get("function_name"), call.get("arguments"), identity if isinstance(identity, str) else None)
