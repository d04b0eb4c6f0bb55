"""RocReplayBuffer: verl's replay buffer for GRPO-RoC, which gives the update a part of each oversampled group."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.data.rollout_dumps import LeftOut
from verl_pivot.errors import ResamplingError
from verl_pivot.resampling.dynamic_sampling import DropReason, EqualRewards, are_equal
from verl_pivot.resampling.finished_groups import FinishedGroup, group_of, uid_of
from verl_pivot.resampling.groups import DroppedGroups, Group, resampling_metrics
from verl_pivot.resampling.mini_batches import MiniBatches
from verl_pivot.resampling.penalties import no_success_answers
from verl_pivot.resampling.prefetch import Prefetch
from verl_pivot.resampling.replay_buffer import PivotSampling
from verl_pivot.resampling.sampled_rows import SampledRow, read_sampled_rows, rollout_id_of
from verl_pivot.resampling.settings import settings_of

logger = logging.getLogger(__name__)

_TRAIN = "train"
_LEFT_OUT = {
    DropReason.TOO_FEW: LeftOut.GROUP_TOO_FEW,
    DropReason.EQUAL_REWARDS: LeftOut.GROUP_EQUAL_REWARDS,
}


class RocSampling(PivotSampling):
    """Base of the buffers of both trainer modes. Validation is as in `PivotSampling`.

    Whenever verl polls, the groups that finished since the last poll are read, so that few are left at the end.
    """

    def __init__(self, *args: Any, sampler_kwargs: DictConfig, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs)
        self._settings = settings_of(sampler_kwargs.resampling)
        config = self.trainer_config._get_root()  # type: ignore[attr-defined]  # verl's: its whole config, which it reads
        self._mini_batches = MiniBatches(config)
        self._prefetch = Prefetch()
        self._num_surplus = 0
        """Usable groups of this step that the update does not need."""
        self._refill_from_dataset = kwargs["refill_fn"]
        self.refill_fn = self._refill
        self._format_tag = config.pivot.rollout.format_tag
        self._has_seen_success = False
        self._step = 0
        self._batch_size = int(config.data.train_batch_size)
        self._numbers: dict[str, int] = {}
        """{uid of a prompt: its position in the order in which the step's prompts were handed out}"""
        self._finished: dict[str, FinishedGroup] = {}
        """{uid: group} for the groups that were read and not yet sampled or replaced."""
        self._next_number = 0
        self._dropped = DroppedGroups()
        self._sampled: list[FinishedGroup] = []
        """Groups of this step that the update sees."""
        self._left_out: list[FinishedGroup] = []
        """Groups that the update does not see, since the last batch."""
        self._resampling_metrics: dict[str, float] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample `rollout.n` rollouts of each of `batch_size` groups; fewer groups with `equal_rewards=reject`.

        Raises:
            ResamplingError: If `pivot.resampling.max_gen_batches` batches of prompts do not give enough groups.
        """
        if partition_id != _TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        self._begin_step(global_steps)
        self._batch_size = batch_size
        num_ahead = self._generate_ahead(batch_size)
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if self._settings.equal_rewards is EqualRewards.REJECT:
            self._mini_batches.fit(len(self._sampled))
        self._look_for_answers()
        self._dropped, self._left_out = DroppedGroups(), []  # verl may drop groups before it asks for the next batch
        return batch, {
            **metrics,
            **self._resampling_metrics,
            "down_sampling/groups_ahead": float(num_ahead),
            "down_sampling/groups_surplus": float(self._num_surplus),
        }

    def _begin_step(self, step: int) -> None:
        """Number the prompts of a new step from 0 on, beside groups that stay; all batches of a step go on counting."""
        if step == self._step:
            return
        self._step = step
        self._numbers = {uid: number for uid, number in self._numbers.items() if uid in self._finished}
        self._next_number = 1 + max(self._numbers.values(), default=-1)

    def _generate_ahead(self, batch_size: int) -> int:
        """Generate more prompts at once if the last steps dropped many groups.

        In the other trainer modes verl generates ahead by itself (`num_warmup_batches`), and with
        `equal_rewards=reject` nothing is replaced.
        """
        if self.trainer_mode != "sync" or self._settings.equal_rewards is EqualRewards.REJECT:  # type: ignore[attr-defined]  # verl's
            return 0
        number = self._prefetch.begin(batch_size, self._settings.max_gen_batches * batch_size)
        if number:
            self._refill_from_dataset(number)
        return number

    def _refill(self, num_prompts: int) -> None:
        """Replace groups, first by those that were generated ahead."""
        if number := self._prefetch.replace(num_prompts):
            self._refill_from_dataset(number)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> Any:
        """verl's hook: nothing is sampled while prompts generated ahead run, since the engines' weights change then."""
        keys = super()._sampleable_terminal_keys(partition_id, eviction_reasons)  # type: ignore[misc]  # verl's
        is_running = self.pending_keys[partition_id] | self.running_keys[partition_id]  # type: ignore[attr-defined]  # verl's
        return set() if partition_id == _TRAIN and self._prefetch.num_left and is_running else keys

    def _look_for_answers(self) -> None:
        """In the first step with a success, warn if p_format cannot tell successes apart."""
        groups = [each.group for each in (*self._sampled, *self._left_out)]
        successes = [rollout.penalty for group in groups for rollout in group.rollouts if rollout.score > 0]
        if self._has_seen_success or not successes:
            return
        self._has_seen_success = True
        if self._settings.goes_by_penalty and no_success_answers(successes):
            logger.warning(
                "step %d: none of %d successes has a pair of tags <%s>, so that p_format is 1 for each of them and the "
                "weights of clean and unclean successes differ by a factor of 2 at most: ask for the tag in the "
                "prompt, as +tool_format=rstar2 does, or set pivot.rollout.format_tag=null",
                self._step, len(successes), self._format_tag,
            )  # fmt: skip

    def _sample_batch(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """A batch of at least one group; if all groups were rejected, new prompts are sampled within the budget."""
        batch, metrics = super()._sample_batch(global_steps, partition_id, batch_size)
        while partition_id == _TRAIN and not batch.keys:
            self._check_budget()
            self._refill(batch_size)
            batch, metrics = super()._sample_batch(global_steps, partition_id, batch_size)
        return batch, metrics

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl's hook, called at every poll: returns groups to be dropped and replaced as if they had failed."""
        stale, dapo, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        if partition_id != _TRAIN:
            return stale, dapo, failed, counts
        self._read_finished(global_steps)
        return stale, set(), {uid for uid, each in self._finished.items() if each.drop_reason is not None}, Counter()

    def _read_finished(self, step: int) -> None:
        self._begin_step(step)
        for uid in self.prompt_global_steps[_TRAIN]:  # type: ignore[attr-defined]  # verl's
            if uid not in self._numbers:
                self._numbers[uid] = self._next_number
                self._next_number += 1
        new = (self.finished_keys[_TRAIN] | self.failure_keys[_TRAIN]) - self._finished.keys()  # type: ignore[attr-defined]  # verl's
        if not new:
            return
        keys = [key for key in self.partitions[_TRAIN] if uid_of(key) in new]  # type: ignore[attr-defined]  # verl's
        by_uid: dict[str, dict[str, SampledRow]] = {uid: {} for uid in new}
        for key, row in zip(keys, read_sampled_rows(keys, _TRAIN), strict=True):
            by_uid[uid_of(key)][key] = row
        for uid, rows in by_uid.items():
            group = group_of(uid, self._numbers[uid], rows, self._settings.mode)
            self._finished[uid] = FinishedGroup(
                group=group, drop_reason=group.drop_reason(self._settings, step), rows=rows
            )

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, reasons: Any) -> Any:
        """verl's hook: verl clears and replaces the groups; this class counts them and moves them out of `_finished`.

        Raises:
            ResamplingError: If too many groups had to be replaced.
        """
        result = super()._evict_terminal_groups(global_steps, partition_id, reasons)
        if partition_id != _TRAIN:
            return result
        evicted, *_, metrics = result
        metrics.pop("training/rollout_failure/evicted_samples", None)  # reported as down_sampling/groups_...
        for each in map(self._finished.pop, evicted):
            if each.drop_reason is not None:
                self._leave_out(each, each.drop_reason)
        self._check_budget()
        return result

    def _leave_out(self, group: FinishedGroup, reason: DropReason) -> None:
        self._dropped.add(group.group, reason)
        self._left_out.append(group)

    def _check_budget(self) -> None:
        """Raise ResamplingError if a batch and replacements for all dropped groups exceed the step's budget."""
        budget = self._settings.max_gen_batches * self._batch_size
        if self._batch_size + self._dropped.reasons.total() > budget:
            raise ResamplingError(
                f"step {self._step}: the budget of {budget} prompts (pivot.resampling.max_gen_batches="
                f"{self._settings.max_gen_batches} batches of {self._batch_size}) did not give a batch to learn from: "
                f"{self._dropped}; repair what makes rollouts unusable, choose prompts that the policy sometimes "
                "solves, or raise pivot.resampling.max_gen_batches"
            )

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
        selected = [self._finished.pop(uid) for uid in selected_prompt_uids]
        self._clear_surplus()
        self._prefetch.end(len(selected), self._dropped.reasons.total())
        self._sampled = [each for each in selected if not self._is_rejected(each.group)]
        for each in selected:
            if self._is_rejected(each.group):
                self._leave_out(each, DropReason.EQUAL_REWARDS)
        groups = [each.group for each in self._sampled]
        kept = {group.uid: group.kept(self._settings, self._step) for group in groups}
        if groups:
            self._resampling_metrics = resampling_metrics(groups, kept, self._dropped)
        chosen = {rollout.id for each in kept.values() for rollout in each}
        sampled = sorted(key for each in selected for key in each.rows)
        left = [key for key in sampled if rollout_id_of(key) not in chosen]
        tq.kv_clear(keys=[*selected_prompt_uids, *left], partition_id=partition_id)
        keys = [key for key in sampled if rollout_id_of(key) in chosen]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[partition_snapshot[key] for key in keys])

    def _clear_surplus(self) -> None:
        """Clear the groups generated ahead that the update did not need: the next step samples with newer weights."""
        surplus = set(self._finished) if self._prefetch.num_left else set()
        self._num_surplus = len(surplus)
        self._clear_groups(_TRAIN, surplus)
        for uid in surplus:
            del self._finished[uid]

    def _is_rejected(self, group: Group) -> bool:
        return self._settings.equal_rewards is EqualRewards.REJECT and are_equal(group.scores)

    def _read(self, batch: KVBatchMeta) -> list[SampledRow]:
        """The rows of a training batch, which were read already when their groups finished."""
        if batch.partition_id != _TRAIN:
            return super()._read(batch)
        rows = self._rows_of_batch({}, _TRAIN)
        return [rows[key] for key in batch.keys]

    def _rows_of_batch(self, rows: Mapping[str, SampledRow], partition_id: str) -> Mapping[str, SampledRow]:
        """All rows of a training batch's groups, also those that were not drawn."""
        if partition_id != _TRAIN:
            return rows
        return {key: row for each in self._sampled for key, row in each.rows.items()}

    def _left_rows(self) -> dict[str, tuple[SampledRow, LeftOut]]:
        """In addition, the rows of groups that were replaced or rejected, which count in the metrics."""
        left = {
            key: (row, row.unusable or _LEFT_OUT[each.drop_reason or DropReason.EQUAL_REWARDS])
            for each in self._left_out
            for key, row in each.rows.items()
        }
        return {**super()._left_rows(), **left}

    def _counted_rows(self, rows: Mapping[str, SampledRow], partition_id: str) -> Mapping[str, SampledRow]:
        left = self._left_out if partition_id == _TRAIN else []
        return {**rows, **{key: row for each in left for key, row in each.rows.items()}}

    def _reason_to_leave(self, row: SampledRow) -> LeftOut:
        return row.unusable or LeftOut.RESAMPLED

    def _rows_of_groups(self, partition_id: str, uids: Collection[str]) -> dict[str, SampledRow]:
        """Rows of groups that are too old; those of other finished groups are in `_left_out`."""
        finished = [self._finished[uid] for uid in uids if uid in self._finished]
        others = super()._rows_of_groups(partition_id, set(uids) - self._finished.keys())
        stale = {key: row for each in finished if each.drop_reason is None for key, row in each.rows.items()}
        return {**others, **stale}


class RocReplayBuffer(RocSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """Buffer for `trainer.v1.trainer_mode=sync`."""


class RocReplayBufferAsync(RocSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """Buffer for the asynchronous trainer modes."""
