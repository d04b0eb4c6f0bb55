"""Texts made to stop a process: reading eight times the text takes about eight times the processor time."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.loop_steps import MeasuredSteps
from verl_pivot.data.actions import parse_action
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.rollout.turn_parsers import TagPair, TagParser, num_tag_pairs
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.scoring import score_completion

NUM_CHARS = 4_000
GROWTH = 8
MAX_RATIO = 3 * GROWTH
"""Growth of the processor time that fails a test; a reader whose time grows with the square needs 64 times."""
MIN_SECONDS = 0.001
"""Time under which the smaller text's time is not measured well."""
MAX_CHARS = 64 * 1024
MAX_STEP_SECONDS = 0.05
PIECES = [
    *("<tool_call>", "</tool_call>", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "<think>", "</think>"),
    *("<answer>", "</answer>", "<search>", "</search>", "<tool_response>", "</tool_response>", "\\boxed{", "{", "}"),
    *(
        "```a\n",
        "```\n",
        "~~~\n",
        "<function=f>",
        "</function>",
        "<parameter=f>",
        "</parameter>",
        "<tools>",
        "</tools>",
    ),
    *("# Tools\n\nYou have access to the following functions:\n\n<tools>", "[f(a=1),", "[", "]", "(", ")", "-", ","),
    *(
        " ",
        "\n",
        "\t",
        "\\",
        "\\\n",
        "'",
        '"',
        "`",
        "$(",
        "${",
        "$a",
        "<<E\n",
        "<(",
        ">",
        "|",
        "&&",
        ";",
        "#",
        "*",
        "a",
        "1",
    ),
    *(
        "if ",
        "then ",
        "do ",
        "for ",
        "case ",
        "ls -l ",
        "-l ",
        "./",
        "//",
        "<|",
        "|>",
        "def f():\n",
        " x = 1\n",
        '{"a": ',
    ),
    *(
        "---- BEGIN FUNCTION #1: f ----\nDescription: ",
        "\n---- END FUNCTION #1 ----\n",
        "<IMPORTANT>\nReminder:\n- a\n",
    ),
]
PATH = "/repo/a.py"
BEFORE = "a = 1\nb = 2\n"
PATCH = f"--- a{PATH}\n+++ b{PATH}\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3\n"
FREE_TEXT: JsonObject = {"free_text": ["f.x"], "min_similarity": 0.5}
HEAVY_FOR_CONSTRAINTS: list[tuple[JsonObject, str]] = [
    ({"pattern": "(a+)+b"}, "a"),
    ({"pattern": "(a|aa)*c"}, "a"),
    ({"json_schema": {"pattern": "^(([a-z])+.)+[A-Z]$"}}, "a"),
    ({"sentences": {"at_most": 1}}, "."),
    ({"sentences": {"at_most": 1}}, ".x"),
    ({"paragraphs": {"at_most": 1}}, "\n "),
    ({"bullets": {"at_most": 1}}, "1"),
    ({"bullets": {"at_most": 1}}, "\t"),
    ({"placeholders": {"at_most": 1}}, "["),
    ({"has_title": True}, "<<"),
    ({"choices": ["A", "B"], "choice": "A"}, "_"),
    ({"choices": ["A", "B"], "choice": "A"}, "(*"),
    ({"keywords": ["b b b"]}, "b "),
]


Ask: TypeAlias = Callable[[str], Coroutine[Any, Any, Verdict]]
"""Question to a verifier about an action in which a text stands."""


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def call(name: str, **arguments: Json) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=name, arguments=arguments),))


def ask(name: str, options: JsonObject, act: Callable[[str], Message], expert: str = "ls src") -> Ask:
    verifier, turn = get_verifier(name, options), make_turn(expert=act(expert), tools=())
    return lambda text: verifier(act(text), turn)  # type: ignore[return-value]  # every verifier shipped is `async def`


def within(form: str) -> Callable[[str], Message]:
    """Action of a text that stands in place of TEXT."""
    return lambda text: say(form.replace("TEXT", text))


