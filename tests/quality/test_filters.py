"""Filters that judge one trajectory alone, each on the smallest trajectory that shows what it does."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories import ANSWER, CALL, FIND_ORDER, RESULT, SYSTEM, USER, make_trajectory
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.quality.contract import Finding, TrajectoryFilter
from verl_pivot.quality.invented_values import invented_values
from verl_pivot.quality.ngrams import ngram_hashes, words_of
from verl_pivot.quality.registry import make_filter
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory

ALONE = ("correctness", "coherence", "efficiency")
QUESTION = "A train leaves the station at noon and arrives three hours later in town"


def judge(name: str, trajectory: Trajectory, **options: Json) -> Finding | None:
    made = make_filter(name, options)
    assert isinstance(made, TrajectoryFilter)
    return made.judge(trajectory)


def reason(name: str, trajectory: Trajectory, **options: Json) -> str | None:
    finding = judge(name, trajectory, **options)
    return None if finding is None else finding.reason


def call(number: int = 0, name: str = "find_order", **arguments: Json) -> Message:
    return Message(
        role=Role.ASSISTANT,
        tool_calls=(ToolCall(id=f"call_{number}", name=name, arguments=arguments or {"order_id": 17}),),
    )


def result(number: int = 0, content: str = "sent", name: str = "find_order") -> Message:
    return Message(role=Role.TOOL, content=content, tool_call_id=f"call_{number}", name=name)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def tool(parameters: JsonObject | None, name: str = "find_order") -> JsonObject:
    function: JsonObject = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("setting", [("correctness", "max_failed_share"), ("efficiency", "max_wasted_share")])
def test_a_share_is_the_decimal_that_was_written(setting: tuple[str, str]) -> None:
    name, option = setting
    contents = ["error"] * 29 + ["sent"] * 21
    asked = [(call(number, order_id=number), result(number, text)) for number, text in enumerate(contents)]
    trajectory = make_trajectory(messages=[USER, *(message for pair in asked for message in pair), ANSWER])

    # 29 of 50 are 58 %, although 0.58 * 50 is less than 29 in floating point.
    assert judge(name, trajectory, **{option: 0.58}) is None
    assert judge(name, trajectory, **{option: 0.57}) is not None


def test_a_sound_trajectory_passes_every_filter() -> None:
    assert [judge(name, make_trajectory()) for name in ALONE] == [None, None, None]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [USER, call(name="refund"), result(name="refund"), ANSWER],
            Finding(reason="unknown_tool", detail="turn 0, refund: no tool has this name"),
        ),
        (
            [USER, call(order_id="17"), result(), ANSWER],
            Finding(reason="bad_arguments", detail="turn 0, find_order: $.order_id: '17' is not of type 'integer'"),
        ),
        (
            [USER, call(), ANSWER],
            Finding(reason="no_result", detail="turn 0, find_order: no message answers it"),
        ),
        (
            [USER, call(1, order_id=17, fast=True), result(1), ANSWER],
            Finding(reason="unnamed_argument", detail="turn 0, find_order: fast is not in its schema"),
        ),
        ([USER, CALL, RESULT, ANSWER, user("And 18?"), call(1, order_id=18)], None),
        ([USER, ANSWER], None),
    ],
)
def test_correctness_finds_the_first_wrong_call(messages: Sequence[Message], expected: Finding | None) -> None:
    assert judge("correctness", make_trajectory(messages=messages)) == expected


def test_parallel_calls_of_one_name_each_need_a_result_of_their_own() -> None:
    both = Message(role=Role.ASSISTANT, tool_calls=(*call(0).tool_calls, *call(1).tool_calls))

    assert reason("correctness", make_trajectory(messages=[USER, both, result(1), result(0), ANSWER])) is None
    assert reason("correctness", make_trajectory(messages=[USER, both, result(1), ANSWER])) == "no_result"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"last_call_fails": "drop"}, "last_call_fails"),
        ({"max_failed_share": 0.5}, None),
        ({"max_failed_share": 0.4}, "too_many_failed_calls"),
        ({"max_failed_share": 0.4, "error_pattern": "^Broken"}, None),
    ],
)
def test_correctness_drops_by_the_last_call_or_by_the_share_that_failed(
    options: JsonObject, expected: str | None
) -> None:
    messages = [USER, call(0), result(0), call(1), result(1, "Error: no such order"), ANSWER]

    assert reason("correctness", make_trajectory(messages=messages), **options) == expected


@pytest.mark.parametrize(
    ("content", "fails"),
    [
        ("error: no such order", True),
        ("Errors are 3 in all", False),
        ("No error", False),
        ('{"error": "no such order"}', True),
        ('{"error": null, "order": 17}', False),
        ('{"success": false}', True),
        ('{"success": true}', False),
        ('{"error": "cut', False),
        ("", False),
    ],
)
def test_a_result_reports_an_error_by_its_text_or_by_a_key(content: str, fails: bool) -> None:
    trajectory = make_trajectory(messages=[USER, call(), result(content=content), ANSWER])

    assert reason("correctness", trajectory, last_call_fails="drop") == ("last_call_fails" if fails else None)


def test_calls_without_any_schema_cannot_be_checked() -> None:
    trajectory = make_trajectory(tools=[])

    assert reason("correctness", trajectory) == "no_schemas"
    assert reason("correctness", trajectory, without_tools="keep") is None
    assert reason("correctness", make_trajectory(messages=[USER, ANSWER], tools=[])) is None


LOCAL_REFERENCE: JsonObject = {
    "type": "object",
    "properties": {"order_id": {"$ref": "#/$defs/id"}},
    "$defs": {"id": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("parameters", "order_id", "expected"),
    [
        (None, 17, None),
        ({}, 17, None),
        ({"type": "object"}, 17, None),
        ({"type": "object", "properties": {}}, 17, "unnamed_argument"),
        ({"type": "object", "properties": {}, "additionalProperties": True}, 17, None),
        (LOCAL_REFERENCE, 17, None),
        (LOCAL_REFERENCE, "17", "bad_arguments"),
        ({"type": "object", "properties": {"order_id": {"$ref": "#/$defs/none"}}}, 17, "unusable_schema"),
        ({"type": "object", "properties": {"order_id": {"$ref": "http://127.0.0.1:9/x"}}}, 17, "unusable_schema"),
        ({"type": "object", "$ref": "#"}, 17, "unusable_schema"),
        ({"type": "object", "properties": {"order_id": {"pattern": "("}}}, "17", "unusable_schema"),
        ({"type": "object", "properties": {"order_id": {"multipleOf": 0.5}}}, 10**400, "unusable_schema"),
    ],
)
def test_unusual_schemas_are_applied_or_reported_as_unusable(
    parameters: JsonObject | None, order_id: Json, expected: str | None
) -> None:
    trajectory = make_trajectory(messages=[USER, call(order_id=order_id), result(), ANSWER], tools=[tool(parameters)])

    assert reason("correctness", trajectory) == expected


def test_a_huge_argument_is_quoted_in_part() -> None:
    finding = judge("correctness", make_trajectory(messages=[USER, call(order_id="x" * 10**6), result(), ANSWER]))

    assert finding is not None
    assert len(finding.detail) < 500


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER, ANSWER, ANSWER], "consecutive_assistant"),
        ([USER, RESULT, ANSWER], "tool_result_without_call"),
        ([USER, USER, ANSWER], "consecutive_user"),
        ([USER, ANSWER, SYSTEM, USER, ANSWER], "late_system"),
        ([SYSTEM, SYSTEM, USER, ANSWER], None),
        ([], "no_messages"),
        ([USER, ANSWER], None),
    ],
)
def test_coherence_drops_messages_in_an_impossible_order(messages: Sequence[Message], expected: str | None) -> None:
    assert reason("coherence", make_trajectory(messages=messages)) == expected


@pytest.mark.parametrize(
    ("messages", "last_turn", "expected"),
    [
        ([USER, CALL], "result", "ends_in_call"),
        ([USER, CALL], "any", None),
        ([USER, CALL, RESULT], "result", None),
        ([USER, CALL, RESULT], "text", "ends_in_call"),
        ([USER, CALL, RESULT, ANSWER, user("Thanks.")], "text", None),
    ],
)
def test_coherence_checks_the_last_assistant_turn(
    messages: Sequence[Message], last_turn: str, expected: str | None
) -> None:
    trajectory = make_trajectory(messages=messages)

    assert reason("coherence", trajectory, last_turn=last_turn) == expected
    assert reason("coherence", trajectory, last_turn=last_turn, final_tools=["find_order"]) is None


def test_a_turn_is_repeated_if_it_says_the_same_after_the_same_result() -> None:
    looping = [USER, call(0), result(0), call(1), result(1), call(2), result(2), ANSWER]
    waiting = [USER, call(0), result(0, "open"), call(1), result(1, "closed"), call(2), result(2, "sent"), ANSWER]

    assert judge("coherence", make_trajectory(messages=waiting)) is None
    finding = judge("coherence", make_trajectory(messages=looping))
    assert finding is not None
    assert finding.reason == "repeated_turn"
    assert finding.detail.startswith("1 repeated turns, the first is turn 2: ")
    assert reason("coherence", make_trajectory(messages=looping), max_repeated_turns=1) is None


@pytest.mark.parametrize(
    ("said", "value", "is_invented"),
    [
        ("My order is AB-1234.", "AB-1234", False),
        ("My order is ab 1234.", "AB-1234", False),
        ("My order is AB-1235.", "AB-1234", True),
        ("On the 3rd of May, please.", "2024-05-03", False),
        ("Half of it.", "12.50", False),
        ("Where is it?", "my order no 17", False),
        ("Where is it?", "A17", False),
        ("Where is it?", "v2.0", True),
    ],
)
def test_an_identifier_that_no_message_has_is_invented(said: str, value: str, is_invented: bool) -> None:
    trajectory = make_trajectory(messages=[SYSTEM, user(said), call(order_id=value), result(), ANSWER])

    assert [found.value for found in invented_values(trajectory)] == ([value] if is_invented else [])


def test_an_identifier_is_invented_if_only_the_assistant_or_a_later_message_has_it() -> None:
    guess = Message(role=Role.ASSISTANT, content="I take AB-1234.")
    messages = [USER, guess, USER, call(0, order_id="AB-1234"), result(content="AB-1234"), ANSWER]

    finding = judge("coherence", make_trajectory(messages=messages))

    assert finding == Finding(reason="invented_value", detail="turn 1, find_order.order_id: 'AB-1234'")
    assert judge("coherence", make_trajectory(messages=messages), may_invent=["find_order.order_id"]) is None
    assert judge("coherence", make_trajectory(messages=messages), max_invented_values=1) is None


def test_a_value_in_a_tools_schema_is_not_invented() -> None:
    tools = [tool({"type": "object", "properties": {"version": {"enum": ["v2.0"]}}})]

    assert invented_values(make_trajectory(messages=[USER, call(version="v2.0"), result(), ANSWER], tools=tools)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"max_calls": 4}, None),
        ({"max_calls": 3}, Finding(reason="too_many_calls", detail="4 calls, at most 3 are allowed")),
        ({"max_repeated_calls": 1}, None),
        ({"max_repeated_calls": 0}, Finding(reason="repeated_calls", detail="1 of 4 calls, first turn 1, find_order")),
        ({"max_wasted_share": 0.5}, None),
        (
            {"max_wasted_share": 0.49},
            Finding(reason="wasted_calls", detail="2 of 4 calls: 1 repeated, 1 failed, first turn 1, find_order"),
        ),
    ],
)
def test_efficiency_counts_calls_and_those_that_repeat_or_fail(options: JsonObject, expected: Finding | None) -> None:
    messages = [USER]
    for number, content in enumerate(["sent", "sent", "Error: busy", "back"]):
        messages += [call(number), result(number, content)]

    assert judge("efficiency", make_trajectory(messages=[*messages, ANSWER]), **options) == expected


def write_benchmark(folder: Path, rows: Sequence[str]) -> Path:
    path = folder / "benchmark.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [str(i) for i in range(len(rows))], "problem": list(rows)}), path)
    return path


def test_leakage_names_the_row_that_shares_eight_words(tmp_path: Path) -> None:
    path = write_benchmark(tmp_path, ["What is two?", f"Hard one. {QUESTION}."])
    leaked = make_trajectory(messages=[user("Please: a TRAIN leaves -- the station at noon, and so on"), ANSWER])
    near = make_trajectory(messages=[user("A train leaves the station at noon or later"), ANSWER])

    finding = judge("leakage", leaked, files=[str(path)], columns=["problem"])

    assert finding == Finding(
        reason="benchmark_overlap",
        detail=f"{path}, row 2: 1 n-grams, first 'a train leaves the station at noon and'",
    )
    assert judge("leakage", near, files=[str(path)]) is None
    assert judge("leakage", near, files=[str(path)], n=7) is not None
    assert judge("leakage", leaked, files=[str(path)], min_ngrams=2) is None


def test_leakage_compares_the_users_messages_unless_all_text_is_asked_for(tmp_path: Path) -> None:
    files: list[Json] = [str(write_benchmark(tmp_path, [QUESTION]))]
    solved = make_trajectory(messages=[USER, call(order_id=1, note=QUESTION), result(), ANSWER])
    split = make_trajectory(messages=[user(QUESTION[:30]), ANSWER, user(QUESTION[30:50]), ANSWER])

    assert judge("leakage", solved, files=files) is None
    assert judge("leakage", solved, files=files, text="all") is not None
    assert judge("leakage", split, files=files) is None


def test_a_phrase_in_many_rows_is_no_leak_and_equal_rows_count_once(tmp_path: Path) -> None:
    phrase = "Put your final answer within a box at the end"
    rows = [f"{phrase} {number}" for number in range(3)] + [QUESTION] * 5
    files: list[Json] = [str(write_benchmark(tmp_path, rows))]
    prompt, leaked = (make_trajectory(messages=[user(text), ANSWER]) for text in (phrase, QUESTION))

    assert judge("leakage", prompt, files=files, columns=["problem"], max_rows_per_ngram=2) is None
    assert judge("leakage", prompt, files=files, columns=["problem"], max_rows_per_ngram=3) is not None
    assert judge("leakage", leaked, files=files, columns=["problem"], max_rows_per_ngram=1) is not None


def test_each_line_of_a_text_file_is_a_row_of_the_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.txt"
    path.write_text(f"short\n\n{QUESTION}\n")

    finding = judge("leakage", make_trajectory(messages=[user(QUESTION), ANSWER]), files=[str(path)])

    assert finding is not None
    assert finding.detail.startswith(f"{path}, line 3: 7 n-grams")
    assert make_filter("leakage", {"files": [str(path)]}).facts() == {  # type: ignore[union-attr]
        "num_benchmark_rows": 2,
        "num_rows_too_short": 1,
        "num_ngrams_ignored": 0,
    }


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["two words"], {}, "no row of .* has 8 words"),
        ([QUESTION], {"columns": ["question"]}, "row 1 has no column 'question', only id, problem"),
    ],
)
def test_a_benchmark_that_no_trajectory_could_overlap_with_is_refused(
    tmp_path: Path, rows: Sequence[str], options: JsonObject, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make_filter("leakage", {"files": [str(write_benchmark(tmp_path, rows))], **options})


def test_a_missing_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl"):
        make_filter("leakage", {"files": [str(tmp_path / "none.jsonl")]})


@settings(deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_words_of_ascii_text_are_the_same_by_the_fast_and_the_general_way(text: str) -> None:
    # A letter beyond ASCII makes `words_of` take the general way.
    assert words_of(text) == words_of(f"{text} \u00df")[:-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't STOP_now!", ["don", "t", "stop", "now"]),
        ("Stra\u00dfe \uff11\uff12", ["strasse", "12"]),
        ("\u4eca\u5929 ok", ["\u4eca", "\u5929", "ok"]),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_and_digits_in_one_unicode_form(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_ngrams_of_other_words_or_order_have_other_hashes() -> None:
    words = ["a", "b", "a", "b", "c"]

    assert len(ngram_hashes(words, 2)) == 4
    assert len(set(ngram_hashes(words, 2).tolist())) == 3
    assert ngram_hashes(words, 6).tolist() == []


@pytest.mark.parametrize("name", [*ALONE, "near_duplicates", "diversity", "difficulty", "solved", "leakage"])
def test_an_unknown_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}\.colour: unknown key; known: "):
        make_filter(name, {"colour": "red", **({"files": ["x"]} if name == "leakage" else {})})


def test_an_unknown_filter_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown filter 'beauty'; known: coherence, correctness, difficulty"):
        make_filter("beauty", {})


MESSAGES = st.sampled_from([SYSTEM, USER, CALL, RESULT, ANSWER, call(name="refund"), call(order_id="AB-1234")])


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=8), st.sampled_from([(), (FIND_ORDER,)]))
def test_filters_judge_any_order_of_messages_and_say_the_same_again(
    messages: list[Message], tools: Sequence[JsonObject]
) -> None:
    trajectory = make_trajectory(messages=messages, tools=tools)

    for name, options in (
        ("correctness", {"max_failed_share": 0.1, "last_call_fails": "drop"}),
        ("coherence", {"last_turn": "text"}),
        ("efficiency", {"max_repeated_calls": 0, "max_wasted_share": 0.1}),
    ):
        assert judge(name, trajectory, **options) == judge(name, trajectory, **options)
