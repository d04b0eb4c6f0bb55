import json
import pickle
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import ANSWER, CALL, FIND_ORDER, RESULT, SYSTEM, USER, make_trajectory
from verl_pivot.data.files import Place, RawRow, in_chunks, read_rows
from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.messages import (
    check_conversation,
    parse_message,
)
from verl_pivot.data.tool_schemas import parse_tools, refuse_foreign_nulls
from verl_pivot.data.trajectories import parse_trajectory, read_trajectories, trajectory_as_dict
from verl_pivot.data.turns import PROVENANCE, turns
from verl_pivot.errors import DataError
from verl_pivot.formats.import_sink import ImportReport
from verl_pivot.formats.importing import import_files, rejected_path
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory


def json_values(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Json]:
    return st.recursive(
        st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )


JSON = json_values(st.integers())
CALLS = st.builds(
    ToolCall, name=st.text(min_size=1), arguments=st.dictionaries(st.text(), JSON, max_size=3), id=st.none() | st.text()
)
NEMO_GYM_CALL: JsonObject = {"type": "function_call", "call_id": "c", "name": "find_order", "arguments": "{}"}
MESSAGES = st.builds(
    Message,
    role=st.sampled_from([Role.SYSTEM, Role.USER, Role.TOOL]),
    content=st.text(),
    tool_call_id=st.none() | st.text(),
    name=st.none() | st.text(),
) | st.builds(
    Message,
    role=st.just(Role.ASSISTANT),
    content=st.text(),
    reasoning=st.none() | st.text(),
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
)


@given(MESSAGES)
def test_parse_message_is_the_inverse_of_as_dict(message: Message) -> None:
    assert parse_message(message.as_dict()) == message


@given(st.lists(MESSAGES, max_size=4), st.none() | st.booleans(), st.dictionaries(st.text(), JSON, max_size=3))
def test_parse_trajectory_is_the_inverse_of_as_dict(
    messages: list[Message], passed: bool | None, metadata: JsonObject
) -> None:
    trajectory = make_trajectory(messages=messages, passed=passed, metadata=metadata)

    assert parse_trajectory(trajectory_as_dict(trajectory)) == trajectory


@given(JSON)
def test_any_other_value_than_a_message_raises_bad_row_error(value: Json) -> None:
    with pytest.raises(BadRowError):
        parse_message(value)


def test_a_message_with_null_content_and_arguments_as_text_is_read() -> None:
    message = parse_message(
        {
            "role": "assistant",
            "content": None,
            "function_call": None,
            "reasoning": "Look it up.",
            "tool_calls": [{"id": "call_0", "function": {"name": "find_order", "arguments": '{"order_id": 17}'}}],
        }
    )

    assert message == Message(role=Role.ASSISTANT, reasoning="Look it up.", tool_calls=CALL.tool_calls)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Where is "}, {"type": "input_text", "text": "order 17?"}]

    assert parse_message({"role": "user", "content": parts}) == USER


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ({"role": "human", "content": "hi"}, "unknown_role", "role 'human'; known: assistant, developer, system, tool"),
        ({"role": "user", "content": None}, "not_text", "content must be text, got null"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "not_text", "type 'image_url'"),
        ({"role": "user", "content": "", "tool_calls": [CALL.tool_calls[0].as_dict()]}, "unknown_role", "role 'user'"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "unsupported_content", "'function_call'"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "bad_arguments", "of f .* got null"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]},
            "bad_arguments",
            "arguments of f: not JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "bad_arguments",
            "must be a JSON object, got a list",
        ),
        ({"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, "two_reasonings", "keep one"),
        ("hello", "not_an_object", "a message must be a JSON object, got text"),
    ],
)
def test_a_bad_message_is_refused_with_its_reason(message: Json, reason: str, text: str) -> None:
    with pytest.raises(BadRowError, match=text) as refused:
        parse_message(message)

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_messages"),
        ([SYSTEM, USER], "no_assistant_turn"),
        ([ANSWER, USER], "no_assistant_turn"),
        ([USER, CALL, CALL], "consecutive_assistant"),
        ([USER, ANSWER, ANSWER], "consecutive_assistant"),
        ([USER, Message(role=Role.ASSISTANT)], "empty_action"),
        ([USER, RESULT, ANSWER], "tool_result_without_call"),
        ([USER, CALL, RESULT, RESULT, ANSWER], "tool_result_without_call"),
        ([USER, CALL, USER, RESULT, ANSWER], "tool_result_without_call"),
        ([USER, CALL, Message(role=Role.TOOL, tool_call_id="other"), ANSWER], "tool_result_without_call"),
    ],
)
def test_a_conversation_that_cannot_have_happened_is_refused(messages: list[Message], reason: str) -> None:
    with pytest.raises(BadRowError) as refused:
        check_conversation(messages)

    assert refused.value.reason == reason


