"""Rows of a group that has finished -> FinishedGroup: its rollouts in the order of sampling, and whether it stays."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_pivot.errors import ConfigError
from verl_pivot.resampling.dynamic_sampling import DropReason
from verl_pivot.resampling.groups import Group, Rollout
from verl_pivot.resampling.penalties import Penalty, penalty_of_record, penalty_of_steps
from verl_pivot.resampling.sampled_rows import SampledRow, recorded_rows
from verl_pivot.resampling.settings import ResamplingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group whose rollouts have all ended, with its rows."""

    group: Group
    drop_reason: DropReason | None
    """Why the group is dropped and replaced by another prompt; None if it is sampled."""
    rows: dict[str, SampledRow]
    """{key: row}"""


def uid_of(key: str) -> str:
    return key.split("_")[0]


def _session(rollout_id: str) -> int:
    """Position of a rollout among those that were sampled for its prompt."""
    return int(rollout_id.rsplit("_", 1)[1])


def group_of(uid: str, number: int, rows: Mapping[str, SampledRow], mode: ResamplingMode) -> Group:
    """The rollouts of a prompt in the order in which they were sampled; `rows` are in the order in which they ended."""
    usable, undecided = [], []
    for id_, row in sorted(recorded_rows(rows).items(), key=lambda item: _session(item[0])):
        if row.is_undecided:
            undecided.append(str(row.reward["reason"]))
        else:
            penalty = _penalty(row, mode)  # first, since it refuses rows of other agent loops, which have no score
            usable.append(Rollout(id=id_, score=row.reward["score"], penalty=penalty))
    return Group(uid=uid, number=number, rollouts=tuple(usable), undecided=tuple(undecided))


def _penalty(row: SampledRow, mode: ResamplingMode) -> Penalty:
    """Penalty of a rollout; in a notebook the cell of each step counts as a call, and not the tools that it called."""
    reward, record = row.reward, row.record
    if "undecided" not in reward or record is None:
        raise ConfigError(
            "pivot.resampling needs the record of each rollout's calls, which only this package's agent loops with "
            "tools (pivot_tools, pivot_notebook) and its reward manager write: do not override rollout.agent and "
            "reward.reward_manager"
        )
    if reward.get("steps") is None:
        return penalty_of_record(record, mode)
    return penalty_of_steps(int(reward["steps"]), int(reward["failed_steps"]))
