"""Texts made to stall a process: a text of eight times the length takes about eight times the processor time."""

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.format_examples import EXAMPLES
from tests.support.loop_steps import MeasuredSteps
from tests.support.processor_time import (
    GROWTH,
    MAX_RATIO,
    MAX_SECONDS,
    LimitedWorker,
    TooMuchProcessorTimeError,
    growth,
    seconds_of,
)
from verl_pivot.data.actions import parse_action
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.rollout.turn_parsers import TagPair, TagParser, num_tag_pairs
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.code_blocks import code_blocks
from verl_pivot.verifiers.code_outputs import same_words
from verl_pivot.verifiers.judge_client import without_wrapping
from verl_pivot.verifiers.math_texts import read_math_answer
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.scoring import score_completion

NUM_CHARS = 2_000
"""Length of the smaller text whose time is measured."""
MEMORY_CHARS = 1_000
"""Length of the smaller text whose memory is measured."""
MAX_CHARS = 64 * 1024
MAX_STEP_SECONDS = 0.05
MAX_BYTES_OF_CHAR = 1024
"""Bytes that a reader may take for each character of its text."""
MIN_PEAK_BYTES = 50_000
"""Lower bound of the smaller text's peak: a smaller peak does not come from the text."""
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
    ({"forbidden_words": ["b b b"]}, "b-"),
    ({"forbidden_words": ["sorry"]}, "s\u043e\u0336"),
    ({"choices": ["A", "B"], "choice": "A"}, "the "),
    ({"choices": ["A", "B"], "choice": "A"}, "A) answer "),
    ({"choices": ["A", "B"], "choice": "A"}, "\\text{"),
    ({"is_quoted": True}, '"'),
]


Ask: TypeAlias = Callable[[str], Coroutine[Any, Any, Verdict]]
"""Function: text -> a verifier's verdict on an action that contains the text."""


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def call(name: str, **arguments: Json) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=name, arguments=arguments),))


def ask(name: str, options: JsonObject, act: Callable[[str], Message], expert: str = "ls src") -> Ask:
    verifier, turn = get_verifier(name, options), make_turn(expert=act(expert), tools=())
    return lambda text: verifier(act(text), turn)  # type: ignore[return-value]  # every verifier shipped is `async def`


def within(form: str) -> Callable[[str], Message]:
    """Function: text -> the message `form` with the text in place of TEXT."""
    return lambda text: say(form.replace("TEXT", text))


def type_keys(keys: str) -> Message:
    commands: list[Json] = [{"keystrokes": f"{keys}\n"}]
    return say(json.dumps({"analysis": "", "plan": "", "commands": commands}))


def replace_line(new: str) -> Message:
    return call("editor", command="str_replace", path=PATH, old_str="b = 2\n", new_str=new)


def write_file(text: str) -> Message:
    return call("editor", command="create", path=PATH, file_text=text)