def test_parallel_calls_without_ids_are_answered_in_order() -> None:
    calls = tuple(ToolCall(name="find_order", arguments={"order_id": number}) for number in (1, 1))
    result = Message(role=Role.TOOL, content="{}", name="find_order")

    check_conversation([USER, Message(role=Role.ASSISTANT, tool_calls=calls), result, result, ANSWER])


def test_the_flat_tools_of_the_responses_api_are_nested() -> None:
    properties: JsonObject = {"order_id": {"type": "integer"}}
    parameters: JsonObject = {"type": "object", "properties": properties, "required": ["order_id"]}
    flat: Json = [
        {
            "type": "function",
            "name": "find_order",
            "description": "Look one order up.",
            "strict": None,
            "parameters": parameters,
        }
    ]

    assert parse_tools(flat) == parse_tools(json.dumps([FIND_ORDER])) == (FIND_ORDER,)


@pytest.mark.parametrize(
    ("tools", "reason", "text"),
    [
        ("[{", "bad_tools", "tools: not JSON"),
        ({"a": 1}, "not_a_list", "tools must be a JSON list, got an object"),
        ([{"type": "web_search"}], "bad_tools", "type 'web_search'"),
        ([{"name": "f"}, {"name": "f"}], "bad_tools", "two tools are named 'f'"),
        ([{"name": "f", "parameters": {"type": "string"}}], "bad_tools", "schema of type object"),
        ([{"name": "f", "input_schema": {"type": "object"}}], "bad_tools", "input_schema: rename it to parameters"),
        ([{"function": {"name": "f", "inputSchema": {}}}], "bad_tools", "tool f has no parameters but inputSchema"),
        (
            [{"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}],
            "bad_tools",
            "not a JSON schema: 'text'",
        ),
        (
            [{"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": None}}}],
            "mangled_by_parquet",
            r"f\.properties\.b is null .* store this column as JSON strings",
        ),
    ],
)
def test_anything_but_a_tool_schema_is_refused(tools: Json, reason: str, text: str) -> None:
    with pytest.raises(BadRowError, match=text) as refused:
        parse_tools(tools)

    assert refused.value.reason == reason


def test_a_schema_may_have_a_null_default() -> None:
    tool: JsonObject = {"name": "f", "parameters": {"properties": {"a": {"type": ["string", "null"], "default": None}}}}

    assert len(parse_tools([tool])) == 1


def test_null_is_accepted_only_for_an_argument_that_the_tool_has() -> None:
    refuse_foreign_nulls([call_with({"order_id": None})], (FIND_ORDER,))
    refuse_foreign_nulls([call_with({"amount": None})], ({"type": "function", "function": {"name": "find_order"}},))
    with pytest.raises(BadRowError, match=r"find_order\.amount is null, and find_order has no such argument"):
        refuse_foreign_nulls([call_with({"order_id": 17, "amount": None})], (FIND_ORDER,))


def test_inline_thinking_becomes_reasoning_and_the_option_strip_drops_it() -> None:
    answer: JsonObject = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is sent."}
    row = openai_row(messages=[USER.as_dict(), answer])

    kept = read_one(row).messages[-1]
    stripped = read_one(row, ImportOptions(thinking="strip")).messages[-1]

    assert kept == Message(role=Role.ASSISTANT, reasoning="hm", content="It is sent.")
    assert stripped == Message(role=Role.ASSISTANT, content="It is sent.")


def test_a_second_message_with_calls_is_not_joined_to_the_calls_before_it() -> None:
    row = openai_row(messages=[USER.as_dict(), CALL.as_dict(), CALL.as_dict()])

    with pytest.raises(BadRowError, match="messages 1 and 2 are both assistant messages"):
        read_one(row)


