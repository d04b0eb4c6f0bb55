"""Rows of a group that has finished -> FinishedGroup: its rollouts in the order of sampling, and whether it stays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from verl_pivot.errors import ConfigError
from verl_pivot.resampling.dynamic_sampling import DropReason
from verl_pivot.resampling.groups import Group, Rollout
from verl_pivot.resampling.penalties import penalty_of_record
from verl_pivot.resampling.sampled_rows import SampledRow


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


def rollout_id_of(key: str) -> str:
    """Id of the rollout that a row belongs to; a rollout may have several rows."""
    return key.rsplit("_", 1)[0]


def _session(rollout_id: str) -> int:
    """Position of a rollout among those that were sampled for its prompt."""
    return int(rollout_id.rsplit("_", 1)[1])


def group_of(uid: str, number: int, rows: Mapping[str, SampledRow], mode: Literal["paper", "released"]) -> Group:
    """The rollouts of a prompt in the order in which they were sampled; `rows` are in the order in which they ended."""
    usable, undecided = [], []
    rollouts = {rollout_id_of(key): row for key, row in rows.items()}
    for id_, row in sorted(rollouts.items(), key=lambda item: _session(item[0])):
        reward, record = row.reward, row.record
        if "undecided" not in reward or record is None:
            raise ConfigError(
                "pivot.resampling needs the record of each rollout's calls, which only the agent loop pivot_tools and "
                "the reward manager of +method=grpo_roc write: do not override rollout.agent and reward.reward_manager"
            )
        if reward["undecided"]:
            undecided.append(str(reward["reason"]))
        else:
            usable.append(Rollout(id=id_, score=reward["score"], penalty=penalty_of_record(record, mode)))
    return Group(uid=uid, number=number, rollouts=tuple(usable), undecided=tuple(undecided))