PYTHON = "".join(f"def f{number}(x):\n    return [x + {number}, x * {number}]\n\n" for number in range(1500))
PYTHON_PIECES = ["x\n", "f(a)\n", "a: a\n", "if a: a\n", "f'{a}'", "1,", "a<", "class A:\n x\n"]
"""Statements and parts of statements that a parser of Python takes long to read."""
BLOCK = "```bash\nTEXT\n```"
MANY_WORDS = " ".join(f"w{number}" for number in range(600))
VERDICTS: dict[str, Ask] = {
    "shell": ask("shell", {}, within(BLOCK)),
    "shell, any text": ask("shell", {}, within("TEXT\n```bash\nls src\n```")),
    "shell, similarity": ask("shell", {"mode": "similarity"}, within(BLOCK)),
    "terminus": ask("terminus", {}, type_keys),
    "terminus, similarity": ask("terminus", {"mode": "similarity"}, type_keys, MANY_WORDS),
    "edit": ask("edit", {"files": {PATH: BEFORE}}, replace_line, "b = 3\n"),
    "edit, a new file": ask("edit", {"files": {}}, write_file, PYTHON),
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


def imported_example(name: str) -> Callable[[str], object]:
    """Reader that imports a format's example once for each key of a text, with the growing text in its place."""
    row = next(example.row for example in EXAMPLES.values() if example.format == name)
    places = {place[-1]: place for place in places_of_texts(row)}

    def read(text: str) -> object:
        for place in places.values():
            try:
                parse_row(
                    RawRow(place=Place(file="a.jsonl", unit="line", number=1), raw=replaced(row, place, text)),
                    ImportOptions(format=name),
                )
            except BadRowError:
                continue
        return None

    return read


def places_of_texts(value: Json) -> Iterator[tuple[str | int, ...]]:
    """Places of all texts in a value: for each text the keys and indices that lead to it."""
    if isinstance(value, str):
        yield ()
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from ((key, *place) for place in places_of_texts(child))


def replaced(row: JsonObject, place: tuple[str | int, ...], text: str) -> bytes:
    """The row as JSON, with `text` in place of the text at `place`."""
    copy: Any = json.loads(json.dumps(row))
    parent = copy
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = text
    return json.dumps(copy).encode()


def answer(asked: Ask, text: str) -> Verdict:
    return asyncio.run(asked(text))


def calls_in_tags(text: str) -> object:
    parser = TagParser([TagPair(open="<search>", close="</search>", tool="search", argument="query")], "answer")
    return asyncio.run(parser.calls(text, (), ()))


READERS: dict[str, Callable[[str], object]] = {
    "parse_action": lambda text: parse_action(text, ended=True),
    "num_tag_pairs": lambda text: num_tag_pairs("answer", [text]),
    "tags": calls_in_tags,
    "code_blocks": code_blocks,
    "read_math_answer": read_math_answer,
    "same_words": lambda text: same_words(text, text + "1"),
    "without_wrapping": without_wrapping,
    **{name: partial(answer, asked) for name, asked in VERDICTS.items()},
    **{
        f"import {name}, {role}": imported(role, name)
        for name in ("hermes", "openhands", "sharegpt", "swe-agent")
        for role in ("system", "user", "assistant")
    },
    **{
        f"import {name}, an example": imported_example(name)
        for name in sorted({each.format for each in EXAMPLES.values()})
    },
}


TEXT_READERS = [name for name in READERS if not name.startswith("import")]


def cubic(text: str) -> object:
    return re.search("a*a*b", text)


def exponential(text: str) -> object:
    return re.fullmatch("(a|aa)*b", text)


def growth_of(reader: str, head: str, piece: str) -> float:
    read = {**READERS, "cubic": cubic, "exponential": exponential}[reader]
    return growth(read, lambda num_chars: head + piece * (num_chars // len(piece)), NUM_CHARS)


def growths_of(reader: str) -> dict[str, float]:
    """{piece: growth} of the pieces whose repetition makes a reader's time grow too much."""
    return {piece: ratio for piece in PIECES if (ratio := growth_of(reader, "", piece)) > MAX_RATIO}


def memory_growths_of(reader: str) -> dict[str, float]:
    """{piece: growth} of the pieces, every eighth tried, for which a reader takes too much memory."""
    read = READERS[reader]
    found: dict[str, float] = {}
    read("first")  # builds what the reader keeps of the expert
    for piece in PIECES[::8]:
        peaks = []
        for num_chars in (MEMORY_CHARS, GROWTH * MEMORY_CHARS):
            text = piece * (num_chars // len(piece))
            tracemalloc.start()
            read(text)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        ratio = peaks[1] / max(peaks[0], MIN_PEAK_BYTES)
        if ratio > MAX_RATIO or peaks[1] > MAX_BYTES_OF_CHAR * num_chars:
            found[piece] = ratio
    return found


def bytes_kept_by(reader: str) -> int:
    """Bytes still allocated after a reader has read eight different texts: the least of three measurements.

    What is built once, at the first text that needs it, counts in one measurement only; a leak counts in all.
    """
    read = READERS[reader]
    read("first")
    kept = []
    for first in (0, 8, 16):
        tracemalloc.start()
        for number in range(first, first + 8):
            read(f"w{number} " * MEMORY_CHARS)
        gc.collect()
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return min(kept)


def growth_of_constraint(options: JsonObject, form: str, piece: str) -> float:
    asked = ask("constraints", options, within(form))
    return growth(partial(answer, asked), lambda num_chars: piece * (num_chars // len(piece)), NUM_CHARS)


@pytest.fixture(scope="module")
def worker() -> Iterator[LimitedWorker]:
    worker = LimitedWorker()
    yield worker
    worker.close()


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(head=st.sampled_from(["", *PIECES]), pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))
def test_time_grows_with_the_length_of_the_text(
    reader: str, worker: LimitedWorker, head: str, pieces: list[str]
) -> None:
    assert worker.run(MAX_SECONDS, growth_of, reader, head, "".join(pieces)) <= MAX_RATIO


@pytest.mark.parametrize("reader", READERS)
def test_no_mark_repeated_without_its_partner_takes_longer_than_its_length(reader: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, growths_of, reader) == {}


@pytest.mark.parametrize("reader", TEXT_READERS)
def test_memory_grows_with_the_length_of_the_text_and_is_given_back(reader: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, memory_growths_of, reader) == {}
    assert worker.run(MAX_SECONDS, bytes_kept_by, reader) <= 8 * MEMORY_CHARS


@pytest.mark.parametrize("reader", ["cubic", "exponential"])
def test_a_reader_that_may_never_end_is_killed(reader: str, worker: LimitedWorker) -> None:
    with pytest.raises(TooMuchProcessorTimeError, match=f"{reader}.* was killed"):
        worker.run(1, growth_of, reader, "", "a")


@pytest.mark.parametrize(("options", "piece"), HEAVY_FOR_CONSTRAINTS)
def test_no_constraint_takes_longer_than_the_length_of_the_text(
    options: JsonObject, piece: str, worker: LimitedWorker
) -> None:
    form = '"TEXT!"' if "json_schema" in options else "TEXT!"
    written = json.dumps(piece)[1:-1] if "json_schema" in options else piece

    assert worker.run(MAX_SECONDS, growth_of_constraint, options, form, written) <= MAX_RATIO


async def longest_step(asked: Ask, text: str) -> float:
    """Longest processor time in seconds for which a verdict blocks the event loop; measured again if it is too long."""
    for _ in range(5):
        measured = MeasuredSteps(asked(text))
        await measured
        if measured.longest_seconds <= MAX_STEP_SECONDS:
            break
    return measured.longest_seconds


def slow_steps_of(name: str, pieces: list[str], expert: str | None = None) -> dict[str, float]:
    """{piece: processor seconds} of the pieces whose repetition makes a verdict block the event loop too long.

    Args:
        name: Key of VERDICTS.
        pieces: Pieces of which the policy's texts are made.
        expert: Piece of which the expert's new file is made; None for the expert of VERDICTS.
    """
    gc.collect()
    gc.freeze()  # so the garbage collector visits only what verdicts make, not all that the tests import
    asked = VERDICTS[name] if expert is None else ask("edit", {"files": {}}, write_file, repeated(expert))
    seconds = {piece: asyncio.run(longest_step(asked, repeated(piece))) for piece in pieces}
    return {piece: each for piece, each in seconds.items() if each > MAX_STEP_SECONDS}


def repeated(piece: str) -> str:
    return piece * (MAX_CHARS // len(piece))


def slow_completions(pieces: list[str]) -> dict[str, float]:
    """{piece: processor seconds} of the pieces of completions that block the event loop too long."""
    turn = replace(make_turn(), verifier="qa", verifier_options={})

    def score(text: str) -> Coroutine[Any, Any, Verdict]:
        return score_completion(text, True, turn)

    seconds = {piece: asyncio.run(longest_step(score, "x" + piece * 8_000)) for piece in pieces}
    return {piece: each for piece, each in seconds.items() if each > MAX_STEP_SECONDS}


@pytest.mark.parametrize("name", VERDICTS)
def test_no_verdict_on_64_kb_stops_the_event_loop(name: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, slow_steps_of, name, PIECES) == {}


@pytest.mark.heavy
@pytest.mark.parametrize("piece", PYTHON_PIECES)
def test_no_python_of_64_kb_stops_the_event_loop(piece: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, slow_steps_of, "edit, a new file", [piece + " ", piece + "\n"], piece) == {}


async def test_an_edit_of_a_long_file_does_not_stop_the_event_loop() -> None:
    file = "".join(f"def f{number}(x):\n    return [x + {number}, x * {number}]\n\n" for number in range(1200))

    def edit(new: str) -> Message:
        return call("editor", command="str_replace", path=PATH, old_str="[x + 600,", new_str=new)

    asked = ask("edit", {"files": {PATH: file}}, edit, "[x  - 600,")
    step = await longest_step(asked, "[x - 600,")

    assert step <= MAX_STEP_SECONDS
    assert (await asked("[x - 600,")).score == 1.0


def test_no_completion_of_64_kb_stops_the_event_loop(worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, slow_completions, PIECES) == {}


def test_a_name_that_repeats_at_the_end_of_a_long_object_is_found_in_time() -> None:
    def read(names: str) -> object:
        pairs = ", ".join(f'"{name}": 1' for name in names.split())
        return parse_action(
            f'<tool_call>{{"name": "f", "arguments": {{{pairs}, "a": 1, "a": 1}}}}</tool_call>', ended=True
        )

    few, many = (" ".join(f"n{number}" for number in range(count)) for count in (500, 500 * GROWTH))

    assert seconds_of(read, many, 3) <= MAX_RATIO * max(seconds_of(read, few, 3), 0.001)