@pytest.mark.parametrize("content", ["<think>hm. It is sent.", "<think>hm</think><think>so</think>It is sent."])
def test_thinking_without_a_clear_end_is_refused(content: str) -> None:
    row = openai_row(messages=[USER.as_dict(), {"role": "assistant", "content": content}])

    with pytest.raises(BadRowError, match="a <think> is never closed, or follows other reasoning of the message"):
        read_one(row)


def test_text_and_the_calls_after_it_are_joined_and_counted(tmp_path: Path) -> None:
    text = Message(role=Role.ASSISTANT, content="Let me see.")
    conversation = [USER, text, CALL, RESULT, ANSWER]

    report = import_all([openai_row(messages=[message.as_dict() for message in conversation])], tmp_path)

    assert (report.num_kept, report.num_turns, report.num_merged_turns) == (1, 2, 1)
    messages = next(read_trajectories(tmp_path / "out.jsonl")).messages
    assert messages[1] == Message(role=Role.ASSISTANT, content="Let me see.", tool_calls=CALL.tool_calls)


@pytest.mark.parametrize(
    ("outcome", "passed"),
    [
        ({}, None),
        ({"reward": None}, None),
        ({"reward": 1.0}, True),
        ({"reward": 0.5}, False),
        ({"passed": True}, True),
        ({"resolved": False}, False),
        ({"passed": True, "reward": 0}, False),
    ],
)
def test_a_trajectory_passed_if_every_outcome_column_says_so(outcome: JsonObject, passed: bool | None) -> None:
    assert read_one({**openai_row(), **outcome}).passed is passed


def test_an_outcome_that_is_text_is_refused() -> None:
    with pytest.raises(BadRowError, match="reward must be true, false or a number, got text"):
        read_one({**openai_row(), "reward": "good"})


def test_ids_come_from_the_row_then_from_task_and_trial_then_from_the_content() -> None:
    without_id = {key: value for key, value in openai_row().items() if key != "id"}

    assert read_one({**without_id, "id": 7}).id == "7"
    assert read_one({**without_id, "trajectory_id": "a-1", "task_id": "a"}).id == "a-1"
    assert read_one({**without_id, "task_id": 3, "trial": 2}).id == "file-3-2"
    assert read_one(without_id).id == read_one({**without_id, "reward": 1}).id
    assert read_one(without_id).id.startswith("sha-")


def test_trials_of_one_task_share_a_split() -> None:
    first, second = (read_one({**openai_row(), "id": f"run-{trial}", "task_id": "refund-9"}) for trial in (0, 1))

    assert [split_by(trajectory) for trajectory in (first, second)] == ["refund-9", "refund-9"]


def test_the_metadata_and_the_place_of_a_row_are_kept() -> None:
    trajectory = read_one({**openai_row(), "metadata": '{"seed": 3}', "reward": 1})

    assert trajectory.metadata == {
        "seed": 3,
        PROVENANCE: {"file": "file.jsonl", "line": 1, "split_by": "shop-1", "id": "shop-1", "reward": 1},
    }


def test_importing_an_imported_file_changes_nothing(tmp_path: Path) -> None:
    verifier: JsonObject = {"name": "tool_call", "options": {"mode": "strict"}}
    import_all([{**openai_row(), "metadata": {"seed": 3}, "verifier": verifier}], tmp_path)
    first = list(read_trajectories(tmp_path / "out.jsonl"))

    report = import_files([tmp_path / "out.jsonl"], tmp_path / "again.jsonl", ImportOptions())

    assert list(read_trajectories(tmp_path / "again.jsonl")) == first
    assert (first[0].verifier, first[0].verifier_options) == ("tool_call", {"mode": "strict"})
    assert report.ignored_columns == set()


def test_the_error_of_a_row_is_the_same_in_another_process() -> None:
    error = pickle.loads(pickle.dumps(BadRowError("bad_tools", "a tool needs a name")))

    assert (error.reason, str(error)) == ("bad_tools", "a tool needs a name")


STRICT: JsonObject = {"mode": "strict"}
LOOSE = ImportOptions(verifier_options={"mode": "name_only"})


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({}, {"mode": "name_only"}),
        ({"verifier_options": STRICT}, STRICT),
        ({"verifier_options": '{"mode": "strict"}'}, STRICT),
        ({"verifier_options": {}}, {"mode": "name_only"}),
        ({"verifier": "tool_call"}, {"mode": "name_only"}),
        ({"verifier": "tool_call", "verifier_options": {}}, {}),
        ({"verifier": "tool_call", "verifier_options": STRICT}, STRICT),
        ({"verifier": {"name": "tool_call", "options": STRICT}, "verifier_options": {}}, STRICT),
    ],
)
def test_options_of_a_row_go_to_the_verifier_that_the_row_gets(columns: JsonObject, options: JsonObject) -> None:
    row = RawRow(place=Place(file="file.jsonl", unit="line", number=1), raw={**openai_row(), **columns})

    trajectory = parse_row(row, LOOSE).trajectory

    assert (trajectory.verifier, trajectory.verifier_options) == ("tool_call", options)