def type_keys(keys: str) -> Message:
    commands: list[Json] = [{"keystrokes": f"{keys}\n"}]
    return say(json.dumps({"analysis": "", "plan": "", "commands": commands}))


def replace_line(new: str) -> Message:
    return call("editor", command="str_replace", path=PATH, old_str="b = 2\n", new_str=new)


BLOCK = "```bash\nTEXT\n```"
MANY_WORDS = " ".join(f"w{number}" for number in range(600))
VERDICTS: dict[str, Ask] = {
    "shell": ask("shell", {}, within(BLOCK)),
    "shell, any text": ask("shell", {}, within("TEXT\n```bash\nls src\n```")),
    "shell, similarity": ask("shell", {"mode": "similarity"}, within(BLOCK)),
    "terminus": ask("terminus", {}, type_keys),
    "terminus, similarity": ask("terminus", {"mode": "similarity"}, type_keys, MANY_WORDS),
    "edit": ask("edit", {"files": {PATH: BEFORE}}, replace_line, "b = 3\n"),
    "edit, levels": ask("edit", {"mode": "levels", "level": 2}, lambda text: call("bash", command=f"ls {text}")),
    "edit, graded": ask("edit", {"mode": "levels", "level": 2, "is_continuous": True}, replace_line, MANY_WORDS),
    "edit, patch": ask("edit", {"files": {PATH: BEFORE}}, lambda text: call("apply", patch=text), PATCH),
    "qa": ask("qa", {}, within("TEXT<answer>ls src</answer>")),
    "qa, boxed": ask("qa", {"place": "boxed"}, within("TEXT\\boxed{ls src}")),
    "qa, all": ask("qa", {"place": "all", "metric": "f1", "normalisation": "l0"}, say),
    "search_query": ask("search_query", {}, within("TEXT<search>ls src</search>")),
    "tool_call": ask("tool_call", {}, lambda text: call("f", x=text)),
    "tool_call, free text": ask("tool_call", FREE_TEXT, lambda text: call("f", x=text), MANY_WORDS),
    "tool_call, nemo_gym": ask("tool_call", {"mode": "nemo_gym"}, lambda text: call("f", x=text), MANY_WORDS),
    "tool_call, items": ask("tool_call", {"unordered": ["f.x"]}, lambda text: call("f", x=[*text])),
    "tool_call, nested": ask("tool_call", {}, lambda text: call("f", x=[[{"a": each}] for each in text[::8]])),
    "constraints": ask("constraints", {"words": {"at_most": 1}, "is_quoted": True, "letter_case": "lower"}, say),
}


def imported(role: str, name: str) -> Callable[[str], object]:
    """Reader that imports a row in which one message holds the growing text."""
    texts = {"system": "Be short.", "user": "List.", "assistant": "Done."}

    def read(text: str) -> object:
        messages = [{"role": each, "content": text if each == role else other} for each, other in texts.items()]
        key = "conversations" if name == "sharegpt" else "messages"
        row = json.dumps({key: messages}).encode()
        try:
            return parse_row(
                RawRow(place=Place(file="a.jsonl", unit="line", number=1), raw=row), ImportOptions(format=name)
            )
        except BadRowError as error:
            return error

    return read


def answer(asked: Ask, text: str) -> Verdict:
    return asyncio.run(asked(text))


def calls_in_tags(text: str) -> object:
    parser = TagParser([TagPair(open="<search>", close="</search>", tool="search", argument="query")], "answer")
    return asyncio.run(parser.calls(text, (), ()))


READERS: dict[str, Callable[[str], object]] = {
    "parse_action": lambda text: parse_action(text, ended=True),
    "num_tag_pairs": lambda text: num_tag_pairs("answer", [text]),
    "tags": calls_in_tags,
    **{name: partial(answer, asked) for name, asked in VERDICTS.items()},
    **{
        f"import {name}, {role}": imported(role, name)
        for name in ("hermes", "openhands", "sharegpt", "swe-agent")
        for role in ("system", "user", "assistant")
    },
}


def seconds_of(read: Callable[[str], object], text: str, num_runs: int) -> float:
    """Processor seconds of the fastest of some runs."""
    times = []
    for _ in range(num_runs):
        begin = time.process_time()  # with that of the thread in which long texts are compared
        read(text)
        times.append(time.process_time() - begin)
    return min(times)


