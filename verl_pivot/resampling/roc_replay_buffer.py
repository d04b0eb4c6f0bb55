"""RocReplayBuffer: verl's replay buffer for GRPO-RoC, which gives the update a part of each oversampled group."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.errors import ConfigError, ResamplingError
from verl_pivot.resampling.dynamic_sampling import DropReason
from verl_pivot.resampling.groups import DroppedGroups, Group, Rollout, resampling_metrics
from verl_pivot.resampling.penalties import penalty_of_record
from verl_pivot.resampling.replay_buffer import PivotSampling, SampledRow, read_sampled_rows
from verl_pivot.resampling.settings import settings_of

_TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FinishedGroup:
    """A group whose rollouts have all ended, with its rows."""

    group: Group
    drop_reason: DropReason | None
    """Why the group is dropped and replaced; None if it stays."""
    rows: dict[str, SampledRow]
    """{key: row}"""


class _RocSampling(PivotSampling):
    """Base of the buffers of both trainer modes. Validation is as in `PivotSampling`.

    Whenever verl polls, the groups that finished since the last poll are read, so that few are left at the end.
    """

    def __init__(self, *args: Any, sampler_kwargs: DictConfig, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs)
        self._settings = settings_of(sampler_kwargs.resampling)
        self._numbers: dict[str, int] = {}
        """{uid of a prompt: its position in the order in which the step's prompts were handed out}"""
        self._finished: dict[str, _FinishedGroup] = {}
        """{uid: group} for the groups that were read and not yet sampled or replaced."""
        self._dropped = DroppedGroups()
        self._sampled: list[_FinishedGroup] = []
        """Groups of the last batch."""
        self._replaced: list[_FinishedGroup] = []
        """Groups of this step that were dropped."""
        self._resampling_metrics: dict[str, float] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample exactly `batch_size * rollout.n` rollouts.

        Raises:
            ResamplingError: If `pivot.resampling.max_gen_batches` batches of prompts do not give enough groups.
        """
        if partition_id != _TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        self._step, self._batch_size, self._dropped, self._replaced = global_steps, batch_size, DroppedGroups(), []
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        self._numbers = {uid: number for uid, number in self._numbers.items() if uid in self._finished}
        return batch, {**metrics, **self._resampling_metrics}

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl's hook, called at every poll: returns groups to be dropped and replaced as if they had failed."""
        stale, dapo, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)  # type: ignore[misc]  # verl's
        if partition_id != _TRAIN:
            return stale, dapo, failed, counts
        self._read_finished(global_steps)
        return stale, set(), {uid for uid, each in self._finished.items() if each.drop_reason is not None}, Counter()

    def _read_finished(self, step: int) -> None:
        for uid in self.prompt_global_steps[_TRAIN]:  # type: ignore[attr-defined]  # verl's
            self._numbers.setdefault(uid, len(self._numbers))
        new = (self.finished_keys[_TRAIN] | self.failure_keys[_TRAIN]) - self._finished.keys()  # type: ignore[attr-defined]  # verl's
        if not new:
            return
        keys = [key for key in self.partitions[_TRAIN] if _uid(key) in new]  # type: ignore[attr-defined]  # verl's
        by_uid: dict[str, dict[str, SampledRow]] = {uid: {} for uid in new}
        for key, row in zip(keys, read_sampled_rows(keys, _TRAIN), strict=True):
            by_uid[_uid(key)][key] = row
        for uid, rows in by_uid.items():
            group = _group(uid, self._numbers[uid], rows)
            self._finished[uid] = _FinishedGroup(
                group=group, drop_reason=group.drop_reason(self._settings, step), rows=rows
            )

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, reasons: Any) -> Any:
        """verl's hook: verl clears and replaces the groups; this class counts them and moves them out of `_finished`.

        Raises:
            ResamplingError: If too many groups had to be replaced.
        """
        result = super()._evict_terminal_groups(global_steps, partition_id, reasons)  # type: ignore[misc]  # verl's
        if partition_id != _TRAIN:
            return result
        evicted, *_, metrics = result
        metrics.pop("training/rollout_failure/evicted_samples", None)  # reported as down_sampling/groups_...
        for each in map(self._finished.pop, evicted):
            if each.drop_reason is not None:
                self._dropped.add(each.group, each.drop_reason)
                self._replaced.append(each)
        limit = self._settings.max_gen_batches
        if self._dropped.reasons.total() > (limit - 1) * self._batch_size:
            raise ResamplingError(
                f"step {global_steps}: {limit} batches of {self._batch_size} prompts did not give {self._batch_size} "
                f"groups to learn from: {self._dropped}; repair what makes rollouts unusable, choose prompts that the "
                "policy sometimes solves, or raise pivot.resampling.max_gen_batches"
            )
        return result

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: Collection[str], batch_size: int) -> Any:
        """verl's hook: where verl may take any prompts of a step, takes those that were handed out first."""
        if partition_id == _TRAIN:
            sampleable_keys = sorted(sampleable_keys, key=self._numbers.__getitem__)
        return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)  # type: ignore[misc]  # verl's

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        """verl's hook: returns the rows that the update sees, and clears prompts and other rows in one request."""
        if partition_id != _TRAIN:
            return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)  # type: ignore[misc]  # verl's
        self._sampled = [self._finished.pop(uid) for uid in selected_prompt_uids]
        groups = [each.group for each in self._sampled]
        kept = {group.uid: group.kept(self._settings, self._step) for group in groups}
        self._resampling_metrics = resampling_metrics(groups, kept, self._dropped)
        chosen = {rollout.id for each in kept.values() for rollout in each}
        sampled = sorted(key for each in self._sampled for key in each.rows)
        left = [key for key in sampled if _rollout_id(key) not in chosen]
        tq.kv_clear(keys=[*selected_prompt_uids, *left], partition_id=partition_id)
        keys = [key for key in sampled if _rollout_id(key) in chosen]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[partition_snapshot[key] for key in keys])

    def _read(self, batch: KVBatchMeta) -> list[SampledRow]:
        """The rows of a training batch, which were read already when their groups finished."""
        if batch.partition_id != _TRAIN:
            return super()._read(batch)
        rows = self._generated_rows()
        return [rows[key] for key in batch.keys]

    def _report_rollouts(
        self, rows: Mapping[str, SampledRow], kept: Collection[str], step: int, partition_id: str
    ) -> dict[str, float]:
        """Metrics and dump of all generated rollouts, not only of those that the update sees."""
        generated = self._generated_rows() if partition_id == _TRAIN else rows
        return super()._report_rollouts(generated, kept, step, partition_id)

    def _generated_rows(self) -> dict[str, SampledRow]:
        return {key: row for each in (*self._replaced, *self._sampled) for key, row in each.rows.items()}


class RocReplayBuffer(_RocSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """Buffer for `trainer.v1.trainer_mode=sync`."""


class RocReplayBufferAsync(_RocSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """Buffer for the asynchronous trainer modes."""


def _uid(key: str) -> str:
    return key.split("_")[0]


def _rollout_id(key: str) -> str:
    """Id of the rollout that a row belongs to; a rollout may have several rows."""
    return key.rsplit("_", 1)[0]


def _group(uid: str, number: int, rows: Mapping[str, SampledRow]) -> Group:
    usable, undecided = [], []
    rollouts = {_rollout_id(key): row for key, row in rows.items()}
    for id_, (reward, record) in rollouts.items():
        if "undecided" not in reward or record is None:
            raise ConfigError(
                "pivot.resampling needs the record of each rollout's calls, which only the agent loop pivot_tools and "
                "the reward manager of +method=grpo_roc write: do not override rollout.agent and reward.reward_manager"
            )
        if reward["undecided"]:
            undecided.append(str(reward["reason"]))
        else:
            usable.append(Rollout(id=id_, score=reward["score"], penalty=penalty_of_record(record)))
    return Group(uid=uid, number=number, rollouts=tuple(usable), undecided=tuple(undecided))
