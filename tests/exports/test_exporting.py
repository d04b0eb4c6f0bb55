import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.support.factories import (
    ANSWER,
    CALL,
    FIND_ORDER,
    LOOKUP,
    RESULT,
    SYSTEM,
    USER,
    make_profile,
    make_trajectory,
    make_turn,
)
from tests.support.nemo_gym_contract import broken_rules
from tests.support.paths import SHARED_DATA
from tests.support.tiny_model import write_tokenizer
from verl_pivot.cli import app
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.pivots import SCHEMA, PivotNumbers, pivot_rows
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.data.turns import PROVENANCE, turns
from verl_pivot.engines.engine import Sampling
from verl_pivot.exports.nemo_gym_rows import DEFAULT_AGENT, ReferenceScores, lost_fields, turn_to_nemo_gym
from verl_pivot.exports.trajectory_rows import expert_positions, openai_row, sft_row, write_sft
from verl_pivot.formats.pivots import with_json_strings, with_nested_values
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
from verl_pivot.profiling.writer import open_profile
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory, Turn

DATA = SHARED_DATA
ENVIRONMENTS = {
    "single_step_tool_use_with_argument_comparison": ({"agent_ref", "metadata is null"}, set()),
    "swe_pivot": ({"tools", "unknown tool"}, {"unknown tool"}),
    "terminus_judge": ({"expected_action", "tools"}, set()),
}
"""{environment: (rules that NeMo Gym's own example rows break, rules that the same rows break after our export)}."""
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data are not at ../shared/data")

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TEXT = st.text().filter(lambda text: "think>" not in text)
STRICT: JsonObject = {"type": "function", "function": {"name": "refund", "strict": True, "parameters": {}}}
ODD: JsonObject = {"type": "function", "function": {"name": "odd", "type": "builtin"}}
"""Schema whose key `type` has another meaning in the flat form of OpenAI's Responses API."""
METADATA = st.dictionaries(st.text(), JSON, max_size=3).map(lambda extra: {**extra, PROVENANCE: {"split_by": "task-1"}})


@st.composite
def calls_and_results(draw: st.DrawFn) -> list[Message]:
    """One assistant turn with calls, and the results of the tools; ids and names may be missing."""
    ids = draw(
        st.lists(st.none() | st.text(min_size=1), min_size=1, max_size=3, unique_by=lambda each: each or object())
    )
    calls = tuple(
        ToolCall(name=draw(st.text(min_size=1)), arguments=draw(st.dictionaries(st.text(), JSON, max_size=3)), id=each)
        for each in ids
    )
    action = Message(role=Role.ASSISTANT, content=draw(TEXT), reasoning=draw(st.none() | TEXT), tool_calls=calls)
    results = [
        Message(
            role=Role.TOOL,
            content=draw(st.text()),
            tool_call_id=call.id if draw(st.booleans()) else None,
            name=call.name if draw(st.booleans()) else None,
        )
        for call in calls
    ]
    return [action, *results]


ANSWERS = st.builds(Message, role=st.just(Role.ASSISTANT), content=TEXT.filter(bool), reasoning=st.none() | TEXT)
REQUESTS = st.builds(
    Message, role=st.sampled_from([Role.USER, Role.SYSTEM]), content=st.text(), name=st.none() | st.text()
)


@st.composite
def turns_of_any_kind(draw: st.DrawFn) -> Turn:
    parts = draw(st.lists(calls_and_results() | ANSWERS.map(lambda message: [message]), max_size=3))
    state = [*draw(st.lists(ANSWERS, max_size=1)), draw(REQUESTS)]
    for part in parts:
        state += [*part, draw(REQUESTS)] if part[-1].role is Role.ASSISTANT else [*part]
        if part[-1].role is Role.TOOL and draw(st.booleans()):
            state.append(draw(REQUESTS))
    expert = draw(calls_and_results().map(lambda messages: messages[0]) | ANSWERS)
    return Turn(
        trajectory_id=draw(st.text(min_size=1)),
        index=sum(message.role is Role.ASSISTANT for message in state),
        state=tuple(state),
        expert=expert,
        tools=tuple(draw(st.sampled_from([(), (FIND_ORDER,), (STRICT, FIND_ORDER), (ODD,)]))),
        verifier=draw(st.text(min_size=1)),
        verifier_options=draw(st.dictionaries(st.text(), JSON, max_size=2)),
        metadata=draw(METADATA),
    )


