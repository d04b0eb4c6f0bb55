"""Readers of foreign formats: every row is detected as its format, and read exactly or refused with its reason."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.factories import ANSWER, FIND_ORDER, SYSTEM, USER
from tests.support.format_examples import (
    BASH,
    CALL,
    EXAMPLES,
    HERMES_CALL,
    OPENAI_CALL,
    OPENAI_MESSAGES,
    SENT,
    TEXT_CALL,
    TEXT_PROMPT,
    TOOLACE_PROMPT,
    TOOLS,
    call_metadata,
    chat_messages,
    sharegpt_items,
)
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import PROVENANCE, turns
from verl_pivot.errors import ConfigError
from verl_pivot.formats import registry
from verl_pivot.formats.function_text import read_text_calls
from verl_pivot.formats.importing import import_files
from verl_pivot.formats.literals import parse_literal
from verl_pivot.formats.row_import import ImportOptions, ParsedRow, parse_row
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

GENERAL = {"openai", "sharegpt", "trl"}
OWN_FORMAT = """
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Message, Role


@register_format("letters", detect=lambda row: "letters" in row)
def read_letters(row):
    roles = (Role.USER, Role.ASSISTANT)
    messages = tuple(Message(role=role, content=text) for role, text in zip(roles, row["letters"]))
    return Conversation(messages=messages, id=row["no"], passed=True, columns=frozenset({"letters", "no"}))
