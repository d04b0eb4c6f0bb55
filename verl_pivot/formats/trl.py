"""Format `trl`: a prompt and the completion that an expert gave it, as TRL's trainers read them."""

import re
from collections.abc import Iterable

from verl_pivot.data.json_values import as_list
from verl_pivot.formats.columns import conversation, decoded, outcome, read_message, tool_list
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message, Role

COLUMNS = ("prompt", "completion")
_MESSAGES_AS_JSON = re.compile(r'\s*\[\s*\{\s*"(?:content|reasoning|reasoning_content|role|tool_calls)"\s*:')
"""Beginning of a JSON list of messages, with any white space; a list of other objects is an answer in JSON."""


def has_pair(row: JsonObject) -> bool:
    """Whether a row has a prompt and a completion, each a text or a list of messages."""
    return all(isinstance(row.get(column), str | list) for column in COLUMNS)


@register_format("trl", detect=has_pair)
def read_trl(row: JsonObject) -> Conversation:
    """One prompt and its completion, as messages or as texts; `label` of unpaired preferences is the outcome.

    Raises:
        BadRowError: If a message breaks the format.
    """
    prompt = messages_of(row.get("prompt"), "prompt", Role.USER)
    completion = messages_of(row.get("completion"), "completion", Role.ASSISTANT)
    with_kinds = {**row, "expert_turns": expert_turns(prompt, completion)}
    if row.get("passed") is None and (label := outcome(row, ("label",))) is not None:
        with_kinds["passed"] = label
    columns = (*COLUMNS, "tools", "label")
    return conversation(with_kinds, (*prompt, *completion), tools=tool_list(row.get("tools")), columns=columns)


def messages_of(value: Json, what: str, role: Role) -> list[Message]:
    """Messages in a column: a list of them, its JSON string, or a text, which is one message of that role.

    Raises:
        BadRowError: If the column holds something else.
    """
    if isinstance(value, str) and not _MESSAGES_AS_JSON.match(value):
        return [Message(role=role, content=value)]
    return [read_message(item) for item in as_list(decoded(value, what), what)]


def expert_turns(prompt: Iterable[Message], completion: Iterable[Message]) -> Json:
    """Assistant turns that are the expert's: only those of the completion."""
    num_earlier = sum(message.role is Role.ASSISTANT for message in prompt)
    num_own = sum(message.role is Role.ASSISTANT for message in completion)
    if not num_earlier:
        return "all"
    return "last" if num_own == 1 else list(range(num_earlier, num_earlier + num_own))