# NeMo Gym


@settings(deadline=None)
@given(turns_of_any_kind())
def test_importing_a_row_of_nemo_gym_gives_the_same_turn(turn: Turn) -> None:
    assert read_turn(turn_to_nemo_gym(turn)) == turn


@settings(deadline=None)
@given(turns_of_any_kind())
def test_every_row_follows_the_rules_of_nemo_gym(turn: Turn) -> None:
    assert broken_rules(json.loads(json.dumps(turn_to_nemo_gym(turn)))) <= {"unknown tool"}


@settings(deadline=None)
@given(turns_of_any_kind())
def test_every_difference_without_our_own_column_is_reported(turn: Turn) -> None:
    row = turn_to_nemo_gym(turn)
    bare = {key: value for key, value in row.items() if key != "verl_pivot"}

    read = read_turn(bare)

    is_same = (read.state, read.expert, read.tools) == (turn.state, turn.expert, turn.tools)
    assert is_same == (lost_fields(row) == set())


def test_a_row_of_nemo_gym_has_these_columns() -> None:
    state = (SYSTEM, USER, replace(CALL, reasoning="Look it up.", content="Let me see."), RESULT)
    turn = make_turn(state=state, expert=ANSWER, index=1, metadata={"seed": 3})

    assert turn_to_nemo_gym(turn, reference=ReferenceScores(scores=(1.0, 0.0, 0.5, 0.5)), passed=True) == {
        "trajectory_id": "shop-1",
        "responses_create_params": {
            "input": [
                {"type": "message", "role": "system", "content": "You work in a shop."},
                {"type": "message", "role": "user", "content": "Where is order 17?"},
                {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "Look it up."}]},
                {
                    "type": "message",
                    "id": "msg_2",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
                },
                {"type": "function_call", "name": "find_order", "arguments": '{"order_id": 17}', "call_id": "call_0"},
                {"type": "function_call_output", "call_id": "call_0", "output": '{"status": "sent"}'},
            ],
            "tools": [
                {
                    "type": "function",
                    "name": "find_order",
                    "description": "Look one order up.",
                    "parameters": {
                        "type": "object",
                        "properties": {"order_id": {"type": "integer"}},
                        "required": ["order_id"],
                    },
                    "strict": None,
                }
            ],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
        },
        "expected_action": {"type": "message", "content": "It is on its way."},
        "agent_ref": {"type": "responses_api_agents", "name": DEFAULT_AGENT},
        "pass_rate": 0.25,
        "pass_rate_total": 4,
        "pass_rate_passed": 1,
        "reference_policy_info": {
            "rewards": [1.0, 0.0, 0.5, 0.5],
            "reward_mean": 0.5,
            "reward_std": 0.125**0.5,
            "reward_var": 0.125,
        },
        "verifier": "tool_call",
        "verifier_options": {},
        "metadata": {"seed": 3},
        "verl_pivot": {"version": 1, "passed": True, "state": [{"position": 3, "name": "find_order"}]},
    }


def test_parallel_calls_are_a_batch() -> None:
    other = replace(LOOKUP, id="call_1", arguments={"order_id": 18})
    row = turn_to_nemo_gym(make_turn(expert=replace(CALL, tool_calls=(LOOKUP, other))))

    assert row["expected_action"] == {
        "type": "function_call_batch",
        "calls": [
            {"type": "function_call", "name": "find_order", "arguments": '{"order_id": 17}'},
            {"type": "function_call", "name": "find_order", "arguments": '{"order_id": 18}'},
        ],
    }
    assert params_of(row)["parallel_tool_calls"] is True


CALL_WITHOUT_ID = replace(CALL, tool_calls=(replace(LOOKUP, id=None),))


