"""Rows that TransferQueue holds -> SampledRows, as agent loop and reward manager wrote them, and lines of dumps."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import transfer_queue as tq

from verl_pivot.data.faults import SYSTEM_FAILURE, FaultReason
from verl_pivot.data.rollout_dumps import DumpedOutcome, LeftOut
from verl_pivot.data.rollout_records import (
    PROMPT_FIELD,
    RECORD_FIELD,
    TRANSCRIPT_FIELD,
    WORKFLOW_TASK_FIELD,
    RolloutRecord,
    parse_record,
)
from verl_pivot.resampling.step_dump import DumpLine
from verl_pivot.rollout.workflows import WorkflowTask

_FIELDS_OF_LINES = {"score", "undecided", "verifier", "reason", "detail", "stop_reason", "num_calls", "num_tool_errors"}
"""Values of a reward manager that have keys of their own in a line of a dump."""


class SampledRow(NamedTuple):
    """One row as the agent loop and the reward manager wrote it."""

    reward: Mapping[str, Any]
    """`reward_extra_info` of the reward manager; empty if it wrote none."""
    record: RolloutRecord | None
    """Record of a rollout with tools; None for rows of other agent loops."""
    transcript: bytes | None = None
    """The rollout's part of its line in a dump; None if nothing is dumped, and for agent loops of verl."""
    prompt: bytes | None = None
    """Messages of the rollout's prompt for the dump; None if no texts are dumped, and for agent loops of verl."""
    workflow_task: WorkflowTask | None = None
    """Goal and site; None unless `pivot.rollout.workflows` is on."""

    @property
    def is_undecided(self) -> bool:
        return bool(self.reward.get("undecided"))

    @property
    def score(self) -> float | None:
        """Score of the row; None if it is undecided."""
        return None if self.is_undecided else self.reward.get("score")

    @property
    def has_failed(self) -> bool:
        """Whether the agent loop raised an error before it wrote a record."""
        return self.record is None and self.reward.get("reason") in {SYSTEM_FAILURE, *FaultReason}

    @property
    def unusable(self) -> LeftOut | None:
        """Reason for which no update may see the row, regardless of its group; None if it is usable."""
        if not self.is_undecided:
            return None
        return LeftOut.MASKED if self.record is not None and self.record.is_masked else LeftOut.UNDECIDED


def read_sampled_rows(keys: Sequence[str], partition_id: str) -> list[SampledRow]:
    """[num_rows] rows that TransferQueue holds under these keys.

    Raises:
        DataError: If the record of a rollout cannot be read.
    """
    if not keys:
        return []
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["extra_fields"])
    return [_sampled_row(fields) for fields in data.get("extra_fields").tolist()]


def rollout_id_of(key: str) -> str:
    """Id of the rollout that a row belongs to; a rollout may have several rows."""
    return key.rsplit("_", 1)[0]


def recorded_rows(rows: Mapping[str, SampledRow]) -> dict[str, SampledRow]:
    """{id of a rollout: its row with the record, or else any of its rows}."""
    recorded: dict[str, SampledRow] = {}
    for key, row in rows.items():
        id_ = rollout_id_of(key)
        if id_ not in recorded or row.record is not None:
            recorded[id_] = row
    return recorded


def rewards_by_group(rows: Mapping[str, SampledRow]) -> dict[str, list[Mapping[str, Any]]]:
    """{group: what the reward manager wrote about each of its rollouts}; keys of `rows` begin with the group."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for key, row in rows.items():
        groups[key.split("_")[0]].append(row.reward)
    return groups


def _sampled_row(extra_fields: Mapping[str, Any]) -> SampledRow:
    record = extra_fields.get(RECORD_FIELD)
    return SampledRow(
        extra_fields.get("reward_extra_info", {}),
        None if record is None else parse_record(record),
        extra_fields.get(TRANSCRIPT_FIELD),
        extra_fields.get(PROMPT_FIELD),
        None if (task := extra_fields.get(WORKFLOW_TASK_FIELD)) is None else msgspec.convert(task, WorkflowTask),
    )


def dump_line(uid: str, row: SampledRow, step: int, left_out: LeftOut | None) -> DumpLine:
    """The line of a row in the dump of its step; `left_out` is None if the update saw it."""
    reward = row.reward
    outcome = DumpedOutcome(
        uid=uid,
        step=step,
        score=row.score,
        verifier=reward.get("verifier"),
        reason=reward.get("reason", ""),
        detail=reward.get("detail", ""),
        is_kept=left_out is None,
        left_out=left_out,
        reward_info={key: value for key, value in reward.items() if key not in _FIELDS_OF_LINES},
    )
    return DumpLine(outcome, row.transcript, row.prompt)
