"""Text of one turn -> its tool calls, by one of three parsers: Hermes blocks, pairs of tags, or one of verl's."""

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_pivot.data.actions import read_turn, written_call
from verl_pivot.data.json_values import as_list, as_object
from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.off_loop import SIZE_ON_LOOP, run_off_loop
from verl_pivot.types import Json, JsonObject, Malformed, ToolCall

_FENCE = re.compile(r"\A\s*```[^\n`]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_DSML = "\uff5cDSML\uff5c"
_TOOL_CALL = ("<tool_call>", "</tool_call>")
_VERLS_CALLS: dict[str, tuple[tuple[str, str], ...]] = {
    "deepseek_v4": (
        (f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
        (f"<{_DSML}invoke name=", f"</{_DSML}invoke>"),
    ),
    "gemma4": (("<|tool_call>", "<tool_call|>"),),
    "glm": (_TOOL_CALL,),
    "gpt-oss": ((" to=functions.", "<|call|>"),),
    "hermes": (_TOOL_CALL,),
    "kimi": (("<|tool_call_begin|>", "<|tool_call_end|>"),),
    "minimax": (("<minimax:tool_call>", "</minimax:tool_call>"), ("<invoke name=", "</invoke>")),
    "qwen3_coder": (_TOOL_CALL, ("<function=", "</function>")),
    "seed": (("<seed:tool_call>", "</seed:tool_call>"),),
}
"""{name of one of verl's parsers: pairs of texts at which a call, or a block of calls, begins and ends}"""
_THOUGHTS_END = {"gpt-oss": "<|end|>"}
"""{name of one of verl's parsers: text behind which no thoughts follow}, if it is not </think>"""


class TurnParser(Protocol):
    """Finds the calls in a turn; a call that cannot be read is Malformed."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a turn, besides the end-of-turn token."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn, besides the end-of-turn token."""
        ...

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        """The calls of one turn, in their order.

        Args:
            text: Text of the turn from the beginning of its assistant message, without the end-of-turn token.
            token_ids: Tokens sampled in the turn, the end-of-turn token included.
            tools: Schemas of the tools that the policy may call.
        """
        ...


class HermesParser:
    """Reads ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen and rStar2-Agent write these."""

    stop = ()
    stop_token_ids = ()

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        return (await run_off_loop(len(text), read_turn, text)).calls


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPair:
    """Two tags; the text between them is one argument of one tool.

    Example:
        TagPair(open="<search>", close="</search>", tool="search", argument="query")
    """

    open: str = ""
    close: str = ""
    tool: str
    argument: str
    stop: str | None = None
    """Text that ends the turn, if that is not `close` (ToRL: "```output")."""
    fenced: bool = False
    """Whether the argument may be in a Markdown code fence, which is removed (ReTool)."""
    whole: bool = False
    """Whether the argument is the whole turn through `stop`, which then replaces the tags (verl-tool)."""

    def __post_init__(self) -> None:
        if self.whole and (self.open or self.close or self.fenced or not self.stop):
            raise ValueError("whole needs stop, and no open, close or fenced, since the whole turn is the argument")
        if not self.whole and (not self.open or not self.close):
            raise ValueError(f"open and close must not be empty, got {self.open!r} and {self.close!r}")


class TagParser:
    """Reads the last pair of tags, or the whole turn, as the turn's only call; the turn ends there.

    Search-R1, ReTool, ToRL and ZeroTIR write tags, and verl-tool's servers read turns.
    """

    stop_token_ids = ()

    def __init__(self, pairs: Sequence[TagPair], answer_tag: str | None = None) -> None:
        self._pairs = tuple(pairs)
        answer = () if answer_tag is None else (f"</{answer_tag}>",)
        self.stop = tuple(dict.fromkeys([*(pair.stop or pair.close for pair in pairs), *answer]))

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        return self.read(text)

    def read(self, text: str) -> tuple[ToolCall | Malformed, ...]:
        """The calls of one turn."""
        stop = next((stop for stop in self.stop if text.endswith(stop)), None)
        candidates = [pair for pair in self._pairs if (pair.stop or pair.close) == stop]
        if not candidates:
            return ()
        begin, number = max((text.rfind(pair.open), number) for number, pair in enumerate(candidates))
        chosen = candidates[number]
        if chosen.whole:
            return (ToolCall(name=chosen.tool, arguments={chosen.argument: text}),)
        end = text.find(chosen.close, begin + len(chosen.open))
        if begin < 0 or end < 0:
            return (Malformed(reason="malformed_call", detail=f"{stop} without {chosen.open} before it"),)
        value = text[begin + len(chosen.open) : end]
        if chosen.fenced and (inner := _FENCE.match(value)):
            value = inner[1]
        return (ToolCall(name=chosen.tool, arguments={chosen.argument: value.strip()}),)


class VerlParser:
    """Reads calls by one of verl's parsers, which silently drop calls that they cannot read; here these are Malformed.

    No call is missed where the parser is one of `_VERLS_CALLS`.
    """

    stop = ()

    def __init__(self, name: str, parser: Any, tool_schema_class: Any) -> None:
        """Keep the parser.

        Args:
            name: Its name in verl's registry.
            parser: The parser itself.
            tool_schema_class: verl's OpenAIFunctionToolSchema.
        """
        self._name, self._parser = name, parser
        self._tool_schema_class = tool_schema_class
        self.stop_token_ids = tuple(map(int, parser.stop_token_ids))

    async def calls(
        self, text: str, token_ids: Sequence[int], tools: Sequence[JsonObject]
    ) -> tuple[ToolCall | Malformed, ...]:
        schemas = [self._tool_schema_class.model_validate(_flat_schema(tool)) for tool in tools]
        try:
            if len(text) <= SIZE_ON_LOOP:
                _, found = await self._parser.extract_tool_calls(list(token_ids), schemas)
            else:
                _, found = await run_off_loop(len(text), self._extract_in_a_loop_of_its_own, token_ids, schemas)
        except Exception as error:  # noqa: BLE001  whatever a parser raises, it could not read the policy's text
            return (Malformed(reason="malformed_call", detail=f"{type(error).__name__}: {error}"[:500]),)
        dropped = await run_off_loop(len(text), _dropped_call, self._name, text, len(found))
        return (*(_decoded(call.name, call.arguments) for call in found), *dropped)

    def _extract_in_a_loop_of_its_own(self, token_ids: Sequence[int], schemas: Sequence[Any]) -> Any:
        return asyncio.run(self._parser.extract_tool_calls(list(token_ids), schemas))


def _dropped_call(name: str, text: str, num_found: int) -> tuple[Malformed, ...]:
    """One Malformed if a turn begins more calls behind its thoughts than one of verl's parsers found in all of it."""
    pairs = _VERLS_CALLS.get(name, ())
    told = text.rpartition(_THOUGHTS_END.get(name, "</think>"))[2]
    if max((_num_begun(told, *pair) for pair in pairs), default=0) <= num_found:
        return ()
    opening, closing = pairs[0]
    return (Malformed(reason="malformed_call", detail=f"a call between {opening} and {closing} cannot be read"),)


def _num_begun(text: str, opening: str, closing: str) -> int:
    """Number of pairs of tags, and of opening tags without a partner; those between a pair are part of its text."""
    split = split_at_tags(text, opening, closing)
    return len(split.inside) + sum(part.count(opening) for part in split.outside)


def _flat_schema(tool: JsonObject) -> JsonObject:
    """The schema reduced to what verl's OpenAIFunctionToolSchema holds: type and description of each argument."""
    function = as_object(tool["function"], "a function")
    parameters = as_object(function.get("parameters") or {}, "parameters")
    named = as_object(parameters.get("properties") or {}, "properties")
    flat: JsonObject = {name: _flat_property(value, parameters) for name, value in named.items()}
    required = parameters.get("required") or []
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": {"type": "object", "properties": flat, "required": required},
        },
    }


