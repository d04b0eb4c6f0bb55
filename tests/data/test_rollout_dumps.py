"""data.rollout_records and data.rollout_dumps: dumps of older and newer versions are read, other files are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout_records import dump_line, make_record
from verl_pivot.data.rollout_dumps import DumpedRollout, read_rollouts, write_rollouts
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RoutingCost, StopReason, parse_record
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


def test_a_dump_of_an_older_version_is_read_and_written_unchanged(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(f"{OLDER_LINE}\n")

    (rollout,) = read_rollouts(tmp_path / "1.jsonl")

    call = CallRecord(
        turn=0, name="add", arguments={"a": 2}, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.REFUSED,
        seconds=0.25, num_tokens=7,
    )  # fmt: skip
    assert rollout == DumpedRollout(
        uid="a_0_0", score=1.0, is_kept=True, prompt_id="eb140b54fbfdc2a0", stop_reason=StopReason.ANSWERED,
        calls=(call,), turn_tokens=(31, 9), prompt_tokens=120, response_tokens=58, generate_seconds=0.5,
        tool_seconds=0.25, num_answers=1, journey=RoutingCost(wait_seconds=0.5, num_moves=1, recomputed_tokens=70),
    )  # fmt: skip
    assert (rollout.group, rollout.id) == ("a", "a_0")
    assert (rollout.num_calls, rollout.num_tool_errors, rollout.is_masked) == (1, 1, False)
    write_rollouts(tmp_path / "2.jsonl", [rollout])
    assert json.loads((tmp_path / "2.jsonl").read_text()) == json.loads(OLDER_LINE)


def test_arguments_with_lone_surrogates_and_large_numbers_are_dumped_and_read(tmp_path: Path) -> None:
    code = {"code": "\ud800 \u00e9", "big": 2**70}
    call = CallRecord(turn=0, name="run", arguments=code, status=CallStatus.OK)
    rollouts = [
        DumpedRollout.of(make_record(calls=(call,)), uid="b_0_0", score=None, is_kept=False),
        DumpedRollout.of(make_record(), uid="a_0_0", score=1.0, is_kept=True),
    ]

    write_rollouts(tmp_path / "tools" / "1.jsonl", rollouts)

    assert list(read_rollouts(tmp_path / "tools" / "1.jsonl")) == rollouts[::-1]
    second = (tmp_path / "tools" / "1.jsonl").read_text(encoding="utf-8").splitlines()[1]
    assert json.loads(second)["calls"][0]["arguments"] == code
    assert json.loads(second)["score"] is None


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