@pytest.mark.parametrize(
    ("state", "expert", "lost"),
    [
        ((SYSTEM, USER), ANSWER, set()),
        ((SYSTEM, USER), CALL_WITHOUT_ID, set()),
        ((SYSTEM, USER), CALL, {"id of the expert's call"}),
        ((USER,), replace(CALL_WITHOUT_ID, content="Let me see."), {"the expert's text before a call"}),
        ((USER,), replace(ANSWER, reasoning="Tell him."), {"the expert's reasoning"}),
        ((USER, CALL, RESULT), ANSWER, {"tool name of a result"}),
        (
            (USER, CALL_WITHOUT_ID, replace(RESULT, name=None, tool_call_id=None)),
            ANSWER,
            {"missing id of a call", "missing id of a result"},
        ),
    ],
)
def test_fields_that_only_our_column_holds_are_reported(
    state: tuple[Message, ...], expert: Message, lost: set[str]
) -> None:
    index = sum(message.role is Role.ASSISTANT for message in state)
    row = turn_to_nemo_gym(make_turn(state=state, expert=expert, index=index))

    assert lost_fields(row) == lost


@pytest.mark.parametrize(
    ("verifier", "metadata", "option", "name"),
    [
        ("tool_call", {}, None, DEFAULT_AGENT),
        ("edit", {}, None, "swe_pivot_tool_simulation_agent"),
        ("terminus", {}, None, "terminus_judge_simple_agent"),
        ("tool_call", {"agent_ref": {"type": "responses_api_agents", "name": "mine"}}, None, "mine"),
        ("tool_call", {"agent_ref": {"type": "other", "name": "mine"}}, None, DEFAULT_AGENT),
        ("tool_call", {"agent_ref": {"type": "responses_api_agents", "name": "mine"}}, "theirs", "theirs"),
    ],
)
def test_the_agent_is_the_option_or_that_of_the_imported_row_or_that_of_the_verifier(
    verifier: str, metadata: JsonObject, option: str | None, name: str
) -> None:
    row = turn_to_nemo_gym(make_turn(verifier=verifier, metadata=metadata), agent=option)

    assert row["agent_ref"] == {"type": "responses_api_agents", "name": name}


def test_an_environment_that_judges_text_gets_the_experts_text() -> None:
    assert turn_to_nemo_gym(make_turn(verifier="terminus", expert=ANSWER))["expected_answer"] == "It is on its way."
    assert "expected_answer" not in turn_to_nemo_gym(make_turn(verifier="terminus"))
    assert "expected_answer" not in turn_to_nemo_gym(make_turn(expert=ANSWER))


def test_without_scores_only_the_pass_rate_is_written() -> None:
    row = turn_to_nemo_gym(make_turn(), reference=ReferenceScores(pass_rate=0.25))

    assert {key: value for key, value in row.items() if "rate" in key or "info" in key} == {"pass_rate": 0.25}


def test_columns_that_others_add_to_exported_rows_are_imported_as_metadata() -> None:
    row = {**turn_to_nemo_gym(make_turn(metadata={"seed": 3})), "avg_reward": 0.5}

    metadata = read_turn(row).metadata

    assert {key: value for key, value in metadata.items() if key != PROVENANCE} == {"seed": 3, "avg_reward": 0.5}


@pytest.mark.parametrize(
    ("own_column", "text"),
    [
        ({"state": [{"position": 2, "name": "x"}]}, "position must be a number from 0 to 1, got 2"),
        ({"state": [{"name": "x"}]}, "position must be a number from 0 to 1, got None"),
        ({"state": ["x"]}, "a change in verl_pivot must be a JSON object, got text"),
        ({"expert": {"call_ids": []}}, "call_ids must hold 1 ids, one for each call, got 0"),
        ({"passed": "yes"}, "passed must be true, false or null, got text"),
    ],
)
def test_a_column_of_our_own_that_does_not_fit_its_row_is_refused(own_column: JsonObject, text: str) -> None:
    row = {**turn_to_nemo_gym(make_turn()), "verl_pivot": own_column}

    with pytest.raises(BadRowError, match=text):
        read_turn(row)


def test_a_turn_that_no_conversation_can_hold_is_refused() -> None:
    with pytest.raises(BadRowError, match="turn shop-1:3 must have index 0, the number of assistant turns before it"):
        turn_to_nemo_gym(make_turn(index=3))
    with pytest.raises(BadRowError, match="message 1 is a result, and no open call belongs to it"):
        turn_to_nemo_gym(make_turn(state=(USER, RESULT)))


# Pivots


@settings(deadline=None)
@given(turns_of_any_kind(), st.booleans())
def test_importing_a_row_of_pivots_gives_the_same_turn(turn: Turn, as_json: bool) -> None:
    row = pivot_row(turn)

    assert with_json_strings(with_nested_values(row)) == row
    assert read_turn(with_nested_values(row) if as_json else row) == turn


