"""OpenHands' log of actions and observations -> the messages of its conversation with the model."""

from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import text_of
from verl_pivot.formats.columns import read_message
from verl_pivot.types import Json, JsonObject, Message, Role

_SILENT_ACTIONS = {"recall", "change_agent_state", "null", "initialize", "start"}
_SILENT_OBSERVATIONS = {"agent_state_changed", "null"}
# What a recall puts into the prompt, in words that the log has not.
_RECALLED = ("microagent_knowledge", "repo_instructions", "additional_agent_instructions", "conversation_instructions")


class Events(NamedTuple):
    messages: list[Message]
    tools: Json


def read_events(history: Sequence[Json]) -> Events:
    """Assistant turns come whole from the model's responses, and results with what the tools said.

    Raises:
        BadRowError: If an event that the model saw is not in the log as it saw it.
    """
    messages: list[Message] = []
    tools: Json = None
    responses: set[str] = set()
    for obj in history:
        if isinstance(obj, list):
            raise BadRowError("no_tool_call_metadata", "pairs of action and observation, from before calls were logged")
        event = as_object(obj, "an event")
        if event.get("action") == "system":
            arguments = as_object(event.get("args"), "args of an action")
            tools = arguments.get("tools")
            messages.append(Message(role=Role.SYSTEM, content=text_of(arguments.get("content"), may_be_none=False)))
        elif event.get("action") is not None:
            messages += _action(event, responses)
        elif event.get("observation") is not None:
            messages += _observation(event)
        else:
            raise BadRowError("unknown_event", f"an event with {', '.join(event)[:80] or 'no keys'}")
    return Events(messages, tools)


def _action(event: JsonObject, responses: set[str]) -> list[Message]:
    """One message for each response; the calls of one are several actions."""
    kind, said_by = event["action"], event.get("source")
    metadata = event.get("tool_call_metadata")
    if metadata is not None:
        response = as_object(as_object(metadata, "tool_call_metadata").get("model_response"), "model_response")
        name = response.get("id")
        if not isinstance(name, str) or not name:
            raise BadRowError("bad_id", "a model's response without an id")
        if name in responses:
            return []
        responses.add(name)
        return [read_message(message_of(response))]
    if kind == "message" and said_by in ("user", "agent"):
        arguments = as_object(event.get("args"), "args of an action")
        if arguments.get("image_urls"):
            raise BadRowError("not_text", "a message with images; only text is read")
        role = Role.USER if said_by == "user" else Role.ASSISTANT
        return [Message(role=role, content=text_of(arguments.get("content"), may_be_none=False))]
    if isinstance(kind, str) and kind in _SILENT_ACTIONS:
        return []
    if kind == "condensation":
        raise BadRowError("condensed", "the log was condensed on the way: what the model saw is not in it")
    raise BadRowError("no_tool_call_metadata", f"action {kind!r} of {said_by!r} has no tool_call_metadata")


def message_of(response: Json) -> Json:
    """The message of a model's response.

    Raises:
        BadRowError: If it has not exactly one.
    """
    choices = as_list(as_object(response, "a response").get("choices"), "choices")
    if len(choices) != 1:
        raise BadRowError("unclear_response", f"a response with {len(choices)} choices")
    return as_object(choices[0], "a choice").get("message")


def _observation(event: JsonObject) -> list[Message]:
    kind, metadata = event["observation"], event.get("tool_call_metadata")
    if metadata is not None:
        call = as_object(metadata, "tool_call_metadata")
        call_id, name = call.get("tool_call_id"), call.get("function_name")
        content = text_of(event.get("content"), may_be_none=True)
        return [read_message({"role": "tool", "content": content, "tool_call_id": call_id, "name": name})]
    if kind == "recall":
        extras = event.get("extras")
        recalled = [key for key in _RECALLED if isinstance(extras, dict) and extras.get(key)]
        if recalled:
            raise BadRowError("recalled_knowledge", f"{recalled[0]} went into the prompt, in words that are not logged")
        return []
    if isinstance(kind, str) and kind in _SILENT_OBSERVATIONS:
        return []
    raise BadRowError("no_tool_call_metadata", f"observation {kind!r} has no tool_call_metadata")