def test_options_at_two_places_of_a_row_are_refused() -> None:
    with pytest.raises(BadRowError, match="verifier has a place for its options"):
        read_one({**openai_row(), "verifier": {"name": "tool_call"}, "verifier_options": STRICT})


def test_failed_trajectories_are_counted_and_kept_only_with_outcome_all(tmp_path: Path) -> None:
    rows = [{**openai_row(id=f"shop-{i}"), "reward": reward} for i, reward in enumerate([1, 0, 0, None])]

    passed, everything = import_all(rows, tmp_path), import_all(rows, tmp_path, ImportOptions(outcome="all"))

    assert (passed.num_rows, passed.num_kept, passed.num_not_passed, passed.num_unknown_outcome) == (4, 2, 2, 1)
    assert (everything.num_rows, everything.num_kept, everything.num_not_passed) == (4, 4, 0)


def test_columns_that_were_not_read_are_reported(tmp_path: Path) -> None:
    report = import_all([{**openai_row(), "model_patch": "diff", "exit_status": "submitted"}], tmp_path)

    assert report.ignored_columns == {"model_patch", "exit_status"}


@pytest.mark.parametrize("as_structs", [False, True])
def test_parquet_is_read_as_json_strings_or_as_structs(tmp_path: Path, as_structs: bool) -> None:
    row = openai_row()
    columns = row if as_structs else {**row, "messages": json.dumps(row["messages"]), "tools": json.dumps(row["tools"])}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([columns]), tmp_path / "in.parquet")

    import_files([tmp_path / "in.parquet"], tmp_path / "out.jsonl", ImportOptions())

    trajectory = next(read_trajectories(tmp_path / "out.jsonl"))
    assert trajectory.messages == make_trajectory().messages
    assert trajectory.tools == (FIND_ORDER,)


# NeMo Gym