def test_a_greeting_counts_in_the_index_of_a_pivot() -> None:
    hello = Message(role=Role.ASSISTANT, content="Hello.")
    (turn,) = turns(make_trajectory(messages=(hello, USER, ANSWER)))

    row = pivot_row(turn)

    assert (turn.index, read_turn(row).index, read_turn(turn_to_nemo_gym(turn)).index) == (1, 1, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"turn_index": 1}, "bad_turn_index"), ({"expert": None}, "no_pivot"), ({"prompt": "["}, "not_json")],
)
def test_a_row_that_is_not_a_pivot_is_refused(change: JsonObject, reason: str) -> None:
    row = pivot_row(make_turn())

    with pytest.raises(BadRowError) as refused:
        read_turn({**row, **change})

    assert refused.value.reason == reason


# Trajectories


@settings(deadline=None)
@given(turns_of_any_kind(), st.none() | st.booleans(), st.sampled_from(["all", "last", (0,)]))
def test_importing_openai_messages_gives_the_same_trajectory(turn: Turn, passed: bool | None, which: Any) -> None:
    trajectory = replace(trajectory_of(turn), passed=passed, expert_turns=which)

    assert read_row(openai_row(trajectory)) == trajectory


@settings(deadline=None)
@given(turns_of_any_kind(), st.sampled_from(["all", "last", (0,)]))
def test_importing_a_row_for_sft_gives_the_same_trajectory(turn: Turn, which: Any) -> None:
    trajectory = replace(trajectory_of(turn), expert_turns=which)

    assert read_row(sft_row(trajectory)) == trajectory


def test_arguments_in_exported_messages_are_json_strings() -> None:
    messages: Any = openai_row(make_trajectory())["messages"]

    assert messages[2]["tool_calls"][0]["function"]["arguments"] == '{"order_id": 17}'


@pytest.mark.parametrize(("which", "positions"), [("all", {1, 3, 5}), ("last", {5}), ((0, 2), {1, 5})])
def test_sft_trains_on_the_experts_messages_alone(which: Any, positions: set[int]) -> None:
    row: Any = sft_row(
        replace(make_trajectory(messages=(USER, CALL, RESULT, CALL, RESULT, ANSWER)), expert_turns=which)
    )

    assert expert_positions(json.loads(row["messages"]), row["expert_turns"]) == positions


@pytest.mark.slow
def test_verls_sft_trainer_gets_the_conversation_and_trains_on_the_assistant_turns(tmp_path: Path) -> None:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    from verl_pivot.exports.sft_dataset import TrajectoryDataset

    chosen = replace(make_trajectory(messages=(USER, CALL, RESULT, ANSWER)), expert_turns=(1,))
    trajectories = [make_trajectory(), make_trajectory(messages=(USER, ANSWER), tools=()), chosen]
    write_sft(trajectories, tmp_path / "in.parquet")
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path / "model"))
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})

    dataset = TrajectoryDataset(str(tmp_path / "in.parquet"), tokenizer, config)

    for row, trajectory, num_calls in zip(dataset, trajectories, (1, 0, 0), strict=True):
        messages = [message.as_dict() for message in trajectory.messages]
        text = tokenizer.apply_chat_template(messages, tools=list(trajectory.tools) or None, tokenize=False)
        assert tokenizer.decode(row["input_ids"]) == text
        trained = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
        assert "It is on its way." in trained
        assert "Where is order 17?" not in trained
        assert trained.count("<tool_call>") == num_calls


# The command


@pytest.mark.parametrize("to", ["nemo-gym", "verl", "jsonl"])
def test_pivots_are_the_same_turns_after_an_export_and_an_import(tmp_path: Path, to: str) -> None:
    pivots = select_all(write_trajectories(tmp_path))

    result, again = export(pivots, to), import_back(exported_path(pivots, to))

    assert result.exit_code == 0, result.output
    assert turns_by_id(again) == turns_by_id(tmp_path / "trajectories.jsonl")


@pytest.mark.parametrize("to", ["nemo-gym", "verl", "jsonl"])
def test_trajectories_are_the_same_turns_after_an_export_and_an_import(tmp_path: Path, to: str) -> None:
    trajectories = write_trajectories(tmp_path)

    result, again = export(trajectories, to), import_back(exported_path(trajectories, to))

    assert result.exit_code == 0, result.output
    assert turns_by_id(again) == turns_by_id(trajectories)


