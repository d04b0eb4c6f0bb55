"""runs.tool_use: dumps of a run -> calls, failing calls, length and accuracy of each step, from real files."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout_records import dump_line
from verl_pivot.data.rollout_dumps import DumpedOutcome, encode_line
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.errors import DataError
from verl_pivot.runs.tool_use import StepToolUse, dump_files, read_tool_use
from verl_pivot.types import ErrorKind


def called(error: ErrorKind | None = None) -> CallRecord:
    status = CallStatus.OK if error is None else CallStatus.TOOL_ERROR
    return CallRecord(turn=0, name="add", arguments={}, status=status, error_kind=error)


def write_steps(folder: Path, *steps: list[str]) -> Path:
    """Write lines of dumps as steps 1, 2, and so on of a run, and return the run's folder."""
    dumps = folder / "rollouts" / "pivot"
    dumps.mkdir(parents=True)
    for number, lines in enumerate(steps, start=1):
        (dumps / f"{number}.jsonl").write_text("".join(lines))
    return folder


def read(run: Path, right_from: float = 0.5) -> tuple[StepToolUse, ...]:
    return read_tool_use(run, right_from=right_from, on_step=lambda _: None)


def test_a_step_has_the_means_of_its_trajectories(tmp_path: Path) -> None:
    lines = [
        dump_line("a_0_0", 1.0, calls=(called(), called(ErrorKind.EXECUTION_ERROR)), turn_tokens=(5, 7)),
        dump_line("a_1_0", -1.0, calls=(called(),), turn_tokens=(4, 4)),
        dump_line("b_0_0", None, turn_tokens=(20,), response_tokens=900),
        dump_line("b_1_0", None, calls=(called(ErrorKind.REFUSED),), turn_tokens=(10,)),
    ]

    assert read(write_steps(tmp_path, lines)) == (
        StepToolUse(
            step=1, num_trajectories=4, num_masked=0, calling_share=0.75, calls=1.0, failing_share=0.5, tokens=12.5,
            accuracy=0.5,
        ),
    )  # fmt: skip


def test_what_the_system_got_wrong_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = [dump_line("a_0_0", None, stop_reason=StopReason.TOOL_FAILURE, calls=(called(),)), dump_line("a_1_0", 0.0)]
    only_masked = [dump_line("b_0_0", None, stop_reason=StopReason.ENGINE_FAILURE)]

    (step,) = read(write_steps(tmp_path, lines, only_masked))

    assert (step.step, step.num_trajectories, step.num_masked, step.calls, step.failing_share) == (1, 1, 1, 0.0, None)


def test_a_retry_message_is_no_call(tmp_path: Path) -> None:
    (step,) = read(write_steps(tmp_path, [dump_line("a_0_0", calls=(called(ErrorKind.NO_ACTION), called()))]))

    assert (step.calling_share, step.calls, step.failing_share) == (1.0, 1.0, 0.0)


def test_lines_of_one_trajectory_count_once(tmp_path: Path) -> None:
    part = encode_line(DumpedOutcome(uid="a_0_0", step=1, score=1.0, is_kept=True), None).decode()

    (step,) = read(write_steps(tmp_path, [part, dump_line("a_0_1", 0.0)]))

    assert (step.num_trajectories, step.accuracy) == (1, 0.0)


@pytest.mark.parametrize(("right_from", "accuracy"), [(0.5, 0.75), (1.0, 0.5), (0.1, 1.0)])
def test_the_least_right_reward_can_be_set(tmp_path: Path, right_from: float, accuracy: float) -> None:
    lines = [dump_line(f"a_{number}_0", score) for number, score in enumerate((1.0, 1.0, 0.5, 0.3))]

    (step,) = read(write_steps(tmp_path, lines), right_from)

    assert step.accuracy == accuracy


def test_steps_come_by_number_and_other_files_are_not_read(tmp_path: Path) -> None:
    run = write_steps(tmp_path, *[[dump_line("a_0_0")]] * 11)
    for name in ("notes.jsonl", "12.jsonl.unfinished", "summary.json"):
        (run / "rollouts" / "pivot" / name).write_text("none of ours")
    (run / "rollouts" / "3.jsonl").write_text('{"input": "verl\'s own dump"}\n')

    for folder in (run, run / "rollouts", run / "rollouts" / "pivot"):
        assert [step.step for step in read(folder)] == list(range(1, 12))
        assert [path.name for path in dump_files(folder)] == [f"{step}.jsonl" for step in range(1, 12)]


def test_the_folder_that_the_launch_named_is_read_and_so_is_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = write_steps(tmp_path / "elsewhere", [dump_line("a_0_0")]) / "rollouts"
    run = tmp_path / "run"
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra" / "config.yaml").write_text(f"trainer: {{rollout_data_dir: {dumps}}}\n")
    (run / "validation" / "pivot").mkdir(parents=True)
    (run / "validation" / "pivot" / "7.jsonl").write_text(dump_line("v_0_0"))

    assert dump_files(run) == [dumps / "pivot" / "1.jsonl"]
    monkeypatch.chdir(dumps / "pivot")
    assert dump_files(Path()) == [Path("1.jsonl")]


def refused(run: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(run)
    return str(caught.value)


def test_what_is_no_run_with_tools_is_refused_in_one_sentence(tmp_path: Path) -> None:
    own_of_verl = tmp_path / "own"
    own_of_verl.mkdir()
    (own_of_verl / "1.jsonl").write_text("{}\n")
    without_record = encode_line(DumpedOutcome(uid="a_0_0", step=1, score=1.0, is_kept=True), None).decode()
    single: dict[str, Any] = {"stop_reason": StopReason.SINGLE_TURN}

    for folder in (tmp_path / "nowhere", own_of_verl):
        assert refused(folder).startswith(f"{folder} has no dumps of rollouts, neither in rollouts/pivot nor in pivot:")
    for number, line in enumerate((without_record, dump_line("a_0_0", **single))):
        run = write_steps(tmp_path / str(number), [line])
        assert refused(run).startswith(f"{run}: the dumps hold no trajectory with tools")
    broken = write_steps(tmp_path / "broken", ['{"uid": 3}\n'])
    assert "1.jsonl" in refused(broken)
    assert "is not a rollout" in refused(broken)
