"""OpenHands' log of actions and observations -> the messages of its conversation with the model."""

from collections.abc import Sequence

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import text_of
from verl_pivot.formats.columns import read_message
from verl_pivot.formats.conversation import MessagesAndTools
from verl_pivot.types import Json, JsonObject, Message, Role

_IGNORED_ACTIONS = {"recall", "change_agent_state", "null", "initialize", "start"}
"""Actions that add nothing to the conversation with the model."""
_IGNORED_OBSERVATIONS = {"agent_state_changed", "null"}
# Knowledge that a recall puts into the prompt; the log does not hold the text that the prompt got.
_RECALLED = ("microagent_knowledge", "repo_instructions", "additional_agent_instructions", "conversation_instructions")


def read_events(history: Sequence[Json]) -> MessagesAndTools:
    """Messages of the conversation: assistant turns from the logged responses of the model, results from observations.

    Raises:
        BadRowError: If the log does not hold the text of an event that the model saw.
    """
    messages: list[Message] = []
    tools: Json = None
    response_ids: set[str] = set()
    for obj in history:
        if isinstance(obj, list):
            raise BadRowError(
                "no_tool_call_metadata",
                "the history is a list of (action, observation) pairs, in which OpenHands did not log calls yet; "
                "use the logged completions of the run instead",
            )
        event = as_object(obj, "an event")
        if event.get("action") == "system":
            arguments = as_object(event.get("args"), "args of an action")
            tools = arguments.get("tools")
            messages.append(Message(role=Role.SYSTEM, content=text_of(arguments.get("content"), may_be_none=False)))
        elif event.get("action") is not None:
            messages += _action(event, response_ids)
        elif event.get("observation") is not None:
            messages += _observation(event)
        else:
            raise BadRowError(
                "unknown_event",
                f"an event needs action or observation; it has {', '.join(event)[:80] or 'no keys'}",
            )
    return MessagesAndTools(messages, tools)


def _action(event: JsonObject, response_ids: set[str]) -> list[Message]:
    """The message that an action adds; none if it belongs to a response that was read with an earlier action."""
    kind, source = event["action"], event.get("source")
    metadata = event.get("tool_call_metadata")
    if metadata is not None:
        response = as_object(as_object(metadata, "tool_call_metadata").get("model_response"), "model_response")
        response_id = response.get("id")
        if not isinstance(response_id, str) or not response_id:
            raise BadRowError("bad_id", f"a model_response needs an id, got {response_id!r}")
        if response_id in response_ids:
            return []
        response_ids.add(response_id)
        return [read_message(message_of(response))]
    if kind == "message" and source in ("user", "agent"):
        arguments = as_object(event.get("args"), "args of an action")
        if arguments.get("image_urls"):
            raise BadRowError("not_text", "a message holds images; only text is read")
        role = Role.USER if source == "user" else Role.ASSISTANT
        return [Message(role=role, content=text_of(arguments.get("content"), may_be_none=False))]
    if isinstance(kind, str) and kind in _IGNORED_ACTIONS:
        return []
    if kind == "condensation":
        raise BadRowError(
            "condensed", "the run condensed its history, so the log does not hold what the model saw; leave it out"
        )
    raise BadRowError(
        "no_tool_call_metadata",
        f"action {kind!r} of {source!r} has no tool_call_metadata, so the log does not hold what the model wrote",
    )


def message_of(response: Json) -> Json:
    """The message in a model's response.

    Raises:
        BadRowError: If the response does not have exactly one choice.
    """
    choices = as_list(as_object(response, "a response").get("choices"), "choices")
    if len(choices) != 1:
        raise BadRowError("unclear_response", f"a response must have one choice, got {len(choices)} choices")
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
            raise BadRowError(
                "recalled_knowledge",
                f"{recalled[0]} was added to the prompt, but the log does not hold its text; use the logged "
                "completions of the run instead",
            )
        return []
    if isinstance(kind, str) and kind in _IGNORED_OBSERVATIONS:
        return []
    raise BadRowError(
        "no_tool_call_metadata",
        f"observation {kind!r} has no tool_call_metadata, so the log does not say which call it answers",
    )
