"""Properties of turns, calls and observations of any content: nothing raises, nothing is lost, counts add up."""

import asyncio
import json
from typing import Any
from unicodedata import normalize

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.tiny_model import write_tokenizer
from verl_pivot.engines.text_cut import cut_to_tokens
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_parsers import HermesParser, TagPair, TagParser
from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.tools.functions import FunctionTool
from verl_pivot.types import Malformed, ToolCall

PIECES = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<search>", "</search>", "\n", '{"name": "say"', "}")
TURNS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8)).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.builds(
    ToolCall,
    name=st.sampled_from(["say", "nobody"]) | st.text(st.characters(codec=None)),
    arguments=st.dictionaries(st.sampled_from(["words", "times"]) | st.text(max_size=4), JSON, max_size=3),
)


def say(words: str, times: int = 1) -> str:
    """Say something."""
    return words * min(times, 3)


def run(calls: list[Any], **options: Any) -> list[CallOutcome]:
    return asyncio.run(Toolbox(tools={"say": FunctionTool(say)}, **options).run(calls))


@given(TURNS)
@settings(deadline=None)
def test_no_parser_raises_on_any_turn(text: str) -> None:
    pair = TagPair(open="<search>", close="</search>", tool="search", argument="query")

    async def read() -> None:
        for parser in (HermesParser(), TagParser([pair], answer_tag="answer")):
            await parser.calls(text, [], [])

    asyncio.run(read())


@given(st.lists(CALLS, max_size=5), st.booleans(), st.integers(1, 4))
@settings(deadline=None)
def test_every_call_has_an_outcome_and_none_is_a_failure_of_the_system(
    calls: list[ToolCall], parallel: bool, max_calls_per_turn: int
) -> None:
    outcomes = run(calls, parallel_calls=parallel, max_calls_per_turn=max_calls_per_turn)

    assert [outcome.call for outcome in outcomes] == calls
    assert [outcome.failure for outcome in outcomes] == [""] * len(calls)
    assert sum(outcome.observation.error == "too_many_calls" for outcome in outcomes if outcome.observation) == max(
        0, len(calls) - max_calls_per_turn
    )
    for outcome in outcomes:
        assert outcome.observation is not None
        outcome.observation.text.encode()


@given(CALLS)
@settings(deadline=None)
def test_a_written_call_is_read_back_unchanged_if_it_has_a_name_that_files_can_hold(call: ToolCall) -> None:
    try:
        text = json.dumps({"name": call.name, "arguments": call.arguments}, allow_nan=False)
    except ValueError:
        return

    async def read() -> tuple[Any, ...]:
        return await HermesParser().calls(f"<tool_call>{text}</tool_call>", [], [])

    found = asyncio.run(read())

    if not call.name or any("\ud800" <= each <= "\udfff" for each in call.name):
        assert isinstance(found[0], Malformed)
    else:
        assert found == (call,) or "</tool_call>" in text


@given(st.text(), st.integers(16, 64), st.sampled_from([1, 7, 300]))
@example("0\x80\uf900", 40, 7)
@settings(deadline=None)
def test_a_cut_text_fits_its_limit_and_keeps_both_ends(text: str, max_tokens: int, times: int) -> None:
    tokenizer, text = tokenizer_of_bytes(), normalize("NFC", text * times)  # as Qwen's tokenizers normalize

    cut = cut_to_tokens(text, max_tokens, tokenizer)

    assert cut.num_tokens == len(tokenizer.encode(cut.text, add_special_tokens=False))
    note = len(tokenizer.encode(f"\n... [{len(text)} characters left out] ...\n", add_special_tokens=False))
    assert cut.num_tokens <= max(max_tokens, note)
    if not cut.truncated:
        assert cut.text == text
    else:
        head, _, tail = cut.text.partition("\n... [")
        assert text.startswith(head)
        assert text.endswith(tail.partition("left out] ...\n")[2])


def tokenizer_of_bytes() -> Any:
    if not _tokenizers:
        import tempfile

        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            from pathlib import Path

            _tokenizers.append(AutoTokenizer.from_pretrained(write_tokenizer(Path(folder))))
    return _tokenizers[0]


_tokenizers: list[Any] = []


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=6))
def test_turns_end_just_after_their_last_sampled_token(turns: list[tuple[int, int]]) -> None:
    record, ends = TokenRecord.of_prompt([0]), []
    for sampled, observed in turns:
        record = record.with_turn([*record.token_ids, *[1] * sampled], [*record.mask, *[1] * sampled], None)
        ends.append(len(record.mask))
        record = record.with_text([2] * observed)

    assert record.turn_ends == ends
    assert record.turn_tokens == [sampled for sampled, _ in turns]
    assert record.num_sampled == sum(record.turn_tokens)
    assert len(record.response_ids) == len(record.mask)