def test_pivots_exported_to_json_lines_and_back_to_parquet_are_unchanged(tmp_path: Path) -> None:
    pivots = select_all(write_trajectories(tmp_path))
    table = pyarrow.parquet.read_table(pivots)
    sampling = pyarrow.array(['{"model": "a"}'] * table.num_rows)
    table = table.set_column(table.column_names.index("sampling"), SCHEMA.field("sampling"), sampling)
    pyarrow.parquet.write_table(table, pivots)
    export(pivots, "jsonl")
    lines = exported_path(pivots, "jsonl")
    export(lines, "verl")

    again = exported_path(lines, "verl")

    assert json.loads(lines.read_text().splitlines()[0])["expert"] == CALL.as_dict()
    assert pyarrow.parquet.read_table(again).equals(pyarrow.parquet.read_table(pivots))
    assert pyarrow.parquet.read_schema(again).equals(SCHEMA)


def test_a_pivot_without_a_column_that_training_needs_is_refused(tmp_path: Path) -> None:
    row = {key: value for key, value in pivot_row(make_turn()).items() if key != "split"}
    (tmp_path / "pivots.jsonl").write_text(json.dumps(row) + "\n")

    result = export(tmp_path / "pivots.jsonl", "verl")

    assert "pivots.jsonl, line 1 cannot be exported (the row lacks split)" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pivots.jsonl"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"turn_index": 2**70}, "turn_index must be of the type int64, got 1180591620717411303424"),
        ({"pass_rate": "0.5"}, "pass_rate must be of the type double, got '0.5'"),
        ({"split": 7}, "split must be of the type string, got 7"),
        ({"trajectory_id": "\ud83d"}, r"trajectory_id must be of the type string, got '\ud83d'"),
    ],
)
def test_a_pivot_with_a_value_that_parquet_cannot_hold_is_refused(
    tmp_path: Path, change: JsonObject, problem: str
) -> None:
    (tmp_path / "pivots.jsonl").write_text(json.dumps(pivot_row(make_turn()) | change) + "\n")

    result = export(tmp_path / "pivots.jsonl", "verl")

    assert f"pivots.jsonl, line 1 cannot be exported ({problem})" in result.stderr


@pytest.mark.parametrize("change", [{"id": "\ud83d"}, {"metadata": {"name": "\ud83d"}}])
def test_a_trajectory_that_parquet_cannot_hold_is_refused(tmp_path: Path, change: JsonObject) -> None:
    (tmp_path / "runs.jsonl").write_text(json.dumps(trajectory_as_dict(make_trajectory()) | change) + "\n")

    result = export(tmp_path / "runs.jsonl", "verl")

    assert "runs.jsonl, line 1 cannot be exported" in result.stderr


@pytest.mark.parametrize("of", ["pivots", "trajectories"])
def test_rows_of_nemo_gym_have_the_pass_rates_of_the_profile(tmp_path: Path, of: str) -> None:
    trajectories = write_trajectories(tmp_path)
    profile = write_profile(trajectories, {"shop-0:0": (1.0, 0.0, None), "shop-0:1": (None,)})
    source = trajectories if of == "trajectories" else select_all(trajectories)

    result = export(source, "nemo-gym", "--profile", profile, "--agent", "mine")

    rows = {row["trajectory_id"] + action_type(row): row for row in lines_of(exported_path(source, "nemo-gym"))}
    assert result.exit_code == 0, result.output
    assert [rows["shop-0function_call"].get(f"pass_rate{name}") for name in ("", "_total", "_passed")] == [0.5, 2, 1]
    assert "pass_rate" not in rows["shop-0message"]
    assert rows["shop-0message"]["agent_ref"]["name"] == "mine"
    assert "not in the profile" in result.output


