"""Dumps of a training run -> StepToolUse: number of calls, length and accuracy of the trajectories of each step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from verl_pivot.data.rollout_dumps import FOLDER, DumpedRollout, read_rollouts
from verl_pivot.data.rollout_records import CallStatus, StopReason
from verl_pivot.errors import DataError
from verl_pivot.runs.run import RunPart, TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToolUse:
    """Tool use in the trajectories of one step, without those that were masked since the system failed.

    Example:
        StepToolUse(
            step=12, num_trajectories=64, num_masked=0, calling_share=0.5, calls=0.75, failing_share=0.25,
            tokens=310.5, accuracy=0.375,
        )
    """

    step: int
    num_trajectories: int
    num_masked: int
    """Trajectories that are left out because a tool, the sandbox or an engine failed."""
    calling_share: float
    """Share of trajectories that call a tool."""
    calls: float
    """Calls per trajectory, also those that failed."""
    failing_share: float | None
    """Share of calls that failed through the policy's fault; None if there are no calls."""
    tokens: float
    """Tokens that the policy sampled, per trajectory; observations do not count."""
    accuracy: float | None
    """Share of trajectories whose reward counts as right, of those that have one; None if none has."""


def read_tool_use(run: Path, *, right_from: float, on_step: Callable[[int], object]) -> tuple[StepToolUse, ...]:
    """Read every step of a run; steps in which no trajectory counts are left out.

    Args:
        run: Folder of a run, of its `trainer.rollout_data_dir`, or of dumps.
        right_from: Smallest reward of a right trajectory.
        on_step: Called with 1 after each step.

    Raises:
        DataError: If there are no dumps, one cannot be read, or no trajectory could call a tool.
    """
    steps = []
    for path in dump_files(run):
        step = step_tool_use(int(path.stem), read_rollouts(path), right_from=right_from)
        steps += [] if step is None else [step]
        on_step(1)
    if not steps:
        raise DataError(
            f"{run}: the dumps hold no trajectory with tools, apart from masked ones; give a run of a method with "
            "tools, such as +method=tool_rollout"
        )
    return tuple(steps)


def dump_files(run: Path) -> list[Path]:
    """[num_steps] our dumps of a run's training, or of a folder of dumps, by step; verl's own dumps have no calls.

    Raises:
        DataError: If there are none.
    """
    dumps = [dump for dump in TrainingRun(run).dumps if dump.is_ours and dump.step is not None]
    if files := [
        dump.path
        for dump in dumps
        if dump.part is RunPart.TRAINING or run in (dump.path, dump.path.parent, dump.path.parent.parent)
    ]:
        return files
    raise DataError(
        f"{run} has no dumps of rollouts, neither in rollouts/{FOLDER} nor in {FOLDER}: give the folder of "
        "trainer.rollout_data_dir, which the launch must set"
    )


def step_tool_use(step: int, rollouts: Iterable[DumpedRollout], *, right_from: float) -> StepToolUse | None:
    """Tool use in the trajectories of one step; None if no trajectory counts.

    Args:
        step: Number of the step.
        rollouts: Lines of the step's dump. If a trajectory has several lines, only its last one has a record and
            counts.
        right_from: Smallest reward of a right trajectory.
    """
    recorded = [(each.record, each.score) for each in rollouts if each.record is not None]
    played = [(record, score) for record, score in recorded if record.stop_reason is not StopReason.SINGLE_TURN]
    counted = [(record, score) for record, score in played if not record.is_masked]
    if not counted:
        return None
    calls = [record.made_calls for record, _ in counted]
    all_calls = [call for of_one in calls for call in of_one]
    scores = [score for _, score in counted if score is not None]
    return StepToolUse(
        step=step,
        num_trajectories=len(counted),
        num_masked=len(played) - len(counted),
        calling_share=fmean(bool(of_one) for of_one in calls),
        calls=len(all_calls) / len(counted),
        failing_share=fmean(call.status is CallStatus.TOOL_ERROR for call in all_calls) if all_calls else None,
        tokens=fmean(sum(record.turn_tokens) for record, _ in counted),
        accuracy=fmean(score >= right_from for score in scores) if scores else None,
    )