def growth(read: Callable[[str], object], head: str, piece: str) -> float:
    """Times that a text of eight times the length takes longer; measured again if that is too many."""
    small, large = (head + piece * (num_chars // len(piece)) for num_chars in (NUM_CHARS, GROWTH * NUM_CHARS))
    for num_runs in (1, 3, 5):
        ratio = seconds_of(read, large, num_runs) / max(seconds_of(read, small, num_runs), MIN_SECONDS)
        if ratio <= MAX_RATIO:
            break
    return ratio


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(head=st.sampled_from(["", *PIECES]), pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))
def test_time_grows_with_the_length_of_the_text(reader: str, head: str, pieces: list[str]) -> None:
    assert growth(READERS[reader], head, "".join(pieces)) <= MAX_RATIO


@pytest.mark.parametrize("reader", READERS)
def test_no_mark_repeated_without_its_partner_takes_longer_than_its_length(reader: str) -> None:
    slow = {piece: ratio for piece in PIECES if (ratio := growth(READERS[reader], "", piece)) > MAX_RATIO}

    assert slow == {}


@pytest.mark.parametrize(("options", "piece"), HEAVY_FOR_CONSTRAINTS)
def test_no_constraint_takes_longer_than_the_length_of_the_text(options: JsonObject, piece: str) -> None:
    form = '"TEXT!"' if "json_schema" in options else "TEXT!"
    written = json.dumps(piece)[1:-1] if "json_schema" in options else piece
    asked = ask("constraints", options, within(form))

    assert growth(partial(answer, asked), "", written) <= MAX_RATIO


async def longest_step(asked: Ask, text: str) -> float:
    """Processor seconds for which a verdict stops the event loop; measured again if those are too many."""
    for _ in range(5):
        measured = MeasuredSteps(asked(text))
        await measured
        if measured.longest_seconds <= MAX_STEP_SECONDS:
            break
    return measured.longest_seconds


@pytest.mark.parametrize("name", VERDICTS)
async def test_no_verdict_on_64_kb_stops_the_event_loop(name: str) -> None:
    texts = {piece: piece * (MAX_CHARS // len(piece)) for piece in PIECES}
    seconds = {piece: await longest_step(VERDICTS[name], text) for piece, text in texts.items()}

    assert {piece: each for piece, each in seconds.items() if each > MAX_STEP_SECONDS} == {}


async def test_what_takes_many_times_as_long_is_compared_beside_the_loop() -> None:
    file = "".join(f"def f{number}(x):\n    return [x + {number}, x * {number}]\n\n" for number in range(1200))

    def edit(new: str) -> Message:
        return call("editor", command="str_replace", path=PATH, old_str="[x + 600,", new_str=new)

    asked = ask("edit", {"files": {PATH: file}}, edit, "[x  - 600,")
    before = time.process_time()
    step = await longest_step(asked, "[x - 600,")

    assert step <= MAX_STEP_SECONDS < time.process_time() - before
    assert (await asked("[x - 600,")).score == 1.0


@pytest.mark.parametrize("piece", PIECES)
async def test_no_completion_of_64_kb_stops_the_event_loop(piece: str) -> None:
    turn = replace(make_turn(), verifier="qa", verifier_options={})

    assert await longest_step(lambda text: score_completion(text, True, turn), "x" + piece * 8_000) <= MAX_STEP_SECONDS


def test_a_name_that_repeats_at_the_end_of_a_long_object_is_found_in_time() -> None:
    def read(names: str) -> object:
        pairs = ", ".join(f'"{name}": 1' for name in names.split())
        return parse_action(
            f'<tool_call>{{"name": "f", "arguments": {{{pairs}, "a": 1, "a": 1}}}}</tool_call>', ended=True
        )

    few, many = (" ".join(f"n{number}" for number in range(count)) for count in (500, 500 * GROWTH))

    assert seconds_of(read, many, 3) <= MAX_RATIO * max(seconds_of(read, few, 3), MIN_SECONDS)
