"""rollout.turn_parsers: verl's parsers on long turns, which are read beside the event loop."""

from collections.abc import Sequence
from typing import Any

import pytest
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from tests.support.loop_steps import MeasuredSteps
from verl_pivot.off_loop import SIZE_ON_LOOP
from verl_pivot.rollout.turn_parsers import VerlParser
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
    return VerlParser(ToolParser.get_tool_parser(name, tokenizer), OpenAIFunctionToolSchema)


async def read(parser: VerlParser, text: str) -> tuple[ToolCall | Malformed, ...]:
    return await parser.calls(text, [*map(ord, text)], ())


@pytest.mark.parametrize("num_chars", [0, SIZE_ON_LOOP])
async def test_a_turn_of_any_length_gives_its_calls(num_chars: int) -> None:
    found = await read(verls("hermes"), "x" * num_chars + CALL)

    assert found == (ToolCall(name="add", arguments={"a": 1}),)


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
