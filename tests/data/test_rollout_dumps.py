"""data.rollout_records and data.rollout_dumps: dumps of older and newer versions are read, other files are refused."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from tests.support.rollout_records import dump_line, make_record
from verl_pivot.data.rollout_dumps import (
    DumpedOutcome,
    DumpedRollout,
    DumpedTurn,
    LeftOut,
    encode_line,
    encode_prompt,
    encode_transcript,
    read_rollouts,
    sampled_spans,
    without_texts,
)
from verl_pivot.data.rollout_records import (
    CallRecord,
    CallStatus,
    RolloutRecord,
    RoutingCost,
    StopReason,
    parse_record,
)
from verl_pivot.errors import DataError
from verl_pivot.types import ErrorKind

OLDER_LINE = (
    '{"uid":"a_0_0","score":1.0,"kept":true,"prompt_id":"eb140b54fbfdc2a0","stop_reason":"answered","is_masked":false,'
    '"calls":[{"turn":0,"name":"add","arguments":{"a":2},"status":"tool_error","error_kind":"refused","seconds":0.25,'
    '"num_tokens":7,"truncated":false,"detail":""}],"num_calls":1,"num_tool_errors":1,"turn_tokens":[31,9],'
    '"prompt_tokens":120,"response_tokens":58,"generate_seconds":0.5,"tool_seconds":0.25,"num_empty_answers":0,'
    '"num_answers":1,"text_differs":false,"journey":{"wait_seconds":0.5,"num_moves":1,"recomputed_tokens":70},'
    '"failure":""}'
)
"""Line of a dump as the first version that had dumps wrote it."""


def test_a_dump_of_an_older_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(f"{OLDER_LINE}\n")

    (rollout,) = read_rollouts(tmp_path / "1.jsonl")

    call = CallRecord(
        turn=0, name="add", arguments={"a": 2}, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.REFUSED,
        seconds=0.25, num_tokens=7,
    )  # fmt: skip
    record = RolloutRecord(
        prompt_id="eb140b54fbfdc2a0", stop_reason=StopReason.ANSWERED, calls=(call,), turn_tokens=(31, 9),
        prompt_tokens=120, response_tokens=58, generate_seconds=0.5, tool_seconds=0.25, num_answers=1,
        journey=RoutingCost(wait_seconds=0.5, num_moves=1, recomputed_tokens=70),
    )  # fmt: skip
    assert rollout == DumpedRollout(uid="a_0_0", score=1.0, is_kept=True, record=record)
    assert (rollout.group, rollout.id) == ("a", "a_0")
    assert (record.num_calls, record.num_tool_errors, record.is_masked) == (1, 1, False)


def test_a_line_says_what_was_rewarded_and_why(tmp_path: Path) -> None:
    record = make_record(stop_reason=StopReason.SINGLE_TURN)
    turn = DumpedTurn(text="I wait.", num_tokens=5, ended=True, seconds=0.5)
    row = {"trajectory_id": "shop-17", "turn_index": numpy.int64(3), "data_source": "shop", "prompt": "[]"}
    outcome = DumpedOutcome(
        uid="a_0_0", step=12, score=0.0, verifier="tool_call", reason="wrong_value", detail="9 is not 9.5",
        is_kept=False, left_out=LeftOut.LONE, reward_info={"acc": numpy.float64(0.5), "ids": numpy.arange(2)},
    )  # fmt: skip

    transcript = encode_transcript(row, record, [turn], mask=[1, 1, 1, 0, 0, 1, 1], turn_ends=[3, 7])
    prompt = encode_prompt([{"role": "user", "content": "Wait."}])
    (tmp_path / "12.jsonl").write_bytes(encode_line(outcome, transcript, prompt))

    fields = json.loads((tmp_path / "12.jsonl").read_text())
    assert fields == {
        "uid": "a_0_0", "step": 12, "verifier": "tool_call", "score": 0.0, "reason": "wrong_value",
        "detail": "9 is not 9.5", "kept": False, "left_out": "lone", "reward_info": {"acc": 0.5, "ids": [0, 1]},
        "trajectory_id": "shop-17", "turn_index": 3, "data_source": "shop",
        "prompt": [{"role": "user", "content": "Wait."}], "sampled_spans": [[0, 3], [5, 7]], "turn_ends": [3, 7],
        "turns": [{"text": "I wait.", "num_tokens": 5, "ended": True, "observations": [], "seconds": 0.5}],
        **record.as_dict(),
    }  # fmt: skip
    (rollout,) = read_rollouts(tmp_path / "12.jsonl")
    assert (rollout.trajectory_id, rollout.turn_index, rollout.left_out) == ("shop-17", 3, LeftOut.LONE)
    assert (rollout.turns, rollout.record) == ((turn,), record)
    assert (rollout.sampled_spans, rollout.turn_ends) == (((0, 3), (5, 7)), (3, 7))


@given(lists(integers(0, 1)))
def test_spans_are_the_stretches_of_sampled_tokens(mask: list[int]) -> None:
    spans = sampled_spans(mask)

    assert [at for begin, end in spans for at in range(begin, end)] == [at for at, each in enumerate(mask) if each]
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans))


def test_texts_are_left_out_and_all_else_stays(tmp_path: Path) -> None:
    turn = DumpedTurn(text="\ud800", num_tokens=5, ended=True, observations=("5",), tool_seconds=0.25)
    outcome = DumpedOutcome(uid="a_0_0", step=1, score=0.0, is_kept=False)
    transcript = encode_transcript({"turn_index": 3}, make_record(), [turn], mask=[1, 0], turn_ends=[1])

    (tmp_path / "1.jsonl").write_bytes(encode_line(outcome, without_texts(transcript)))

    (rollout,) = read_rollouts(tmp_path / "1.jsonl")
    assert rollout.turns == (DumpedTurn(num_tokens=5, ended=True, tool_seconds=0.25),)
    assert (rollout.has_texts, rollout.record, rollout.turn_index) == (False, make_record(), 3)
    assert (rollout.prompt, rollout.sampled_spans) == (None, ((0, 1),))


def test_a_rollout_of_an_agent_loop_of_verl_is_dumped_without_its_texts(tmp_path: Path) -> None:
    outcome = DumpedOutcome(uid="a_0_0", step=1, score=1.0, is_kept=True)

    (tmp_path / "1.jsonl").write_bytes(encode_line(outcome, None))

    assert list(read_rollouts(tmp_path / "1.jsonl")) == [
        DumpedRollout(uid="a_0_0", step=1, score=1.0, is_kept=True, turns=(), record=None)
    ]


def test_lone_surrogates_large_numbers_and_nan_are_dumped_as_json_and_read(tmp_path: Path) -> None:
    code = {"code": "\ud800 \u00e9", "big": 2**70}
    record = make_record(calls=(CallRecord(turn=0, name="run", arguments=code, status=CallStatus.OK),))
    turn = DumpedTurn(text="\ud800", num_tokens=1, ended=False, observations=("\udfff",))
    outcome = DumpedOutcome(
        uid="b_0_0", step=1, score=None, detail="\ud800", is_kept=False, reward_info={"loss": math.nan}
    )

    (tmp_path / "1.jsonl").write_bytes(encode_line(outcome, encode_transcript({}, record, [turn])))

    line = (tmp_path / "1.jsonl").read_text(encoding="utf-8")
    assert json.loads(line, parse_constant=pytest.fail)["calls"][0]["arguments"] == code
    (rollout,) = read_rollouts(tmp_path / "1.jsonl")
    assert (rollout.record, rollout.turns, rollout.detail) == (record, (turn,), "\ud800")
    assert rollout.reward_info == {"loss": None}


def test_an_unknown_field_is_ignored() -> None:
    record = make_record(num_answers=2)

    assert parse_record({**record.as_dict(), "weather": "fine"}) == record


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"turn_tokens": "many"}, r"Expected `array`, got `str` - at `\$\.turn_tokens`"),
        ({"stop_reason": "tired"}, r"Invalid enum value 'tired' - at `\$\.stop_reason`"),
        ({"calls": [{"turn": 0}]}, r"Object missing required field `name` - at `\$\.calls\[0\]`"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    fields = {**json.loads(dump_line("a_0_0")), **change}
    (tmp_path / "1.jsonl").write_text(json.dumps(fields))

    with pytest.raises(DataError, match=rf"extra_fields\['rollout'\] is not a record of a rollout: {problem}; run the"):
        parse_record(fields)
    with pytest.raises(DataError, match=rf"1.jsonl, line 1 is not a rollout \({problem}\): give a file of the folder"):
        list(read_rollouts(tmp_path / "1.jsonl"))


@pytest.mark.parametrize("line", ["[]", "3", '"text"', "null", '{"uid": "a_0_0", "score": 1.0}'])
def test_a_line_that_is_no_rollout_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "1.jsonl").write_text(line + "\n")

    with pytest.raises(DataError, match=r"1.jsonl, line 1 is not a rollout"):
        list(read_rollouts(tmp_path / "1.jsonl"))
