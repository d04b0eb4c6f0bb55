"""Format `hermes`: calls as `<tool_call>` in the text, answers as `<tool_response>`, schemas as `<tools>`."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.data.messages import parse_call
from verl_pivot.formats.columns import (
    after_thinking,
    conversation,
    message_list,
    messages_column,
    read_message,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.function_text import Types, read_calls, types_of
from verl_pivot.formats.literals import value_of
from verl_pivot.formats.registry import register_format
from verl_pivot.formats.sharegpt import read_conversations
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_GAP = re.compile(r"\s*")
# What the chat templates of Qwen write around the schemas, and will write again.
_TEMPLATES = (
    re.compile(
        r"# Tools\n+You may call one or more functions to assist with the user query\.\n+"
        r"You are provided with function signatures within <tools></tools> XML tags:\n<tools>(?P<tools>.*?)</tools>\n+"
        r"For each function call, return a json object with function name and arguments within "
        r"<tool_call></tool_call> XML tags:\n<tool_call>\n"
        r'\{"name": <function-name>, "arguments": <args-json-object>\}\n</tool_call>\n?',
        re.DOTALL,
    ),
    re.compile(
        r"# Tools\n+You have access to the following (?:functions|tools):\n+<tools>(?P<tools>.*?)</tools>\n+"
        r"If you choose to call a function ONLY reply in the following format with NO suffix:.*?</IMPORTANT>\n?",
        re.DOTALL,
    ),
)


def _looks_like_hermes(row: JsonObject) -> bool:
    key = "conversations" if row.get("conversations") is not None else messages_column(row)
    if key is None:
        return False
    column = row[key]
    if isinstance(column, str):
        if "<tool_call>" not in column and "<tools>" not in column:
            return False
        try:
            column = decode_json(column)
        except BadRowError:
            return False
    items = [item for item in column if isinstance(item, dict)] if isinstance(column, list) else []
    if any(item.get("tool_calls") or item.get("function_call") for item in items):
        return False
    return any(map(_has_tags, items))


def _has_tags(item: JsonObject) -> bool:
    role, text = (item["from"], item.get("value")) if "from" in item else (item.get("role"), item.get("content"))
    if not isinstance(text, str):
        return False
    if role == "system":
        return bool(_listed(text))
    return role in ("assistant", "gpt") and "<tool_call>" in text


@register_format("hermes", detect=_looks_like_hermes)
def read_hermes(row: JsonObject) -> Conversation:
    """One conversation under `conversations`, `messages`, `traj` or `trajectory`.

    The prompt's schemas go before those of a column: they are what the expert saw.

    Raises:
        BadRowError: If a call, a response or the list of schemas cannot be read exactly.
    """
    if row.get("conversations") is not None:
        key, messages = "conversations", read_conversations(row)
    else:
        key = messages_column(row) or "messages"
        messages = [read_message(item) for item in message_list(row, key)]
    tools = tool_list(row.get("tools"))
    if messages and messages[0].role is Role.SYSTEM:
        prompt = cut_tools(messages[0].content)
        messages = [*([replace(messages[0], content=prompt.text)] if prompt.text else []), *messages[1:]]
        tools = tools if prompt.tools is None else prompt.tools
    return conversation(row, _turns(messages, tools), tools=tools, columns=(key, "system", "tools"))


class Prompt(NamedTuple):
    text: str
    tools: list[Json] | None
    """Schemas that the prompt lists; None where it lists none."""


def cut_tools(text: str) -> Prompt:
    """A system prompt without its schemas, which the chat template will write.

    Raises:
        BadRowError: If there are several lists, or one cannot be read.
    """
    for template in _TEMPLATES:
        if found := template.search(text):
            before = text[: found.start()].removesuffix("\n\n")
            return Prompt(before + text[found.end() :], _schemas(found["tools"].strip()))
    lists = _listed(text)
    if len(lists) > 1:
        raise BadRowError("unclear_tools", f"{len(lists)} lists in <tools> in the system prompt")
    return (
        Prompt(text[: lists[0].start] + text[lists[0].end :], _schemas(lists[0].text)) if lists else Prompt(text, None)
    )


class _List(NamedTuple):
    start: int
    end: int
    text: str


def _listed(text: str) -> list[_List]:
    """What stands in <tools>, where it may be schemas; prompts name the tags in their words, too."""
    lists: list[_List] = []
    position = 0
    while (end := text.find("</tools>", position)) >= 0:
        start = text.rfind("<tools>", position, end)
        inner = text[start + len("<tools>") : end].strip() if start >= 0 else ""
        position = end + len("</tools>")
        if inner.startswith(("[", "{")):
            lists.append(_List(start, position, inner))
    return lists


def _schemas(text: str) -> list[Json]:
    """A list, or one schema after the other."""
    if text.startswith("["):
        return as_list(value_of(text, reason="unclear_tools", what="<tools>"), "<tools>")
    schemas: list[Json] = []
    decoder, position = json.JSONDecoder(), 0
    try:
        while position < len(text):
            end = decoder.raw_decode(text, position)[1]
            schemas.append(decode_json(text[position:end], reason="unclear_tools", what="<tools>"))
            position = _after_gap(text, end)
    except (ValueError, RecursionError) as error:
        raise BadRowError("unclear_tools", f"<tools>: not JSON: {error}") from error
    return schemas


def _turns(messages: Sequence[Message], tools: Json) -> Iterable[Message]:
    # Qwen's coders write <function=...> into the tags, whose values have the types that the schemas say.
    types = types_of(tools) if any("<function=" in message.content for message in messages) else {}
    for message in messages:
        match message.role:
            case Role.ASSISTANT if not message.tool_calls:
                yield _with_calls(message, types)
            case Role.TOOL | Role.USER if (responses := _tagged(message.content, "tool_response", 0)).texts:
                yield from _responses(message, responses)
            case _:
                yield message


def _with_calls(message: Message, types: Types) -> Message:
    text = message.content
    start = text.find("<tool_call>", after_thinking(text))
    if start < 0:
        return message
    blocks = _tagged(text, "tool_call", start)
    calls = [call for block in blocks.texts for call in _calls(block.strip(), types)]
    if blocks.end < len(text):
        rest = text[blocks.end : blocks.end + 60]
        raise BadRowError("bad_tool_call", f"after or within <tool_call> stands {rest!r}")
    return replace(message, content=text[:start].rstrip(), tool_calls=tuple(calls))


class _Tagged(NamedTuple):
    texts: list[str]
    end: int
    """Where the last one ends, with the white space after it."""


def _tagged(text: str, tag: str, position: int) -> _Tagged:
    """What stands in the pairs of tags that follow each other from there."""
    begin, end = f"<{tag}>", f"</{tag}>"
    texts: list[str] = []
    while True:
        start = _after_gap(text, position)
        closing = text.find(end, start) if text.startswith(begin, start) else -1
        if closing < 0:
            return _Tagged(texts, position)
        texts.append(text[start + len(begin) : closing])
        position = _after_gap(text, closing + len(end))


def _after_gap(text: str, position: int) -> int:
    gap = _GAP.match(text, position)
    assert gap is not None, position
    return gap.end()


def _calls(text: str, types: Types) -> Sequence[ToolCall]:
    if text.startswith("<function="):
        return read_calls(Message(role=Role.ASSISTANT, content=text), types).tool_calls
    call = as_object(value_of(text, reason="bad_tool_call", what="<tool_call>"), "<tool_call>")
    return [parse_call(call.get("name"), call.get("arguments"), None)]


def _responses(message: Message, responses: _Tagged) -> Iterable[Message]:
    """One message of a tool for each response; a line break at either end belongs to the tags."""
    for text in responses.texts:
        content = text.removeprefix("\n").removesuffix("\n")
        yield Message(role=Role.TOOL, content=content, tool_call_id=message.tool_call_id, name=message.name)
    if responses.end < len(message.content):
        rest = message.content[responses.end : responses.end + 60]
        raise BadRowError("unclear_response", f"beside <tool_response> stands {rest!r}")