def test_the_command_prints_lost_fields_and_counts_of_notable_rows(tmp_path: Path) -> None:
    trajectories = tmp_path / "trajectories.jsonl"
    failed = make_trajectory(messages=(SYSTEM, USER, CALL, RESULT, ANSWER), tools=(), passed=False)
    trajectories.write_text(json.dumps(trajectory_as_dict(failed)) + "\n")

    output = " ".join(export(trajectories, "nemo-gym").output.split())

    assert "2 rows in" in output
    for line in ("trajectories that failed │ 1", "calls without a schema │ 1", "lost: id of the expert's call │ 1"):
        assert line in output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--to", "jsonl", "--agent", "x"), "--agent and --profile are for --to nemo-gym, not for --to jsonl"),
        (("--to", "nemo-gym", "--out", "trajectories.jsonl"), "is one of the inputs; choose another name"),
        (("--to", "nemo-gym", "--profile", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    ],
)
def test_options_that_do_not_fit_stop_the_command_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = write_trajectories(tmp_path).read_text()

    result = CliRunner().invoke(app, ["export", "trajectories.jsonl", "--out", "out", *options])

    assert result.exit_code == 1
    assert text in result.stderr
    assert (tmp_path / "trajectories.jsonl").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["trajectories.jsonl"]


@pytest.mark.parametrize("to", ["nemo-gym", "verl", "jsonl"])
def test_a_line_that_cannot_be_exported_stops_the_export_and_leaves_the_older_file(tmp_path: Path, to: str) -> None:
    trajectories = write_trajectories(tmp_path)
    with trajectories.open("a") as file:
        file.write('{"id": "c", "messages": []}\n')
    out = exported_path(trajectories, to)
    out.write_text("from before")

    result = export(trajectories, to)

    assert result.exit_code == 1
    assert "trajectories.jsonl, line 3 cannot be exported (a trajectory needs id (text), " in result.stderr
    assert out.read_text() == "from before"


def test_a_profile_of_other_turns_is_refused(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path)
    profile = write_profile(trajectories, {"shop-0:0": (1.0, 0.0)})
    pivots = select_all(
        trajectories, "--profile", write_profile(trajectories, {}, name="full.jsonl", default=(1.0, 1.0))
    )
    trajectories.write_text(trajectories.read_text().replace("order 17", "order 18"))

    of_trajectories, of_pivots = (export(path, "nemo-gym", "--profile", profile) for path in (trajectories, pivots))

    assert "was not measured on the present content of" in of_trajectories.stderr
    assert "turn shop-0:0 has a pass rate of 1.0 here and of 0.5 in the profile" in of_pivots.stderr


# Real data


@needs_data
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_nvidias_example_rows_break_fewer_rules_after_our_export_and_hold_the_same_turns(
    tmp_path: Path, environment: str
) -> None:
    source = DATA / "nemo_gym" / f"{environment}.example.jsonl"
    broken_before, broken_after = ENVIRONMENTS[environment]
    trajectories = import_to(tmp_path / "trajectories.jsonl", source)

    export(trajectories, "nemo-gym")

    rows = exported_path(trajectories, "nemo-gym")
    assert [broken_rules(row) for row in lines_of(source)] == [broken_before] * 5
    assert [broken_rules(row) for row in lines_of(rows)] == [broken_after] * 5
    assert turns_by_id(import_back(rows)) == turns_by_id(trajectories)


@pytest.mark.heavy
@needs_data
def test_every_turn_of_the_airline_logs_is_exported_to_nemo_gym_and_imported_unchanged(airline: Path) -> None:
    result = export(airline, "nemo-gym")
    rows = exported_path(airline, "nemo-gym")

    kinds = Counter(action_type(row) for row in lines_of(rows))
    lost = Counter(name for row in lines_of(rows) for name in lost_fields(row))

    assert result.exit_code == 0, result.output
    assert kinds == {"function_call": 862, "message": 946}
    assert lost == {
        "tool name of a result": 1352,
        "id of the expert's call": 862,
        "the expert's text before a call": 71,
    }
    assert {rule for row in lines_of(rows) for rule in broken_rules(row)} == set()
    assert turns_by_id(import_back(rows, "--outcome", "all")) == turns_by_id(airline)


@pytest.mark.heavy
@needs_data
@pytest.mark.parametrize("to", ["nemo-gym", "verl", "jsonl"])
def test_pivots_of_the_airline_logs_survive_every_export_and_import(airline: Path, to: str) -> None:
    pivots = select_all(airline)

    result, again = export(pivots, to), import_back(exported_path(pivots, to))

    assert result.exit_code == 0, result.output
    found, all_turns = turns_by_id(again), turns_by_id(airline)
    assert len(found) == 1803  # five of the 1808 turns are duplicates
    assert all(all_turns[name] == turn for name, turn in found.items())


