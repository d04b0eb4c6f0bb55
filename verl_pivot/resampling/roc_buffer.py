"""verl's replay buffer for GRPO-RoC: reads oversampled groups as they finish, replaces some, keeps part of each."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.errors import ConfigError, ResamplingError
from verl_pivot.resampling.dynamic import Fate
from verl_pivot.resampling.oversampled import Dropped, Group, Rollout, resampling_metrics
from verl_pivot.resampling.penalties import penalty_of_record
from verl_pivot.resampling.replay_buffer import PivotSampling, read_extra_fields
from verl_pivot.resampling.settings import settings_of
from verl_pivot.rollout.rollout_record import FIELD

_TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finished:
    """A group that is read, and what was read of each of its rows."""

    group: Group
    fate: Fate | None
    fields: dict[str, dict[str, Any]]


class _RocSampling(PivotSampling):
    """What both trainer modes share. Of validation nothing is changed.

    Each poll of verl reads the groups that finished since the last, so that little is left to read after the last one.
    """

    def __init__(self, *args: Any, sampler_kwargs: DictConfig, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs)
        self._settings = settings_of(sampler_kwargs.resampling)
        self._numbers: dict[str, int] = {}
        """{uid: number} of the prompts of a step, in the order in which they were handed out."""
        self._finished: dict[str, _Finished] = {}
        self._dropped = Dropped()
        self._sampled: list[_Finished] = []
        """Of the last batch."""
        self._replaced: list[_Finished] = []
        """Groups of this step that were not fit for it."""
        self._told: dict[str, float] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Exactly `batch_size * rollout.n` rollouts.

        Raises:
            ResamplingError: If `pivot.resampling.max_gen_batches` batches of prompts do not give them.
        """
        if partition_id != _TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        self._step, self._batch_size, self._dropped, self._replaced = global_steps, batch_size, Dropped(), []
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        self._numbers = {uid: number for uid, number in self._numbers.items() if uid in self._finished}
        return batch, {**metrics, **self._told}

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl's hook, at every poll: groups to clear and replace stand in the place of failed ones."""
        stale, dapo, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)  # type: ignore[misc]  # verl's
        if partition_id != _TRAIN:
            return stale, dapo, failed, counts
        self._read_finished(global_steps)
        return stale, set(), {uid for uid, each in self._finished.items() if each.fate is not None}, Counter()

    def _read_finished(self, step: int) -> None:
        for uid in self.prompt_global_steps[_TRAIN]:  # type: ignore[attr-defined]  # verl's
            self._numbers.setdefault(uid, len(self._numbers))
        new = (self.finished_keys[_TRAIN] | self.failure_keys[_TRAIN]) - self._finished.keys()  # type: ignore[attr-defined]  # verl's
        if not new:
            return
        keys = [key for key in self.partitions[_TRAIN] if _uid(key) in new]  # type: ignore[attr-defined]  # verl's
        by_uid: dict[str, dict[str, dict[str, Any]]] = {uid: {} for uid in new}
        for key, fields in zip(keys, read_extra_fields(keys, _TRAIN), strict=True):
            by_uid[_uid(key)][key] = fields
        for uid, rows in by_uid.items():
            group = _group(uid, self._numbers[uid], rows)
            self._finished[uid] = _Finished(group=group, fate=group.fate(self._settings, step), fields=rows)

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, reasons: Any) -> Any:
        """verl's hook: it clears and replaces them; here they are counted, and forgotten.

        Raises:
            ResamplingError: If too many had to be replaced.
        """
        result = super()._evict_terminal_groups(global_steps, partition_id, reasons)  # type: ignore[misc]  # verl's
        if partition_id != _TRAIN:
            return result
        evicted, *_, metrics = result
        metrics.pop("training/rollout_failure/evicted_samples", None)  # told by our names
        for each in map(self._finished.pop, evicted):
            if each.fate is not None:
                self._dropped.add(each.group, each.fate)
                self._replaced.append(each)
        limit = self._settings.max_gen_batches
        if self._dropped.fates.total() > (limit - 1) * self._batch_size:
            raise ResamplingError(
                f"step {global_steps}: {limit} batches of {self._batch_size} prompts did not give {self._batch_size} "
                f"groups to learn from: {self._dropped}; mend what breaks them, choose prompts of a fitting "
                "difficulty, or raise pivot.resampling.max_gen_batches"
            )
        return result

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: Collection[str], batch_size: int) -> Any:
        """verl's hook: of prompts of the same step it takes any; here those that were handed out first."""
        if partition_id == _TRAIN:
            sampleable_keys = sorted(sampleable_keys, key=self._numbers.__getitem__)
        return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)  # type: ignore[misc]  # verl's

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        """verl's hook: the rows of what the update sees; prompts and other rows are cleared, all in one go."""
        if partition_id != _TRAIN:
            return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)  # type: ignore[misc]  # verl's
        self._sampled = [self._finished.pop(uid) for uid in selected_prompt_uids]
        groups = [each.group for each in self._sampled]
        kept = {group.uid: group.kept(self._settings, self._step) for group in groups}
        self._told = resampling_metrics(groups, kept, self._dropped)
        chosen = {rollout.id for each in kept.values() for rollout in each}
        sampled = sorted(key for each in self._sampled for key in each.fields)
        left = [key for key in sampled if _rollout_id(key) not in chosen]
        tq.kv_clear(keys=[*selected_prompt_uids, *left], partition_id=partition_id)
        keys = [key for key in sampled if _rollout_id(key) in chosen]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[partition_snapshot[key] for key in keys])

    def _read(self, batch: KVBatchMeta) -> list[dict[str, Any]]:
        """Without reading it again."""
        if batch.partition_id != _TRAIN:
            return super()._read(batch)
        fields = self._sampled_fields()
        return [fields[key] for key in batch.keys]

    def _told_of_tools(
        self, rows: Mapping[str, dict[str, Any]], kept: Collection[str], step: int, partition_id: str
    ) -> dict[str, float]:
        """Of all that was generated, not only of what the update sees."""
        generated = self._sampled_fields() if partition_id == _TRAIN else rows
        return super()._told_of_tools(generated, kept, step, partition_id)

    def _sampled_fields(self) -> dict[str, dict[str, Any]]:
        groups = [*self._replaced, *self._sampled]
        return {key: fields for each in groups for key, fields in each.fields.items()}


class RocReplayBuffer(_RocSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """For `trainer.v1.trainer_mode=sync`."""


class RocReplayBufferAsync(_RocSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """For the asynchronous trainer modes."""


def _uid(key: str) -> str:
    return key.split("_")[0]


def _rollout_id(key: str) -> str:
    """Of a row; a rollout may have several."""
    return key.rsplit("_", 1)[0]


def _group(uid: str, number: int, rows: Mapping[str, Mapping[str, Any]]) -> Group:
    usable, undecided = [], []
    rollouts = {_rollout_id(key): fields for key, fields in rows.items()}
    for id_, fields in rollouts.items():
        reward = fields.get("reward_extra_info", {})
        if "undecided" not in reward or FIELD not in fields:
            raise ConfigError(
                "pivot.resampling weighs rollouts by the record of their calls, which only the agent loop pivot_tools "
                "and the reward manager of +method=grpo_roc write: leave rollout.agent and reward.reward_manager to it"
            )
        if reward["undecided"]:
            undecided.append(str(reward["reason"]))
        else:
            usable.append(Rollout(id=id_, score=reward["score"], penalty=penalty_of_record(fields[FIELD])))
    return Group(uid=uid, number=number, rollouts=tuple(usable), undecided=tuple(undecided))
