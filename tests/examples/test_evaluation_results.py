"""Evaluations on held-out rows: which of them are undecided."""

from pathlib import Path

from examples.evaluation_results import undecided, undecided_in_training
from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_dumps import DumpedOutcome, encode_line, encode_transcript
from verl_pivot.data.rollout_records import StopReason


def line(uid: str, score: float | None, stop: StopReason = StopReason.ANSWERED) -> bytes:
    outcome = DumpedOutcome(uid=f"{uid}_0_0", score=score, is_kept=True)
    return encode_line(outcome, encode_transcript({}, make_record(stop_reason=stop), ()))


def test_rows_that_the_system_left_undecided_are_named_by_their_step(tmp_path: Path) -> None:
    first, second = tmp_path / "0.jsonl", tmp_path / "10.jsonl"
    first.write_bytes(line("a", 1.0) + line("b", 0.0))
    part = encode_line(DumpedOutcome(uid="c_0_0", score=0.0, is_kept=True), encode_transcript({}, None, ()))
    second.write_bytes(line("a", None) + line("b", 0.0) + part + line("c", 0.0, StopReason.TOOL_FAILURE))

    assert undecided("gain", 1, {0: first, 10: second}) == [
        "gain, seed 1: 2 of 3 held-out rows are undecided at step 10."
    ]


def test_undecided_rollouts_of_a_training_are_counted_over_its_steps(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_bytes(line("a", 1.0) + line("b", None))
    second.write_bytes(line("c", 0.0))

    assert undecided_in_training("gain", 1, [first, second]) == [
        "gain, seed 1: 1 of 3 rollouts of the training are undecided."
    ]
    assert undecided_in_training("gain", 1, [second]) == []