def _flat_property(value: Json, parameters: JsonObject) -> JsonObject:
    """One argument. Its types are given without null, which verl's parser of Qwen3-Coder reads whatever the type is."""
    schema = value if isinstance(value, dict) else {}
    types: list[Json] = [name for name in _types(schema, parameters) if name != "null"]
    kind: Json = types if len(types) > 1 else next(iter(types), "string")
    return {"type": kind, "description": schema.get("description")}


def _types(schema: Json, parameters: JsonObject, passed: frozenset[str] = frozenset()) -> list[str]:
    """Types that a schema allows, also by its alternatives and by references; empty if it names none.

    Args:
        schema: Schema of an argument, or a part of it.
        parameters: Schema of all arguments, within which references are resolved.
        passed: References that led here, which are not followed again.
    """
    if not isinstance(schema, dict):
        return []
    if "type" in schema:
        named = schema["type"]
        return [str(name) for name in (named if isinstance(named, list) else [named])]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in passed:
        return _types(_referenced(reference, parameters), parameters, passed | {reference})
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in as_list(schema.get(key) or [], key)]
    return list(dict.fromkeys(name for part in parts for name in _types(part, parameters, passed)))


def _referenced(reference: str, parameters: JsonObject) -> Json:
    """The part of the schema of all arguments that a reference such as "#/$defs/Size" names; None if there is none."""
    part: Json = parameters
    for key in reference.removeprefix("#").split("/")[1:]:
        part = part.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
    return part


def _decoded(name: str, arguments: str) -> ToolCall | Malformed:
    try:
        decoded: Json = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return Malformed(reason="malformed_call", detail=f"the arguments of {name} are not valid JSON: {error}")
    if not isinstance(decoded, dict):
        return Malformed(reason="malformed_call", detail=f"the arguments of {name} are not a JSON object")
    return written_call(name, decoded)


def num_tag_pairs(tag: str, turns: Iterable[str]) -> int:
    """Number of `<tag>...</tag>` pairs in the policy's turns; 0 if any of these tags is unmatched."""
    num_open, num_close, num_pairs = 0, 0, 0
    for turn in turns:
        num_open += turn.count(f"<{tag}>")
        num_close += turn.count(f"</{tag}>")
        num_pairs += len(split_at_tags(turn, f"<{tag}>", f"</{tag}>").inside)
    return num_pairs if num_open == num_close == num_pairs else 0
