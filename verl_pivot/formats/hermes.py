"""Format `hermes`: calls as `<tool_call>` in the text, results as `<tool_response>`, schemas as `<tools>`."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.data.messages import parse_call, text_if_any
from verl_pivot.formats.columns import (
    conversation,
    end_of_thinking,
    message_list,
    messages_column,
    read_message,
    tool_list,
    with_first_content,
)
from verl_pivot.formats.conversation import Conversation, PromptAndTools
from verl_pivot.formats.function_text import ParameterTypes, parameter_types, read_calls
from verl_pivot.formats.literals import parse_literal
from verl_pivot.formats.registry import register_format
from verl_pivot.formats.sharegpt import read_conversations
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_GAP = re.compile(r"\s*")


class _Template(NamedTuple):
    before: re.Pattern[str]
    """Text through `<tools>`."""
    after: re.Pattern[str]
    """Text from `</tools>` on."""


# Text that Qwen's chat templates write around the schemas; they write it again when the conversation is rendered.
_TEMPLATES = (
    _Template(
        re.compile(
            r"# Tools\n+You may call one or more functions to assist with the user query\.\n+"
            r"You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
        ),
        re.compile(
            r"</tools>\n+For each function call, return a json object with function name and arguments within "
            r"<tool_call></tool_call> XML tags:\n<tool_call>\n"
            r'\{"name": <function-name>, "arguments": <args-json-object>\}\n</tool_call>\n?'
        ),
    ),
    _Template(
        re.compile(r"# Tools\n+You have access to the following (?:functions|tools):\n+<tools>"),
        re.compile(
            r"</tools>\n+If you choose to call a function ONLY reply in the following format with NO suffix:.*?"
            r"</IMPORTANT>\n?",
            re.DOTALL,
        ),
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
    role, content = (item["from"], item.get("value")) if "from" in item else (item.get("role"), item.get("content"))
    text = text_if_any(content)
    if role == "system":
        return bool(_tool_lists(text))
    return role in ("assistant", "gpt") and "<tool_call>" in text


@register_format("hermes", detect=_looks_like_hermes)
def read_hermes(row: JsonObject) -> Conversation:
    """One conversation in the column `conversations`, `messages`, `traj` or `trajectory`.

    Schemas in the prompt take precedence over those of a column, since the expert saw the prompt.

    Raises:
        BadRowError: If a call, a result or the list of schemas cannot be read exactly.
    """
    if row.get("conversations") is not None:
        key, messages = "conversations", read_conversations(row)
    else:
        key = messages_column(row) or "messages"
        messages = [read_message(item) for item in message_list(row, key)]
    tools = tool_list(row.get("tools"))
    if messages and messages[0].role is Role.SYSTEM:
        prompt = cut_tools(messages[0].content)
        messages = with_first_content(messages, prompt.text)
        tools = tools if prompt.tools is None else prompt.tools
    read = _with_calls_and_results(messages, tools)
    return conversation(row, read, tools=tools, columns=(key, "system", "tools"))


def cut_tools(text: str) -> PromptAndTools:
    """A system prompt without its schemas, which the chat template writes again when it renders the conversation.

    Raises:
        BadRowError: If the prompt holds several lists of schemas, or one that cannot be read.
    """
    for template in _TEMPLATES:
        before = template.before.search(text)
        end = -1 if before is None else text.find("</tools>", before.end())
        if before is not None and end >= 0 and (after := template.after.match(text, end)):
            rest = text[: before.start()].removesuffix("\n\n") + text[after.end() :]
            return PromptAndTools(rest, _schemas(text[before.end() : end].strip()))
    lists = _tool_lists(text)
    if len(lists) > 1:
        raise BadRowError(
            "unclear_tools", f"the system prompt has {len(lists)} lists of schemas in <tools>; keep one of them"
        )
    if not lists:
        return PromptAndTools(text, None)
    return PromptAndTools(text[: lists[0].start] + text[lists[0].end :], _schemas(lists[0].text))


class _ToolList(NamedTuple):
    start: int
    """Position of `<tools>`."""
    end: int
    """Position behind `</tools>`."""
    text: str
    """Text between the tags."""


def _tool_lists(text: str) -> list[_ToolList]:
    """Pairs of <tools> tags that hold JSON; pairs with other text are left out, since prompts also explain the tags."""
    lists: list[_ToolList] = []
    position = 0
    while (end := text.find("</tools>", position)) >= 0:
        start = text.rfind("<tools>", position, end)
        inner = text[start + len("<tools>") : end].strip() if start >= 0 else ""
        position = end + len("</tools>")
        if inner.startswith(("[", "{")):
            lists.append(_ToolList(start, position, inner))
    return lists


def _schemas(text: str) -> list[Json]:
    """Schemas in a text that holds a JSON list, or one JSON object after another."""
    if text.startswith("["):
        return as_list(parse_literal(text, reason="unclear_tools", what="<tools>"), "<tools>")
    schemas: list[Json] = []
    decoder, position = json.JSONDecoder(), 0
    try:
        while position < len(text):
            end = decoder.raw_decode(text, position)[1]
            schemas.append(decode_json(text[position:end], reason="unclear_tools", what="<tools>"))
            position = _after_gap(text, end)
    except (ValueError, RecursionError) as error:
        raise BadRowError("unclear_tools", f"<tools> in the system prompt: not JSON: {error}") from error
    return schemas


def _with_calls_and_results(messages: Sequence[Message], tools: Json) -> Iterable[Message]:
    # Qwen's coder models write <function=...> into the tags; the schemas give the types of its values.
    types = parameter_types(tools) if any("<function=" in message.content for message in messages) else {}
    for message in messages:
        match message.role:
            case Role.ASSISTANT if not message.tool_calls:
                yield _with_calls(message, types)
            case Role.TOOL | Role.USER if (responses := _tagged(message.content, "tool_response", 0)).texts:
                yield from _results(message, responses)
            case _:
                yield message


def _with_calls(message: Message, types: ParameterTypes) -> Message:
    text = message.content
    start = text.find("<tool_call>", end_of_thinking(text))
    if start < 0:
        return message
    blocks = _tagged(text, "tool_call", start)
    calls = [call for block in blocks.texts for call in _calls(block.strip(), types)]
    if blocks.end < len(text):
        rest = text[blocks.end : blocks.end + 60]
        raise BadRowError("bad_tool_call", f"text follows the calls, or a <tool_call> is never closed: {rest!r}")
    return replace(message, content=text[:start].rstrip(), tool_calls=tuple(calls))


class _Tagged(NamedTuple):
    texts: list[str]
    """[num_pairs] text between the tags of each pair."""
    end: int
    """Position behind the last pair and the white space after it."""


def _tagged(text: str, tag: str, position: int) -> _Tagged:
    """Texts in the pairs of tags that follow each other from a position on."""
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


def _calls(text: str, types: ParameterTypes) -> Sequence[ToolCall]:
    if text.startswith("<function="):
        return read_calls(Message(role=Role.ASSISTANT, content=text), types).tool_calls
    call = as_object(parse_literal(text, reason="bad_tool_call", what="<tool_call>"), "<tool_call>")
    return [parse_call(call.get("name"), call.get("arguments"), None)]


def _results(message: Message, responses: _Tagged) -> Iterable[Message]:
    """One tool message for each response; a line break at either end belongs to the tags."""
    for text in responses.texts:
        content = text.removeprefix("\n").removesuffix("\n")
        yield Message(role=Role.TOOL, content=content, tool_call_id=message.tool_call_id, name=message.name)
    if responses.end < len(message.content):
        rest = message.content[responses.end : responses.end + 60]
        raise BadRowError("unclear_response", f"there is text outside of <tool_response>...</tool_response>: {rest!r}")