def test_items_of_one_response_are_one_assistant_message() -> None:
    items: list[Json] = [
        {"role": "user", "content": "Where is order 17?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look it up."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "call_0", "name": "find_order", "arguments": '{"order_id": 17}'},
        {"type": "function_call_output", "call_id": "call_0", "output": "{}"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Tell him."}]},
    ]

    trajectory = read_one(nemo_gym_row(items, {"type": "message", "content": "It is on its way."}))

    assert trajectory.messages == (
        USER,
        Message(role=Role.ASSISTANT, content="Let me see.", reasoning="Look it up.", tool_calls=CALL.tool_calls),
        Message(role=Role.TOOL, content="{}", tool_call_id="call_0"),
        Message(role=Role.ASSISTANT, content="It is on its way.", reasoning="Tell him."),
    )
    assert [turn.index for turn in turns(trajectory)] == [1]


def test_an_expected_action_is_a_call_or_a_batch_of_calls_or_a_message() -> None:
    call: JsonObject = {"type": "function_call", "name": "find_order", "arguments": '{"order_id": 17}'}
    batch: JsonObject = {"type": "function_call_batch", "calls": [call, {**call, "arguments": {"order_id": 18}}]}

    experts = [
        turns(read_one(nemo_gym_row("Where is order 17?", action)))[0].expert
        for action in (call, batch, {"type": "message", "content": "It is on its way."})
    ]

    assert [[call.arguments["order_id"] for call in expert.tool_calls] for expert in experts] == [[17], [17, 18], []]
    assert experts[2] == ANSWER


def test_a_batch_without_a_call_is_no_expected_action() -> None:
    items = [USER.as_dict(), {"role": "assistant", "content": "Let me see."}, {"role": "user", "content": "And?"}]

    with pytest.raises(BadRowError, match="expected_action is a batch without a call") as refused:
        read_one(nemo_gym_row(items, {"type": "function_call_batch", "calls": []}))

    assert refused.value.reason == "no_expected_action"


def test_without_an_expected_action_the_text_of_expected_answer_is_the_experts_action() -> None:
    row = {**nemo_gym_row("ls", None), "expected_answer": '{"commands": []}'}

    assert turns(read_one(row))[0].expert == Message(role=Role.ASSISTANT, content='{"commands": []}')


def test_rows_of_one_trajectory_share_its_id_and_hold_different_turns(tmp_path: Path) -> None:
    greeting: list[Json] = [{"role": "user", "content": "hi"}]
    later = [*greeting, ANSWER.as_dict(), USER.as_dict()]
    message: JsonObject = {"type": "message", "content": "yes"}
    rows = [
        {**nemo_gym_row(items, message), "trajectory_id": "t", "uuid": str(len(items))} for items in (greeting, later)
    ]

    report = import_all([*rows, rows[1]], tmp_path)

    kept = [turn for trajectory in read_trajectories(tmp_path / "out.jsonl") for turn in turns(trajectory)]
    assert [turn.id for turn in kept] == ["t:0", "t:1"]
    assert kept[0].metadata["uuid"] == "1"
    assert dict(report.rejected) == {"duplicate_id": 1}


@pytest.mark.parametrize(
    ("first", "second", "rejected"),
    [([0, 2], [1], {}), ([0, 2], [2], {"duplicate_id": 1}), ([0, 1], [2], {}), ([1], [0, 1, 2], {"duplicate_id": 1})],
)
def test_two_rows_of_a_trajectory_may_have_turns_between_each_others(
    first: list[Json], second: list[Json], rejected: dict[str, int], tmp_path: Path
) -> None:
    messages = [each.as_dict() for each in (USER, ANSWER, USER, ANSWER, USER, ANSWER)]

    report = import_all([{"id": "t", "messages": messages, "expert_turns": each} for each in (first, second)], tmp_path)

    assert dict(report.rejected) == rejected


@pytest.mark.parametrize("as_parts", [False, True])
def test_calls_in_text_are_read_from_parts_as_from_a_string(as_parts: bool) -> None:
    def said(role: str, text: str) -> JsonObject:
        return {"role": role, "content": [{"type": "text", "text": text}] if as_parts else text}

    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    result = "<tool_response>\n1\n</tool_response>"
    row: JsonObject = {
        "messages": [said("user", "Go."), said("assistant", call), said("user", result), said("assistant", "Done.")]
    }

    read = read_one(row)

    assert [(each.name, each.arguments) for each in read.messages[1].tool_calls] == [("f", {"x": 1})]
    assert (read.messages[2].role, read.messages[2].content) == (Role.TOOL, "1")


def test_rows_without_ids_of_one_conversation_share_a_split() -> None:
    first: list[Json] = [SYSTEM.as_dict(), USER.as_dict()]
    second = [*first, ANSWER.as_dict(), {"role": "user", "content": "Thanks."}]
    message: JsonObject = {"type": "message", "content": "yes"}

    early, late, other = (
        read_one(nemo_gym_row(items, message)) for items in (first, second, [SYSTEM.as_dict(), *second[3:]])
    )

    assert early.id != late.id
    assert split_by(early) == split_by(late) != split_by(other)


def test_instructions_are_the_system_message() -> None:
    row = nemo_gym_row("Where is order 17?", {"type": "message", "content": "It is on its way."})
    params = row["responses_create_params"]
    assert isinstance(params, dict)
    params["instructions"] = "You work in a shop."

    assert read_one(row).messages == (SYSTEM, USER, ANSWER)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([USER.as_dict(), ANSWER.as_dict()], "state_ends_in_assistant"),
        ([USER.as_dict(), NEMO_GYM_CALL, ANSWER.as_dict(), USER.as_dict()], "consecutive_assistant"),
        ([USER.as_dict(), {"type": "computer_call"}], "unknown_item"),
        ([USER.as_dict(), {"type": "reasoning", "summary": [], "encrypted_content": "x"}], "encrypted_reasoning"),
        ([USER.as_dict(), {"type": "function_call_output", "call_id": "a", "output": ""}], "tool_result_without_call"),
    ],
)
def test_a_bad_state_of_nemo_gym_is_refused_with_its_reason(items: list[Json], reason: str) -> None:
    with pytest.raises(BadRowError) as refused:
        read_one(nemo_gym_row(items, {"type": "message", "content": "yes"}))

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "item",
    [
        b'{"a": "\xff"}',
        b'{"a": "\xc0\x80"}',
        b'{"\xc0\x80": 1}',
        b'{"\xed\xa0\x80": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_an_array_of_json_that_cannot_be_read_is_refused_behind_its_last_row(tmp_path: Path, item: bytes) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a": 1}, ' + item + b"]")
    with pytest.raises(DataError, match=r"rows.json cannot be read \(after row [01]\): "):
        list(read_rows(path))


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a": ', b"}")])
def test_an_item_of_100_000_levels_is_rejected_by_itself_in_little_memory(
    tmp_path: Path, pair: tuple[bytes, bytes]
) -> None:
    path = tmp_path / "rows.json"
    begin, end = pair
    path.write_bytes(b'[{"a": 1}, ' + begin * 100_000 + b"0" + end * 100_000 + b', [2, {"b": [true]}], 3]')
    tracemalloc.start()
    try:
        rows = list(read_rows(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [row.raw for row in rows] == [{"a": 1}, {}, [2, {"b": [True]}], 3]
    assert [row.place.number for row in rows] == [1, 2, 3, 4]
    assert peak < 10 << 20
    with pytest.raises(BadRowError, match="the row cannot be read: nested too deeply"):
        rows[1].decoded()


@pytest.mark.parametrize("name", ["rows.json", "rows.traj", "rows.jsonl"])
def test_a_line_of_100_000_levels_is_rejected_where_it_is_decoded(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"a": ' * 100_000 + b"0" + b"}" * 100_000 + b'\n{"a": 1}\n')

    first, second = read_rows(path)

    assert second.decoded() == {"a": 1}
    with pytest.raises(BadRowError) as refused:
        first.decoded()
    assert refused.value.reason == "not_json"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_a_chunk_has_few_rows_where_rows_are_large_whatever_their_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [{"text": "x" * (1 << 20)}] * 10
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{','.join(lines)}]")

    assert [len(chunk) for chunk in in_chunks(read_rows(path))] == [4, 4, 2]


@given(items=st.lists(json_values(st.integers(-(2**63), 2**63 - 1)), max_size=4))
def test_the_items_of_an_array_are_those_that_json_reads(
    tmp_path_factory: pytest.TempPathFactory, items: list[Json]
) -> None:
    path = tmp_path_factory.mktemp("array") / "rows.json"
    path.write_text(json.dumps([0, *items]))

    assert [row.raw for row in read_rows(path)] == [0, *items]


def test_every_row_is_either_kept_or_left_out_or_rejected_with_its_place(tmp_path: Path) -> None:
    rows = [openai_row(), openai_row(), {**openai_row(id="b"), "passed": False}, {"id": "c", "messages": []}]

    report = import_all(rows, tmp_path)

    assert report.num_rows == report.num_kept + report.num_not_passed + report.rejected.total() == 4
    lines = rejected_path(tmp_path / "out.jsonl").read_text().splitlines()
    assert [(json.loads(line)["line"], json.loads(line)["reason"]) for line in lines] == [
        (2, "duplicate_id"),
        (4, "no_messages"),
    ]
    assert json.loads(json.loads(lines[1])["raw"]) == {"id": "c", "messages": []}


def openai_row(*, id: str = "shop-1", messages: list[Json] | None = None) -> JsonObject:
    trajectory = make_trajectory()
    return {
        "id": id,
        "messages": [message.as_dict() for message in trajectory.messages] if messages is None else messages,
        "tools": list(trajectory.tools),
    }


def nemo_gym_row(items: Json, action: Json) -> JsonObject:
    return {"responses_create_params": {"input": items, "tools": [FIND_ORDER]}, "expected_action": action}


def call_with(arguments: JsonObject) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="find_order", arguments=arguments),))


def read_one(row: JsonObject, options: ImportOptions = ImportOptions()) -> Trajectory:  # noqa: B008  # frozen
    place = Place(file="runs/file.jsonl", unit="line", number=1)
    return parse_row(RawRow(place=place, raw=json.dumps(row).encode()), options).trajectory


def import_all(rows: list[JsonObject], folder: Path, options: ImportOptions = ImportOptions()) -> ImportReport:  # noqa: B008
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([path], folder / "out.jsonl", options)


def split_by(trajectory: Trajectory) -> Json:
    provenance = trajectory.metadata[PROVENANCE]
    assert isinstance(provenance, dict)
    return provenance["split_by"]
