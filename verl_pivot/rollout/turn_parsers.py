"""One turn of the policy -> its calls: Hermes and rStar2 blocks, tag pairs, and verl's own parsers."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_pivot.data.actions import read_turn
from verl_pivot.data.json_values import as_object
from verl_pivot.types import Json, JsonObject, Malformed, ToolCall

_FENCE = re.compile(r"\A\s*```[^\n`]*\n(.*?)\n?```\s*\Z", re.DOTALL)


class TurnParser(Protocol):
    """Finds the calls of a turn; what is meant as one and cannot be read is Malformed."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts after which a turn is over, beside the end-of-turn token."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens, likewise."""
        ...

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        """In their order.

        Args:
            text: The turn without its end-of-turn token, from the beginning of its assistant message.
            token_ids: What was sampled of it, the end-of-turn token included.
            tools: Schemas of those that the trajectory may call.
        """
        ...


class HermesParser:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, as Hermes, Qwen and rStar2-Agent write them."""

    stop = ()
    stop_token_ids = ()

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        return read_turn(text).calls


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPair:
    """Between two tags stands one argument of a tool.

    Example:
        TagPair(open="<search>", close="</search>", tool="search", argument="query")
    """

    open: str
    close: str
    tool: str
    argument: str
    stop: str | None = None
    """Ends the turn where that is not `close` (ToRL: "```output")."""
    fenced: bool = False
    """The argument may stand in a Markdown fence (ReTool)."""

    def __post_init__(self) -> None:
        if not self.open or not self.close:
            raise ValueError("open and close must not be empty")


class TagParser:
    """The last block of a turn is its call (Search-R1, ReTool, ToRL): the turn stops there."""

    stop_token_ids = ()

    def __init__(self, pairs: Sequence[TagPair], answer_tag: str | None = None) -> None:
        self._pairs = tuple(pairs)
        answer = () if answer_tag is None else (f"</{answer_tag}>",)
        self.stop = tuple(dict.fromkeys([*(pair.stop or pair.close for pair in pairs), *answer]))

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        stop = next((stop for stop in self.stop if text.endswith(stop)), None)
        candidates = [pair for pair in self._pairs if (pair.stop or pair.close) == stop]
        if not candidates:
            return ()
        begin, pair = max((text.rfind(pair.open), number) for number, pair in enumerate(candidates))
        chosen = candidates[pair]
        end = text.find(chosen.close, begin + len(chosen.open))
        if begin < 0 or end < 0:
            return (Malformed(reason="malformed_call", detail=f"{stop} without {chosen.open} before it"),)
        value = text[begin + len(chosen.open) : end]
        if chosen.fenced and (inner := _FENCE.match(value)):
            value = inner[1]
        return (ToolCall(name=chosen.tool, arguments={chosen.argument: value.strip()}),)


class VerlParser:
    """One of verl's, by the name it has there. They drop what they cannot read without a word."""

    stop = ()

    def __init__(self, parser: Any, tool_schema_class: Any) -> None:
        self._parser = parser
        self._tool_schema_class = tool_schema_class
        self.stop_token_ids = tuple(map(int, parser.stop_token_ids))

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        schemas = [self._tool_schema_class.model_validate(_flat_schema(tool)) for tool in tools]
        try:
            _, found = await self._parser.extract_tool_calls(list(token_ids), schemas)
        except Exception as error:  # noqa: BLE001  whatever a parser raises, it could not read the policy's text
            return (Malformed(reason="malformed_call", detail=f"{type(error).__name__}: {error}"[:500]),)
        return tuple(_decoded(call.name, call.arguments) for call in found)


def _flat_schema(tool: JsonObject) -> JsonObject:
    """What verl's model of a schema holds: of each argument the type and the description."""
    function = as_object(tool["function"], "a function")
    parameters = as_object(function.get("parameters") or {}, "parameters")
    named = as_object(parameters.get("properties") or {}, "properties")
    flat: JsonObject = {name: _flat_property(value) for name, value in named.items()}
    required = parameters.get("required") or []
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": {"type": "object", "properties": flat, "required": required},
        },
    }


def _flat_property(value: Json) -> JsonObject:
    schema = value if isinstance(value, dict) else {}
    return {"type": schema.get("type", "string"), "description": schema.get("description")}


def _decoded(name: str, arguments: str) -> ToolCall | Malformed:
    try:
        decoded: Json = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return Malformed(reason="malformed_call", detail=f"the arguments of {name} are no JSON: {error}")
    if not isinstance(decoded, dict):
        return Malformed(reason="malformed_call", detail=f"the arguments of {name} are no JSON object")
    return ToolCall(name=name, arguments=decoded)


def num_tag_pairs(tag: str, turns: Iterable[str]) -> int:
    """Number of `<tag>...</tag>` pairs in the policy's turns; 0 if any of these tags has no partner."""
    num_open, num_close, num_pairs = 0, 0, 0
    pair = re.compile(f"<{re.escape(tag)}>.*?</{re.escape(tag)}>", re.DOTALL)
    for turn in turns:
        num_open += turn.count(f"<{tag}>")
        num_close += turn.count(f"</{tag}>")
        num_pairs += len(pair.findall(turn))
    return num_pairs if num_open == num_close == num_pairs else 0
