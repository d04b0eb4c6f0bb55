"""rollout.turn_parsers: verl's parsers, which read long turns outside the event loop, and the parser of tags."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from tests.support.loop_steps import MeasuredSteps
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.tool_schemas import schemas_by_name
from verl_pivot.off_loop import SIZE_ON_LOOP
from verl_pivot.rollout.turn_parsers import TagPair, TagParser, VerlParser
from verl_pivot.tools.signatures import read_signature
from verl_pivot.types import Malformed, ToolCall

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
MAX_STEP_SECONDS = 0.05
OPENINGS = ["<tool_call>", "</tool_call><tool_call>", "<|tool_call_begin|><|tool_call_argument_begin|>"]


class TextTokenizer:
    """Tokenizer whose tokens are characters."""

    pad_token = "<pad>"

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        return 1


def verls(name: str) -> VerlParser:
    tokenizer: Any = TextTokenizer()
    return VerlParser(name, ToolParser.get_tool_parser(name, tokenizer), OpenAIFunctionToolSchema)


async def read(parser: VerlParser, text: str) -> tuple[ToolCall | Malformed, ...]:
    return await parser.calls(text, [*map(ord, text)], ())


@pytest.mark.parametrize("num_chars", [0, SIZE_ON_LOOP])
async def test_a_turn_of_any_length_gives_its_calls(num_chars: int) -> None:
    found = await read(verls("hermes"), "x" * num_chars + CALL)

    assert found == (ToolCall(name="add", arguments={"a": 1}),)


@pytest.mark.parametrize("name", ["", "add\\ud83d"])
async def test_a_call_with_a_name_that_no_file_holds_is_malformed(name: str) -> None:
    (found,) = await read(verls("hermes"), CALL.replace("add", name))

    assert isinstance(found, Malformed)
    assert found.reason == "malformed_call"


DSML = "\uff5cDSML\uff5c"
GIVEN = {
    "deepseek_v4": f'<{DSML}tool_calls><{DSML}invoke name="add"></{DSML}invoke></{DSML}tool_calls>',
    "gemma4": "<|tool_call>call:add{}<tool_call|>",
    "glm": "<tool_call>add</tool_call>",
    "gpt-oss": "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}<|call|>",
    "hermes": '<tool_call>{"name": "add", "arguments": {}}</tool_call>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>add<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "minimax": '<minimax:tool_call><invoke name="add"></invoke></minimax:tool_call>',
    "qwen3_coder": "<tool_call><function=add></function></tool_call>",
    "seed": "<seed:tool_call><function=add></function></seed:tool_call>",
}
"""{name of one of verl's parsers: a call as its models write it}"""
DROPPED = {
    "deepseek_v4": f'<{DSML}tool_calls><{DSML}invoke name="add"></{DSML}tool_calls>',
    "gemma4": "<|tool_call>add<tool_call|>",
    "glm": "<tool_call>add",
    "gpt-oss": "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
    "hermes": "<tool_call>{broken}</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>add<|tool_call_end|>",
    "minimax": '<minimax:tool_call><invoke name="add"></minimax:tool_call>',
    "qwen3_coder": "<tool_call>add</tool_call>",
    "seed": "<seed:tool_call>add</seed:tool_call>",
}
"""{name of one of verl's parsers: a text that it drops without a word}"""


def test_the_marks_of_every_parser_of_verl_are_known() -> None:
    assert sorted(GIVEN) == sorted(DROPPED) == sorted(ToolParser._registry)


@pytest.mark.parametrize("name", GIVEN)
async def test_a_call_that_verls_parser_drops_is_malformed(name: str) -> None:
    add = ToolCall(name="add", arguments={})

    alone = await read(verls(name), f"I add. {DROPPED[name]}")
    behind = await read(verls(name), f"{GIVEN[name]}\n{DROPPED[name]}")

    assert [each.reason for each in alone if isinstance(each, Malformed)] == ["malformed_call"]
    assert (len(alone), behind[0], behind[1:]) == (1, add, alone)
    assert await read(verls(name), f"{GIVEN[name]}\n{GIVEN[name]}") == (add, add)
    assert await read(verls(name), "It is 5.") == ()


async def test_the_detail_of_a_dropped_call_says_between_which_tags_calls_stand() -> None:
    (found,) = await read(verls("hermes"), DROPPED["hermes"])

    assert found == Malformed(
        reason="malformed_call", detail="a call between <tool_call> and </tool_call> cannot be read"
    )


@pytest.mark.parametrize(
    "text",
    [
        "<think>I may write <tool_call> here.</think>It is 5.",
        "<think>I may write <tool_call> here.</think>" + GIVEN["glm"],
        '<tool_call>add<arg_key>text</arg_key><arg_value>"<tool_call>"</arg_value></tool_call>',
    ],
)
async def test_a_tag_in_thoughts_or_within_a_call_begins_no_call(text: str) -> None:
    assert not any(isinstance(each, Malformed) for each in await read(verls("glm"), text))


class Size(StrEnum):
    SMALL = "small"


class Place(BaseModel):
    city: str
    parent: "Place | None" = None


def refund(
    order_id: str,
    amount: float | None = None,
    note: str | None = None,
    size: Size = Size.SMALL,
    place: Place | None = None,
    ids: list[int] | int = 0,
) -> str:
    """Refund an order."""
    return order_id


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("amount", "9.5", 9.5),
        ("amount", "9", 9),
        ("amount", "null", None),
        ("amount", "much", "much"),
        ("note", "12", "12"),
        ("note", "null", None),
        ("size", "small", "small"),
        ("place", '{"city": "Bonn", "parent": null}', {"city": "Bonn", "parent": None}),
        ("ids", "[1, 2]", [1, 2]),
        ("ids", "7", 7),
    ],
)
async def test_an_argument_of_several_types_is_read_by_them(name: str, written: str, value: Any) -> None:
    schema = read_signature(refund).schema
    text = (
        "<tool_call>\n<function=refund>\n<parameter=order_id>\n17\n</parameter>\n"
        f"<parameter={name}>\n{written}\n</parameter>\n</function>\n</tool_call>"
    )

    (found,) = await verls("qwen3_coder").calls(text, [*map(ord, text)], [schema])

    assert found == ToolCall(name="refund", arguments={"order_id": "17", name: value})
    problem = schemas_by_name(encode_json([schema]))["refund"].problem(found.arguments)
    assert (problem is None) == (value != "much")


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("name", ["hermes", "kimi", "qwen3_coder"])
async def test_marks_without_partners_do_not_stop_the_event_loop(name: str, opening: str) -> None:
    text = "<|tool_calls_section_begin|>" + opening * (24_000 // len(opening))
    steps = []
    for _ in range(3):
        measured = MeasuredSteps(read(verls(name), text))
        await measured
        steps.append(measured.longest_seconds)

    assert min(steps) <= MAX_STEP_SECONDS


WHOLE = TagPair(whole=True, stop="</python>", tool="tool_server", argument="action")


@pytest.mark.parametrize("turn", ["I run it. <python>1</python>", "</python>", "<search>tea</search></python>"])
def test_a_whole_turn_is_the_argument_and_the_stop_text_its_end(turn: str) -> None:
    search = TagPair(open="<search>", close="</search>", tool="search", argument="query")
    parser = TagParser([search, WHOLE])

    assert parser.stop == ("</search>", "</python>")
    assert parser.read(turn) == (ToolCall(name="tool_server", arguments={"action": turn}),)
    assert parser.read("<search>tea</search>") == (ToolCall(name="search", arguments={"query": "tea"}),)
    assert parser.read("It is 42.") == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"whole": True}, "whole needs stop, and no open, close or fenced"),
        ({"whole": True, "stop": ""}, "whole needs stop"),
        ({"whole": True, "stop": "</a>", "open": "<a>"}, "whole needs stop"),
        ({"whole": True, "stop": "</a>", "fenced": True}, "whole needs stop"),
        ({"stop": "</a>"}, "open and close must not be empty, got '' and ''"),
        ({"open": "<a>"}, "open and close must not be empty, got '<a>' and ''"),
    ],
)
def test_a_pair_of_tags_without_tags_is_refused_unless_the_turn_is_the_argument(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TagPair(tool="tool_server", argument="action", **fields)
