"""Dumps of trajectories on web pages -> the study's measures of each trajectory, on seen and on unseen tasks."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from examples.comparison import mean
from examples.dumps import decided, step_dumps
from examples.web.rows import SOURCE
from examples.web.tasks import TASKS
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import DumpedRollout, read_rollouts
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.rewards.process_record import process_record

SEEN, UNSEEN = "seen", "unseen"
PARTS = (SEEN, UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decided trajectory."""

    prompt_id: str
    """Task, and digest of its sentence and first page, which all rollouts of a group in training share. On held-out
    rows also the number of earlier trajectories of the dump with the same task and digest, which pairs two arms."""
    task: str
    is_solved: bool
    num_actions: int
    """Number of calls, including failed ones."""
    num_failed: int
    """Number of calls that returned an error to the policy."""
    reward: float
    """Sum of the rewards of its turns."""
    scores: tuple[float | None, ...]
    """The judge's scores of the turns but the last; None if its answer was invalid, empty if no judge was asked."""
    num_turns: int
    stop_reason: str
    num_workflows: int
    """Number of workflows in its prompt."""
    response_tokens: int

    @property
    def em(self) -> float:
        """1 if the task is solved, else 0."""
        return float(self.is_solved)

    @property
    def part(self) -> str:
        return SEEN if TASKS[self.task].is_seen else UNSEEN


def success(played: Sequence[Played]) -> float:
    """Share of the trajectories that solved their task."""
    return mean([each.em for each in played])


def actions_per_success(played: Sequence[Played]) -> float:
    """Mean number of actions of the trajectories that solved their task."""
    return mean([each.num_actions for each in played if each.is_solved])


MEASURES: Mapping[str, Callable[[Sequence[Played]], float]] = {
    "success": success,
    "actions of a success": actions_per_success,
    "failed calls": lambda played: mean([each.num_failed for each in played]),
    "reward": lambda played: mean([each.reward for each in played]),
}
"""{name: measure}; NaN where no trajectory has what is measured."""


def read_dump(path: Path) -> list[Played]:
    """All decided trajectories of a dump, without those that the system failed."""
    return numbered(_trajectories(path))


def read_training(folder: Path) -> dict[int, list[Played]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: _trajectories(path) for step, path in step_dumps(folder).items()}


def _trajectories(path: Path) -> list[Played]:
    pages = {row.group: prompt_id(row.prompt[-1:]) for row in read_rollouts(path) if row.prompt is not None}
    return [_played(*each, pages.get(each.row.group)) for each in decided(path)]


def numbered(played: Iterable[Played]) -> list[Played]:
    """The trajectories, each `prompt_id` with the number of earlier equal ones appended, so that all differ."""
    counts: Counter[str] = Counter()
    found = []
    for each in played:
        found.append(replace(each, prompt_id=f"{each.prompt_id} {counts[each.prompt_id]}"))
        counts[each.prompt_id] += 1
    return found


def of_part(played: Iterable[Played], part: str) -> list[Played]:
    """The trajectories on seen, or on unseen tasks."""
    return [each for each in played if each.part == part]


def _played(row: DumpedRollout, record: RolloutRecord, score: float, first_page: str | None) -> Played:
    """One trajectory; if the dump left out its first page, `prompt_id` has the digest of its sentence alone."""
    assert row.data_source is not None, row.uid
    process = process_record(row.reward_info)
    task = row.data_source.removeprefix(SOURCE)
    return Played(
        prompt_id=f"{task} {first_page or record.prompt_id}",
        task=task,
        is_solved=score > 0.0,
        num_actions=record.num_calls,
        num_failed=record.num_tool_errors,
        reward=score if process is None else sum(process.rewards),
        scores=() if process is None else process.scores,
        num_turns=len(record.turn_tokens),
        stop_reason=record.stop_reason.value,
        num_workflows=record.num_workflows,
        response_tokens=record.response_tokens,
    )