"""


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_is_detected_as_its_format_and_as_no_other_special_one(name: str) -> None:
    example = EXAMPLES[name]

    claims = {known for known in registry.known_formats() if registry.format_named(known).detect(example.row)}

    assert registry.detected_format(example.row).name == example.format
    assert claims - GENERAL == {example.format} - GENERAL


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_gives_its_messages_tools_and_outcome(name: str) -> None:
    example = EXAMPLES[name]

    parsed = read(example.row)

    assert parsed.trajectory.messages == example.messages
    assert parsed.trajectory.tools == example.tools
    assert parsed.trajectory.passed is example.passed
    assert parsed == read(example.row, ImportOptions(format=example.format))


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.task])
def test_the_split_follows_the_task(name: str) -> None:
    assert split_by(read(EXAMPLES[name].row)) == EXAMPLES[name].task


@pytest.mark.parametrize("name", ["swe-agent, nebius", "openhands, output.jsonl"])
def test_trajectories_of_one_task_have_different_ids_without_a_trial_number(name: str) -> None:
    row = EXAMPLES[name].row
    key = "trajectory" if "trajectory" in row else "history"
    items = row[key]
    assert isinstance(items, list)

    first, second = read(row), read({**row, key: items[:-1] if key == "history" else items[:-2]})

    assert first.trajectory.id != second.trajectory.id
    assert first.trajectory.id.startswith("rows-repo-1-")
    assert split_by(first) == split_by(second) == "repo-1"


def test_only_columns_that_were_not_read_are_reported_as_ignored() -> None:
    assert read(EXAMPLES["sharegpt"].row).ignored_columns == frozenset()
    assert read(EXAMPLES["swe-agent, nebius"].row).ignored_columns == {"eval_logs", "generated_patch"}
    assert read(EXAMPLES["openhands, nebius"].row).ignored_columns == {"repo", "model_patch", "exit_status"}
    assert read(EXAMPLES["toucan"].row).ignored_columns == {
        "metadata",
        "question_quality_assessment",
        "response_quality_assessment",
    }


def test_the_provenance_keeps_the_ids_and_the_outcome_of_the_row() -> None:
    provenance = read(EXAMPLES["swe-agent, nebius"].row).trajectory.metadata[PROVENANCE]

    assert provenance == {
        "file": "rows.jsonl",
        "line": 1,
        "split_by": "repo-1",
        "instance_id": "repo-1",
        "target": True,
        "exit_status": "submitted",
        "model_name": "llama",
    }


@pytest.mark.parametrize(
    ("name", "change", "reason", "text"),
    [
        ("openai", {"messages": [*OPENAI_MESSAGES, 3]}, "not_an_object", "a message must be"),
        (
            "openai",
            {"messages": [{"role": "assistant", "function_call": OPENAI_CALL, "tool_calls": [{}]}]},
            "bad_tool_call",
            "function_call and tool_calls; keep one",
        ),
        ("sharegpt", {"conversations": sharegpt_items(("narrator", "It rained."))}, "unknown_role", "from 'narrator'"),
        ("sharegpt", {"conversations": sharegpt_items(("function_call", "find it"))}, "bad_tool_call", "not JSON"),
        ("sharegpt", {"conversations": sharegpt_items(("function_call", '"find"'))}, "not_an_object", "a call must be"),
        (
            "sharegpt",
            {"conversations": sharegpt_items(("function_call", '{"name": "f"}'))},
            "bad_arguments",
            "of f must be",
        ),
        ("sharegpt", {"conversations": sharegpt_items(("system", "No shop."))}, "two_systems", "differs"),
        ("sharegpt", {"tools": "[{"}, "bad_tools", "not JSON"),
        (
            "sharegpt, ToolACE",
            {"system": "Use [func1(a=1)]."},
            "unclear_tools",
            "not with the wording of ToolACE: cut that part out, and put the schemas into a column tools",
        ),
        (
            "sharegpt, ToolACE",
            {"conversations": sharegpt_items(("user", "?"), ("assistant", "[Lose Order(order_id=1)]"))},
            "bad_tool_call",
            "a call names the unknown tool 'Lose Order'",
        ),
        (
            "sharegpt, ToolACE",
            {"conversations": sharegpt_items(("user", "?"), ("assistant", "[Find Order(17)]"))},
            "bad_tool_call",
            "a list of calls needs named arguments with literal values, got",
        ),
        (
            "sharegpt, ToolACE",
            {"conversations": sharegpt_items(("user", "?"), ("assistant", "[Find Order(order_id=now())]"))},
            "bad_tool_call",
            "a list of calls needs named arguments with literal values, got",
        ),
        ("openhands, nebius", {"resolved": -1}, "bad_outcome", "resolved must be true, false, 1 or 0, got -1"),
        ("openhands, nebius", {"resolved": "yes"}, "bad_outcome", "got text"),
        ("openhands, a completion", {"response": {"choices": []}}, "unclear_response", "0 choices"),
        ("openhands, output.jsonl", {"history": [[{"action": "run"}, {}]]}, "no_tool_call_metadata", "pairs"),
        ("swe-agent, nebius", {"trajectory": [{"role": "bot", "text": "hi"}]}, "unknown_role", "role 'bot'"),
        ("swe-agent, nebius", {"target": 2}, "bad_outcome", "target must be"),
        ("harbor", {"steps": [{"source": ["user"], "message": "hi"}]}, "unknown_role", "source"),
        ("toucan", {"messages": "[{"}, "not_json", "messages: not JSON"),
        ("toucan", {"available_tools": "{"}, "bad_tools", "not JSON"),
    ],
)
def test_a_row_that_cannot_be_read_exactly_is_refused_with_its_reason(
    name: str, change: JsonObject, reason: str, text: str
) -> None:
    with pytest.raises(BadRowError, match=text) as refused:
        read({**EXAMPLES[name].row, **change}, ImportOptions(format=EXAMPLES[name].format))

    assert refused.value.reason == reason


# ShareGPT


def test_thinking_before_a_call_is_its_reasoning() -> None:
    call = f"<think>\nI look.\n</think>\n{json.dumps({'name': 'find_order', 'arguments': '{}'})}"

    messages = read({"conversations": sharegpt_items(("human", "?"), ("function_call", call))}).trajectory.messages

    assert messages[1] == Message(
        role=Role.ASSISTANT, reasoning="I look.", tool_calls=(ToolCall(name="find_order", arguments={}),)
    )


def test_conversations_may_hold_openai_messages() -> None:
    assert read({"conversations": OPENAI_MESSAGES}).trajectory.messages == EXAMPLES["openai"].messages


def test_a_system_column_equal_to_the_system_item_is_read_once() -> None:
    row: JsonObject = {
        "system": SYSTEM.content,
        "conversations": sharegpt_items(("system", SYSTEM.content), ("human", USER.content), ("gpt", ANSWER.content)),
    }

    assert read(row).trajectory.messages == (SYSTEM, USER, ANSWER)


@pytest.mark.parametrize(
    "text",
    ["[find_order]", "It is (so) [here]", "[1, (2)]", '[{"order_id": 17}]', "[]", "[find order 17]", "['a'(1)]"],
)
def test_text_in_brackets_that_is_not_a_list_of_calls_stays_text(text: str) -> None:
    row: JsonObject = {"conversations": sharegpt_items(("user", "?"), ("assistant", text)), "tools": TOOLS}

    assert read(row).trajectory.messages[1] == Message(role=Role.ASSISTANT, content=text)


def test_arguments_of_bracket_calls_may_be_any_literal_and_text_with_brackets() -> None:
    text = """[find_order(a="x), (y=[", b=[1, -2.5, {'k': None}], c=True, d=false), a.b()]"""

    calls = (
        read({"conversations": sharegpt_items(("user", "?"), ("assistant", text))}).trajectory.messages[1].tool_calls
    )

    assert calls == (
        ToolCall(name="find_order", arguments={"a": "x), (y=[", "b": [1, -2.5, {"k": None}], "c": True, "d": False}),
        ToolCall(name="a.b", arguments={}),
    )


def test_only_schemas_and_notation_are_cut_out_of_a_toolace_prompt() -> None:
    row: JsonObject = {
        "system": f"{TOOLACE_PROMPT}Be kind.",
        "conversations": sharegpt_items(("user", "?"), ("assistant", "[Find Order(order_id=17)]")),
    }

    assert read(row).trajectory.messages[0].content == "You call functions.\nBe kind."


def test_a_conversation_of_toolace_without_a_call_keeps_its_prompt() -> None:
    row: JsonObject = {"system": TOOLACE_PROMPT, "conversations": sharegpt_items(("user", "?"), ("assistant", "No."))}

    assert read(row).trajectory.messages[0].content == TOOLACE_PROMPT


# Calls in text


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<parameter=command>ls</parameter>", {"command": "ls"}),
        ("<parameter=command>\nls\ncat\n</parameter>\n", {"command": "ls\ncat"}),
        ("<parameter=command>\n\nls\n\n</parameter>", {"command": "\nls\n"}),
        ("<parameter=command>\nls</parameter>", {"command": "\nls"}),
        ("<parameter=command></parameter>", {"command": ""}),
        ("<parameter=command>12</parameter>", {"command": "12"}),
        ("<parameter=lines>['a', True]</parameter>", {"lines": ["a", True]}),
        ("<parameter=seconds>\n12\n</parameter>", {"seconds": 12}),
        ("<parameter=unheard>12</parameter>", {"unheard": "12"}),
        ("", {}),
    ],
)
def test_parameters_in_text_get_the_types_of_the_schema(text: str, arguments: JsonObject) -> None:
    call = f"<function=bash>\n{text}</function>"
    messages = [USER, Message(role=Role.ASSISTANT, content=call)]

    assert read_text_calls(messages, [BASH]).messages[1].tool_calls == (ToolCall(name="bash", arguments=arguments),)


def test_parameters_in_text_without_a_schema_are_strings() -> None:
    messages = [Message(role=Role.ASSISTANT, content="<function=f>\n<parameter=a>12</parameter>\n</function>")]

    assert read_text_calls(messages, None).messages[0].tool_calls[0].arguments == {"a": "12"}


def test_neighbouring_calls_in_text_are_parallel_calls() -> None:
    text = "<function=submit>\n</function>\n<function=submit>\n</function>"
    messages = [Message(role=Role.ASSISTANT, content=text)]

    assert len(read_text_calls(messages, None).messages[0].tool_calls) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{TEXT_CALL}\nThat is it.", "bad_tool_call"),
        ("<function=bash>\n<parameter=command>ls</parameter>", "bad_tool_call"),
        ("<function=bash>\nls\n</function>", "bad_arguments"),
        ("<function=bash>\n<parameter=command>ls</function>", "bad_arguments"),
        ("<function=bash><parameter=command>a</parameter><parameter=command>b</parameter></function>", "bad_arguments"),
        ("<function=bash>\n<parameter=seconds>soon</parameter>\n</function>", "bad_arguments"),
        ("<function=bash>\n<parameter=seconds>True</parameter>\n</function>", "bad_arguments"),
        ("<function=bash>\n<parameter=lines>{}</parameter>\n</function>", "bad_arguments"),
    ],
)
def test_a_broken_call_in_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadRowError) as refused:
        read({"messages": chat_messages(("system", TEXT_PROMPT), ("user", "It crashes."), ("assistant", text))})

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "prompt",
    [
        TEXT_PROMPT + "\nOne thing more.",
        TEXT_PROMPT.replace("---- END FUNCTION #2 ----", ""),
        TEXT_PROMPT.replace("Parameters:", "It takes:"),
        TEXT_PROMPT.replace("  (1) command (string, required): ", "command: "),
        TEXT_PROMPT.replace("Description: End", "End"),
    ],
)
def test_a_prompt_whose_list_of_functions_has_no_clear_end_is_refused(prompt: str) -> None:
    with pytest.raises(BadRowError) as refused:
        read({"messages": chat_messages(("system", prompt), ("user", "It crashes."), ("assistant", TEXT_CALL))})

    assert refused.value.reason == "unclear_tools"


def test_a_json_schema_in_the_prompt_is_kept_as_it_is() -> None:
    schema = FIND_ORDER["function"]
    assert isinstance(schema, dict)
    listed = f"Description: Look one order up.\nParameters: {json.dumps(schema['parameters'], indent=2)}\n"
    begin, end = TEXT_PROMPT.index("---- BEGIN FUNCTION #1"), TEXT_PROMPT.index("---- END FUNCTION #1")
    prompt = f"{TEXT_PROMPT[:begin]}---- BEGIN FUNCTION #1: find_order ----\n{listed}{TEXT_PROMPT[end:]}"

    row: JsonObject = {"messages": chat_messages(("system", prompt), ("user", "?"), ("assistant", "Done."))}

    assert read(row).trajectory.tools[0] == FIND_ORDER


def test_the_example_that_openhands_writes_before_the_task_is_cut_out() -> None:
    task = (
        "Here's a running example of how to perform a task with the provided tools.\n"
        "USER: Do it.\n--------------------- END OF EXAMPLE ---------------------\n"
        "--------------------- NEW TASK DESCRIPTION ---------------------\nIt crashes."
    )
    end = "\n--------------------- END OF NEW TASK DESCRIPTION ---------------------\n\nPLEASE follow the format!\n"
    row: JsonObject = {
        "messages": chat_messages(("system", TEXT_PROMPT), ("user", task + end), ("assistant", TEXT_CALL))
    }

    assert read(row).trajectory.messages[1].content == "It crashes."
    with pytest.raises(BadRowError, match="the end of the example before the task cannot be found"):
        read({"messages": chat_messages(("system", TEXT_PROMPT), ("user", task), ("assistant", TEXT_CALL))})


# OpenHands


def test_a_logged_completion_gives_one_pivot_candidate() -> None:
    trajectory = read(EXAMPLES["openhands, a completion"].row).trajectory

    assert [turn.index for turn in turns(trajectory)] == [1]


def test_a_completion_of_a_model_without_function_calling_is_read_from_fncall_messages() -> None:
    row: JsonObject = {
        **EXAMPLES["openhands, a completion"].row,
        "fncall_messages": OPENAI_MESSAGES[:1],
        "fncall_response": {"choices": [{"message": OPENAI_MESSAGES[1]}]},
    }

    assert read(row).trajectory.messages == EXAMPLES["openai"].messages[:2]


def test_the_calls_of_one_logged_response_are_one_turn() -> None:
    first, second = call_metadata("call_1"), call_metadata("call_2")
    response = first["model_response"]
    assert isinstance(response, dict)
    calls: list[Json] = [
        {"id": call_id, "function": {"name": "find_order", "arguments": "{}"}} for call_id in ("call_1", "call_2")
    ]
    response["choices"] = [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]
    second["model_response"] = response
    row: JsonObject = {
        "history": [
            {"action": "message", "source": "user", "args": {"content": "?"}},
            {"action": "run", "source": "agent", "tool_call_metadata": first},
            {"action": "run", "source": "agent", "tool_call_metadata": second},
            {"observation": "run", "content": "b", "tool_call_metadata": second},
            {"observation": "run", "content": "a", "tool_call_metadata": first},
        ]
    }

    messages = read(row).trajectory.messages

    assert [len(message.tool_calls) for message in messages] == [0, 2, 0, 0]
    assert [message.tool_call_id for message in messages[2:]] == ["call_2", "call_1"]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"action": "run", "source": "agent", "args": {"command": "ls"}}, "no_tool_call_metadata"),
        ({"action": "run", "source": "user", "args": {"command": "ls"}}, "no_tool_call_metadata"),
        ({"observation": "error", "content": "no"}, "no_tool_call_metadata"),
        ({"action": "condensation", "source": "agent", "args": {}}, "condensed"),
        ({"observation": "recall", "extras": {"microagent_knowledge": [{}]}}, "recalled_knowledge"),
        ({"action": "message", "source": "user", "args": {"content": "", "image_urls": ["x"]}}, "not_text"),
        ({"kind": "MessageEvent"}, "unknown_event"),
        ({"action": "run", "tool_call_metadata": {"model_response": {"choices": []}}}, "bad_id"),
        ({"action": "run", "tool_call_metadata": {"model_response": {"id": "r"}}}, "unclear_response"),
    ],
)
def test_an_event_that_the_log_does_not_hold_as_the_model_saw_it_is_refused(event: JsonObject, reason: str) -> None:
    history = EXAMPLES["openhands, output.jsonl"].row["history"]
    assert isinstance(history, list)

    with pytest.raises(BadRowError) as refused:
        read({"history": [*history, event]})

    assert refused.value.reason == reason


# SWE-agent


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"role": "assistant", "content": "ls", "is_demo": True, "agent": "main"}, "demonstration"),
        ({"role": "assistant", "content": "ls", "agent": "reviewer"}, "several_agents"),
        ({"role": "tool", "content": "a", "tool_call_ids": ["a", "b"], "agent": "main"}, "unclear_response"),
        ({"role": "assistant", "thinking_blocks": [{"type": "redacted_thinking", "data": "x"}]}, "encrypted_reasoning"),
    ],
)
def test_a_history_with_a_demonstration_another_agent_or_hidden_thinking_is_refused(
    item: JsonObject, reason: str
) -> None:
    row = EXAMPLES["swe-agent, .traj with calls"].row
    history = row["history"]
    assert isinstance(history, list)

    with pytest.raises(BadRowError) as refused:
        read({**row, "history": [*history, item]})

    assert refused.value.reason == reason


def test_a_demonstration_in_a_user_message_is_kept() -> None:
    row = EXAMPLES["swe-agent, .traj of text"].row
    demo: JsonObject = {"role": "user", "content": "An example.", "is_demo": True, "agent": "primary"}
    history = row["history"]
    assert isinstance(history, list)

    messages = read({**row, "history": [history[0], demo, *history[1:]]}).trajectory.messages

    assert messages[1] == Message(role=Role.USER, content="An example.")


@pytest.mark.parametrize("name", ["openhands, nebius", "openhands, output.jsonl", "swe-agent, nebius"])
@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        ({"reward": 0.0}, False),
        ({"reward": 1.0}, True),
        ({"passed": False}, False),
        ({"resolved": 0}, False),
        ({"passed": True, "reward": 0.5}, False),
    ],
)
def test_a_run_passed_if_all_columns_that_state_its_outcome_say_so(
    name: str, outcomes: JsonObject, passed: bool
) -> None:
    row: JsonObject = {**EXAMPLES[name].row, "resolved": None, "target": None, "report": {"resolved": True}, **outcomes}

    assert read(row, ImportOptions(format=EXAMPLES[name].format)).trajectory.passed is passed


def test_a_run_that_submitted_a_patch_has_an_unknown_outcome() -> None:
    assert read(EXAMPLES["swe-agent, .traj with calls"].row).trajectory.passed is None


# Hermes


def test_hermes_text_is_read_alike_in_messages_and_in_conversations() -> None:
    items = (("user", USER.content), ("assistant", f"Both.\n{HERMES_CALL}"), ("tool", SENT), ("assistant", "Yes."))

    in_messages = read({"messages": chat_messages(*items), "tools": TOOLS})
    in_conversations = read({"conversations": sharegpt_items(*items), "tools": TOOLS})

    assert in_messages.trajectory == in_conversations.trajectory
    assert in_messages.trajectory.messages[1] == replace(CALL, content="Both.")
    assert in_messages.trajectory.tools == (FIND_ORDER,)


@pytest.mark.parametrize("before", ["", "I look.", "<think>I write <tool_call>.</think>"])
def test_an_argument_may_hold_a_thinking_tag(before: str) -> None:
    call = HERMES_CALL.replace("17", '"</think>"')

    message = read({"messages": chat_messages(("user", "?"), ("assistant", before + call))}).trajectory.messages[1]

    assert message.tool_calls == (ToolCall(name="find_order", arguments={"order_id": "</think>"}),)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([("assistant", f"{HERMES_CALL} That is it.")], "bad_tool_call"),
        ([("assistant", '<tool_call>\n{"name": "f"}')], "bad_tool_call"),
        ([("assistant", "<tool_call>\nfind it\n</tool_call>")], "bad_tool_call"),
        ([("assistant", "<tool_call>\n[1]\n</tool_call>")], "not_an_object"),
        ([("assistant", '<tool_call>\n{"name": "f"}\n</tool_call>')], "bad_arguments"),
        ([("assistant", HERMES_CALL), ("user", "<tool_response>a</tool_response> And?")], "unclear_response"),
        ([("assistant", HERMES_CALL), ("tool", "<tool_response>a")], None),
        ([("system", "<tools>[1</tools>"), ("assistant", "Yes.")], "unclear_tools"),
        ([("system", "<tools>{} x</tools>"), ("assistant", "Yes.")], "unclear_tools"),
        ([("system", "<tools>[]</tools><tools>[]</tools>"), ("assistant", "Yes.")], "unclear_tools"),
    ],
)
def test_broken_tags_are_refused(messages: list[tuple[str, str]], reason: str | None) -> None:
    system, rest = (messages[:1], messages[1:]) if messages[0][0] == "system" else ([], messages)
    row: JsonObject = {"messages": chat_messages(*system, ("user", "?"), *rest)}
    if reason is None:
        assert read(row).trajectory.messages[-1].content == "<tool_response>a"
        return

    with pytest.raises(BadRowError) as refused:
        read(row)

    assert refused.value.reason == reason


def test_text_with_tags_stays_text_in_a_log_with_tool_calls() -> None:
    row: JsonObject = {"messages": [*OPENAI_MESSAGES[:3], {"role": "assistant", "content": "Write <tool_call>."}]}

    parsed = read(row)

    assert (parsed.format, parsed.trajectory.messages[-1].content) == ("openai", "Write <tool_call>.")


def test_a_system_prompt_that_holds_only_schemas_is_left_out() -> None:
    row: JsonObject = {
        "messages": chat_messages(("system", f"<tools>{TOOLS}</tools>"), ("user", "?"), ("assistant", "No."))
    }

    trajectory = read(row).trajectory

    assert [message.role for message in trajectory.messages] == [Role.USER, Role.ASSISTANT]
    assert trajectory.tools == (FIND_ORDER,)


# Toucan


def test_a_toucan_message_with_reasoning_alone_belongs_to_the_call_after_it() -> None:
    messages: list[Json] = [
        {"role": "user", "content": "Where is order 17?"},
        {"role": "assistant", "content": "", "reasoning_content": "I look."},
        {"role": "assistant", "content": "", "function_call": {**OPENAI_CALL, "call_id": "c"}},
        {"role": "function", "content": SENT, "name": "find_order"},
        {"role": "assistant", "content": "It is on its way."},
    ]

    read_back = read({**EXAMPLES["toucan"].row, "messages": json.dumps(messages)}).trajectory.messages

    call = ToolCall(name="find_order", arguments={"order_id": 17}, id="c")
    assert read_back[1] == Message(role=Role.ASSISTANT, reasoning="I look.", tool_calls=(call,))


def test_a_toucan_row_without_a_tools_column_has_the_tools_of_its_prompt() -> None:
    row = {**EXAMPLES["toucan"].row, "available_tools": None}

    assert read(row).trajectory.tools == (FIND_ORDER,)


# Literals


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("{'a': [1, -2.5, None, True], 'b': \"it's\"}", {"a": [1, -2.5, None, True], "b": "it's"}),
        ("{'a': true, 'b': null}", {"a": True, "b": None}),
        (r"'\d'", r"\d"),
    ],
)
def test_a_value_is_read_as_json_or_as_python_prints_it(text: str, value: Json) -> None:
    assert parse_literal(text, reason="bad", what="it") == value


@pytest.mark.parametrize(
    "text",
    ["(1, 2)", "{1: 2}", "{**a}", "b'x'", "1j", "...", "f()", "a", "", "\0", "\ud800", "1 + 1", "[" * 5000, "-" * 9999],
)
def test_text_that_is_not_a_literal_is_refused(text: str) -> None:
    with pytest.raises(BadRowError) as refused:
        parse_literal(text, reason="bad", what="it")

    assert refused.value.reason == "bad"


# Formats of users


def test_a_users_format_is_detected_before_those_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "letters.py").write_text(OWN_FORMAT)
    row: JsonObject = {"no": "l-1", "letters": ["Where?", "There."], "messages": OPENAI_MESSAGES}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"messages": OPENAI_MESSAGES}) + "\n")

    paths = (str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl"))
    result = CliRunner().invoke(
        app, ["import", *paths, "--workers", "1", "--allow-no-tools", "--format-module", str(tmp_path / "letters.py")]
    )

    assert result.exit_code == 0, result.output
    own, other = read_trajectories(tmp_path / "out.jsonl")
    assert (own.id, [message.content for message in own.messages], own.passed) == ("l-1", ["Where?", "There."], True)
    assert other.messages == EXAMPLES["openai"].messages


def test_a_users_format_cannot_take_the_name_of_a_format_of_the_package() -> None:
    with pytest.raises(ConfigError, match="format 'hermes' is registered twice"):
        registry.register_format("hermes", detect=lambda row: True)(lambda row: registry.Conversation(messages=()))


def test_every_format_has_an_example_and_a_section_in_the_docs() -> None:
    documentation = (ROOT / "docs" / "formats.md").read_text()
    foreign = set(registry.known_formats()) - {"letters"}

    assert {example.format for example in EXAMPLES.values()} | {"nemo-gym", "pivots"} == foreign
    assert [name for name in foreign if f"`{name}`" not in documentation] == []


def test_all_examples_are_imported_together(tmp_path: Path) -> None:
    lines = [json.dumps(example.row) for example in EXAMPLES.values()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))

    report = import_files([tmp_path / "in.jsonl"], tmp_path / "out.jsonl", ImportOptions(outcome="all"))

    # Two examples hold the same conversation without an id, so both get the same id.
    assert (report.num_rows, report.num_kept, dict(report.rejected)) == (
        len(EXAMPLES),
        len(EXAMPLES) - 1,
        {"duplicate_id": 1},
    )


def read(row: JsonObject, options: ImportOptions = ImportOptions()) -> ParsedRow:  # noqa: B008
    place = Place(file="rows.jsonl", unit="line", number=1)
    return parse_row(RawRow(place=place, raw=json.dumps(row).encode()), options)


def split_by(parsed: ParsedRow) -> Json:
    provenance = parsed.trajectory.metadata[PROVENANCE]
    assert isinstance(provenance, dict)
    return provenance["split_by"]


def test_of_a_prompt_with_earlier_turns_only_the_completion_is_the_experts() -> None:
    trajectory = read(EXAMPLES["trl, a turn in the middle"].row).trajectory

    assert [turn.index for turn in turns(trajectory)] == [1]


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_messages_as_json_are_read_with_any_white_space(indent: int | None) -> None:
    asked, answered = ([{"role": role, "content": "Hi."}] for role in ("user", "assistant"))
    row: JsonObject = {"prompt": json.dumps(asked, indent=indent), "completion": json.dumps(answered, indent=indent)}

    messages = read(row).trajectory.messages

    assert [message.as_dict() for message in messages] == [*asked, *answered]


def test_an_answer_that_is_a_list_in_json_is_a_text_to_the_letter() -> None:
    answer = '[{"name": "Ann"}]'

    assert read({"prompt": "Who?", "completion": answer}).trajectory.messages[1].content == answer


def test_of_several_turns_behind_earlier_ones_each_is_the_experts() -> None:
    row: JsonObject = {"prompt": OPENAI_MESSAGES, "completion": [OPENAI_MESSAGES[0], *OPENAI_MESSAGES[1:]]}

    earlier = sum(message["role"] == "assistant" for message in OPENAI_MESSAGES)
    assert [turn.index for turn in turns(read(row).trajectory)] == list(range(earlier, 2 * earlier))


@pytest.mark.parametrize(("given", "positions"), [([1], [1]), ("[0, 1]", [0, 1]), ("last", [1]), (None, [0, 1])])
def test_a_row_names_the_experts_turns_by_their_positions(given: Json, positions: list[int]) -> None:
    row: JsonObject = {"messages": OPENAI_MESSAGES, "expert_turns": given}

    assert [turn.index for turn in turns(read(row).trajectory)] == positions


@pytest.mark.parametrize("given", [[2], [], [1, 0], ["0"], [True], "first", 1, "[0"])
def test_positions_that_no_turn_has_are_refused(given: Json) -> None:
    with pytest.raises(BadRowError, match="expert_turns"):
        read({"messages": OPENAI_MESSAGES, "expert_turns": given})


def test_positions_are_refused_where_a_turn_is_split_into_two_messages() -> None:
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "a", "arguments": {}}}]}
    split: list[Json] = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "I look."}, call]

    assert len(turns(read({"messages": split}).trajectory)) == 1
    with pytest.raises(BadRowError, match="are two messages"):
        read({"messages": split, "expert_turns": [1]})


def test_the_answer_of_a_task_of_verifiers_stays_for_the_verifier() -> None:
    assert read(EXAMPLES["verifiers"].row).trajectory.metadata["answer"] == "sent"


def test_a_step_of_harbor_by_the_user_may_have_empty_thinking_and_no_other() -> None:
    user: JsonObject = {"source": "user", "message": "Where?", "reasoning_content": ""}
    agent: JsonObject = {"source": "agent", "message": "There.", "reasoning_content": ""}

    messages = read({"schema_version": "ATIF-v1.6", "steps": [user, agent]}).trajectory.messages

    assert messages == (
        Message(role=Role.USER, content="Where?"),
        Message(role=Role.ASSISTANT, content="There."),
    )
    with pytest.raises(BadRowError, match="only an assistant message has tool calls or reasoning, got role 'user'"):
        read({"schema_version": "ATIF-v1.6", "steps": [{**user, "reasoning_content": "Hm."}, agent]})


def test_a_step_of_harbor_whose_observation_has_no_agent_is_refused() -> None:
    observed = {"results": [{"content": "x"}]}
    steps = [{"source": "user", "message": "a", "observation": observed}, {"source": "agent", "message": "b"}]

    with pytest.raises(BadRowError, match="a step of source 'user' has calls or an observation"):
        read({"schema_version": "ATIF-v1.6", "steps": steps})