def trajectory_of(turn: Turn) -> Trajectory:
    return replace(
        make_trajectory(id=turn.trajectory_id, messages=(*turn.state, turn.expert), tools=turn.tools),
        verifier=turn.verifier,
        verifier_options=turn.verifier_options,
        metadata=turn.metadata,
    )


def pivot_row(turn: Turn) -> JsonObject:
    (row,) = pivot_rows(trajectory_of(turn), {turn.index: PivotNumbers(split="train")})
    return row


def read_row(row: JsonObject) -> Trajectory:
    place = Place(file="runs/file.jsonl", unit="line", number=1)
    return parse_row(RawRow(place=place, raw=json.dumps(row).encode()), ImportOptions()).trajectory


def read_turn(row: JsonObject) -> Turn:
    (turn,) = turns(read_row(row))
    return turn


def params_of(row: JsonObject) -> JsonObject:
    params = row["responses_create_params"]
    assert isinstance(params, dict)
    return params


def action_type(row: dict[str, Any]) -> str:
    return str(row["expected_action"]["type"])


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_trajectories(folder: Path) -> Path:
    path = import_to(folder / "trajectories.jsonl", write_lines(folder / "in.jsonl"))
    (folder / "in.jsonl").unlink()
    return path


def write_lines(path: Path) -> Path:
    asked = [replace(USER, content=f"Where is order 17{end}?") for end in ("", " of mine")]
    trajectories = [
        make_trajectory(id=f"shop-{i}", messages=(SYSTEM, user, CALL, RESULT, ANSWER)) for i, user in enumerate(asked)
    ]
    path.write_text("".join(json.dumps(trajectory_as_dict(trajectory)) + "\n" for trajectory in trajectories))
    return path


def write_profile(
    trajectories: Path,
    scores: dict[str, tuple[float | None, ...]],
    *,
    name: str = "profile.jsonl",
    default: tuple[float | None, ...] = (),
) -> Path:
    path = trajectories.with_name(name)
    settings = ProfileSettings(
        model="tiny",
        input_sha256=file_sha256(trajectories),
        num_samples=2,
        sampling=Sampling(),
        max_prompt_tokens=4096,
        chat_template_kwargs={},
    )
    with open_profile(path, settings) as writer:
        for turn in turns_by_id(trajectories).values():
            if found := scores.get(turn.id, default):
                writer.append(make_profile(found, trajectory_id=turn.trajectory_id, index=turn.index))
    return path


def turns_by_id(path: Path) -> dict[str, Turn]:
    return {turn.id: turn for trajectory in read_trajectories(path) for turn in turns(trajectory)}


@pytest.fixture(scope="module")
def imported_airline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = DATA / "tau_airline"
    options = ("--outcome", "all", "--tools", str(source / "airline_tools.json"))
    out = tmp_path_factory.mktemp("airline") / "trajectories.jsonl"
    return import_to(out, source / "gpt-4o-airline.jsonl", *options)


@pytest.fixture
def airline(imported_airline: Path, tmp_path: Path) -> Path:
    """Copy of the imported trajectories, since exports are written beside it."""
    return Path(shutil.copy(imported_airline, tmp_path))


def import_to(out: Path, source: Path, *options: str) -> Path:
    result = CliRunner().invoke(
        app, ["import", str(source), "--out", str(out), "--workers", "1", "--allow-no-tools", *options]
    )
    assert result.exit_code == 0, result.output
    return out


def import_back(path: Path, *options: str) -> Path:
    return import_to(path.with_name("again.jsonl"), path, *options)


def select_all(trajectories: Path, *options: object) -> Path:
    out = trajectories.with_name("pivots.parquet")
    keep_all = ("--keep", "all", "--max-prompt-tokens", "0", "--validation-share", "0")
    result = CliRunner().invoke(app, ["select", str(trajectories), "--out", str(out), *keep_all, *map(str, options)])
    assert result.exit_code == 0, result.output
    return out


def exported_path(source: Path, to: str) -> Path:
    return source.with_name(f"{source.stem}.export.{'parquet' if to == 'verl' else 'jsonl'}")


def export(source: Path, to: str, *options: object) -> Result:
    command = ["export", str(source), "--to", to, "--out", str(exported_path(source, to)), *map(str, options)]
    return CliRunner().invoke(app, command)
