"""Format `verifiers`: rollouts that Prime Intellect's verifiers saved, as in the results.jsonl of an evaluation."""

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.formats.columns import conversation, decoded, tool_list
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.formats.trl import COLUMNS, expert_turns, has_pair, messages_of
from verl_pivot.types import Json, JsonObject, Role

_OWN_COLUMNS = ("example_id", "tool_defs", "is_completed", "is_truncated", "error", "answer", "info")


@register_format("verifiers", detect=lambda row: has_pair(row) and "example_id" in row)
def read_verifiers(row: JsonObject) -> Conversation:
    """One rollout; it passed if its reward is at least 1, it was not cut off and no error ended it.

    `answer` and `info` of the task go into the metadata, for verifiers that need them.

    Raises:
        BadRowError: If a message breaks the format.
    """
    prompt = messages_of(_with_plain_calls(row.get("prompt"), "prompt"), "prompt", Role.USER)
    completion = messages_of(_with_plain_calls(row.get("completion"), "completion"), "completion", Role.ASSISTANT)
    is_broken = row.get("error") is not None or row.get("is_truncated") is True
    task = {key: row[key] for key in ("answer", "info") if row.get(key) not in (None, "", {})}
    known: JsonObject = {
        **row,
        "task_id": row.get("task_id") or row.get("example_id"),
        "expert_turns": expert_turns(prompt, completion),
        "metadata": {**task, **as_object(decoded(row.get("metadata"), "metadata") or {}, "metadata")},
        **({"passed": False} if is_broken else {}),
    }
    columns = (*COLUMNS, *_OWN_COLUMNS)
    return conversation(known, (*prompt, *completion), tools=tool_list(row.get("tool_defs")), columns=columns)


def _with_plain_calls(value: Json, what: str) -> Json:
    """The messages with calls in OpenAI's form: verifiers save each as a JSON string, with its name beside its id."""
    if isinstance(value, str) or value is None:
        return value
    messages = (as_object(item, "a message") for item in as_list(value, what))
    return [
        {**message, "tool_calls": [_plain_call(call) for call in as_list(message["tool_calls"], "tool_calls")]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _plain_call(value: Json) -> JsonObject:
    call = as_object(decode_json(value, what="a tool call") if isinstance(value, str) else value, "a tool call")
    if "function" in call:
        return call
    if "name" not in call:
        raise BadRowError("bad_tool_call", f"a tool call needs a name, got {', '.join(call) or 'no keys'}")
    function: JsonObject = {"name": call["name"], "arguments": call.get("arguments")}
    return {"id": call.get("id"), "type": "function", "function": function}
