"""Texts made to stop a process: reading eight times the text takes about eight times the processor time."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.data.actions import parse_action
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.rollout.turn_parsers import TagPair, TagParser, num_tag_pairs
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.registry import get_verifier

NUM_CHARS = 4_000
GROWTH = 8
MAX_RATIO = 3 * GROWTH
"""Growth of the processor time that fails a test; a reader whose time grows with the square needs 64 times."""
MIN_SECONDS = 0.001
"""Time under which the smaller text's time is not measured well."""
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


def verdict_on_text(name: str, options: JsonObject, expert: str) -> Callable[[str], object]:
    """Reader that asks a verifier about a text in which the growing text stands."""
    before, _, behind = expert.partition("TEXT")
    turn = make_turn(expert=Message(role=Role.ASSISTANT, content=expert.replace("TEXT", "ls src")))
    verifier = get_verifier(name, options)

    def read(text: str) -> object:
        return asyncio.run(verifier(Message(role=Role.ASSISTANT, content=before + text + behind), turn))  # type: ignore[arg-type]

    return read


def verdict_on_edit(text: str) -> object:
    def call(new: str) -> Message:
        arguments: JsonObject = {"command": "str_replace", "path": PATH, "old_str": "b = 2\n", "new_str": new}
        return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="editor", arguments=arguments),))

    verifier = get_verifier("edit", {"files": {PATH: BEFORE}})
    return asyncio.run(verifier(call(text), make_turn(expert=call("b = 3\n"))))  # type: ignore[arg-type]


def verdict_on_published_edit(text: str) -> object:
    def call(command: str) -> Message:
        return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="bash", arguments={"command": command}),))

    verifier = get_verifier("edit", {"mode": "levels", "level": 2})
    return asyncio.run(verifier(call(f"ls {text}"), make_turn(expert=call("ls src/app"))))  # type: ignore[arg-type]


def verdict_on_keystrokes(text: str) -> object:
    def batch(keys: str) -> Message:
        commands: list[Json] = [{"keystrokes": f"{keys}\n"}]
        return Message(role=Role.ASSISTANT, content=json.dumps({"analysis": "", "plan": "", "commands": commands}))

    verifier = get_verifier("terminus", {})
    return asyncio.run(verifier(batch(text), make_turn(expert=batch("ls src"))))  # type: ignore[arg-type]


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


def calls_in_tags(text: str) -> object:
    parser = TagParser([TagPair(open="<search>", close="</search>", tool="search", argument="query")], "answer")
    return asyncio.run(parser.calls(text, (), ()))


READERS: dict[str, Callable[[str], object]] = {
    "parse_action": lambda text: parse_action(text, ended=True),
    "num_tag_pairs": lambda text: num_tag_pairs("answer", [text]),
    "tags": calls_in_tags,
    "shell": verdict_on_text("shell", {}, "```bash\nTEXT\n```"),
    "shell, any text": verdict_on_text("shell", {}, "TEXT\n```bash\nls src\n```"),
    "shell, similarity": verdict_on_text("shell", {"mode": "similarity"}, "```bash\nTEXT\n```"),
    "terminus": verdict_on_keystrokes,
    "edit": verdict_on_edit,
    "edit, levels": verdict_on_published_edit,
    "qa": verdict_on_text("qa", {}, "TEXT<answer>ls src</answer>"),
    "qa, boxed": verdict_on_text("qa", {"place": "boxed"}, "TEXT\\boxed{ls src}"),
    "search_query": verdict_on_text("search_query", {}, "TEXT<search>ls src</search>"),
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
        begin = time.thread_time()
        read(text)
        times.append(time.thread_time() - begin)
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


def test_a_name_that_repeats_at_the_end_of_a_long_object_is_found_in_time() -> None:
    def read(names: str) -> object:
        pairs = ", ".join(f'"{name}": 1' for name in names.split())
        return parse_action(
            f'<tool_call>{{"name": "f", "arguments": {{{pairs}, "a": 1, "a": 1}}}}</tool_call>', ended=True
        )

    few, many = (" ".join(f"n{number}" for number in range(count)) for count in (500, 500 * GROWTH))

    assert seconds_of(read, many, 3) <= MAX_RATIO * max(seconds_of(read, few, 3), MIN_SECONDS)
