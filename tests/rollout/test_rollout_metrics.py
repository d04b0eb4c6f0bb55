"""Metrics of a step's rollouts by hand: what counts as a call, and who counts as masked."""

from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.rollout.rollout_metrics import rollout_metrics, success_metrics
from verl_pivot.types import ErrorKind


def mistake(kind: ErrorKind, turn: int = 0) -> CallRecord:
    return CallRecord(turn=turn, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=kind)


def test_a_turn_with_neither_a_call_nor_an_answer_is_no_call() -> None:
    idle = make_record(calls=tuple(mistake(ErrorKind.NO_ACTION, turn) for turn in range(3)), turn_tokens=(5,) * 4)

    metrics = rollout_metrics([idle])

    assert (metrics["rollout/calls_per_trajectory"], metrics["rollout/no_action_rate"]) == (0.0, 0.75)
    assert "rollout/error_rate" not in metrics
    assert (idle.num_calls, idle.num_tool_errors, success_metrics([idle])) == (0, 0, {})


def test_a_call_that_could_not_be_read_is_a_call_that_failed() -> None:
    calls = (mistake(ErrorKind.MALFORMED_CALL), CallRecord(turn=1, name="add", arguments={}, status=CallStatus.OK))

    metrics = rollout_metrics([make_record(calls=calls, turn_tokens=(5,) * 3)])

    assert (metrics["rollout/calls_per_trajectory"], metrics["rollout/error_rate"]) == (2.0, 0.5)
    assert (metrics["rollout/error_rate/malformed_call"], metrics["rollout/no_action_rate"]) == (0.5, 0.0)


def test_rollouts_whose_agent_loop_raised_an_error_count_as_masked() -> None:
    records = [make_record(), make_record(stop_reason=StopReason.TOOL_FAILURE)]

    assert rollout_metrics(records, num_failed=2)["rollout/masked_rate"] == 0.75
    assert rollout_metrics(records)["rollout/masked_rate"] == 0.5


def test_the_masked_rate_is_there_also_where_every_agent_loop_raised_an_error() -> None:
    assert rollout_metrics([], num_failed=2) == {"rollout/masked_rate": 1.0}
    assert rollout_metrics([]) == {}
