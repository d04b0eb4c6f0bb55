"""PivotReplayBuffer: verl's replay buffer (`custom_sampler`), which drops undecided rows and reports metrics."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.advantages import estimators  # noqa: F401  registers step_reinforce_pp in the trainer's process
from verl_pivot.data.curriculum import mean_and_variance
from verl_pivot.data.dataset import training_curriculum
from verl_pivot.data.rollout_dumps import FOLDER, LeftOut, RecordedTexts
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import NodeLostError, PivotError, VerifierError
from verl_pivot.resampling.first_step import FirstStep
from verl_pivot.resampling.lost_nodes import LostNodes
from verl_pivot.resampling.sampled_rows import (
    SampledRow,
    dump_line,
    read_sampled_rows,
    recorded_rows,
    rewards_by_group,
    rollout_id_of,
)
from verl_pivot.resampling.step_dump import StepDump
from verl_pivot.resampling.step_workflows import step_workflows
from verl_pivot.resampling.undecided import DecidedRows, keep_decided
from verl_pivot.rewards.process_metrics import process_metrics
from verl_pivot.rewards.reward_terms import term_metrics
from verl_pivot.rewards.rubric_metrics import rubric_metrics
from verl_pivot.rewards.ruler_metrics import ruler_metrics
from verl_pivot.rollout.rollout_metrics import rollout_metrics, success_metrics, workflow_metrics


class PivotSampling:
    """Base of the buffers of both trainer modes: rows that no verifier could decide never reach the update."""

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        poll_interval = float(sampler_kwargs["poll_interval"])
        super().__init__(*args, **kwargs, sampler_kwargs=sampler_kwargs, poll_interval=poll_interval)  # type: ignore[call-arg]  # verl's
        self.max_undecided_batches = int(sampler_kwargs["max_undecided_batches"])
        self.group_size = int(sampler_kwargs["group_size"])
        num_batches = int(self.trainer_config.get("parameter_sync_step", 1))  # type: ignore[attr-defined]  # verl's
        recorded = RecordedTexts(sampler_kwargs["record"])
        self._dumps = {
            "train": _open_dump(sampler_kwargs["rollout_data_dir"], num_batches, recorded),
            "val": _open_dump(sampler_kwargs["validation_data_dir"], 1, recorded),
        }
        self._first_step = FirstStep()
        self._lost_nodes = LostNodes()
        self._replaced_uids: dict[str, LeftOut] = {}
        """{uid: reason} for the groups that verl is about to clear and to replace."""
        self._cleared: dict[str, tuple[SampledRow, LeftOut]] = {}
        """{key: row and reason} for rows that verl cleared, until they are dumped."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample as verl does, then drop undecided rows; a batch without any decided row is replaced.

        Raises:
            UserCodeError: In the first step, if a row or the user's code is at fault.
            NodeLostError: If a node on which the launch runs is lost.
            VerifierError: After `pivot.max_undecided_batches` batches in a row without any decided row.
            ConfigError: If an earlier step could not be dumped.
        """
        dump = self._dumps[partition_id]
        try:
            sampled = self._sample(global_steps, partition_id, batch_size)
        except NodeLostError:  # its rows are lost too, and a dump would wait for them
            raise
        except PivotError:  # the rollouts that were left out so far show the cause
            if dump is not None:
                self._dump_rows({}, (), global_steps, partition_id)
                dump.finish()
            raise
        except RuntimeError:  # of TransferQueue, which waits 200 s for the rows of a lost node
            self._lost_nodes.look()
            raise
        if dump is not None:
            dump.finish() if partition_id == "val" else dump.end_batch()  # after the last validation the run ends
        return sampled

    def _sample(self, step: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        is_validation = partition_id == "val"
        num_batches = 1 if is_validation else self.max_undecided_batches
        undecided: Counter[str] = Counter()
        for number in range(num_batches):
            if number > 0:
                self.refill_fn(batch_size)  # type: ignore[attr-defined]  # verl's
            batch, metrics = self._sample_batch(step, partition_id, batch_size)
            rows = self._read(batch)
            num_absent = {} if is_validation else _num_absent(batch, self.group_size)
            kept = _keep(batch, rows, min_group_size=1 if is_validation else 2, short_groups=num_absent)
            undecided.update(str(row.reward["reason"]) for row in rows if row.is_undecided)
            groups = _group_scores(batch, rows)
            curriculum = {} if is_validation else _update_curriculum(batch, groups, step)
            selected = _select(batch, kept)
            of_batch = self._rows_of_batch(dict(zip(batch.keys, rows, strict=True)), partition_id)
            counted = recorded_rows(self._counted_rows(of_batch, partition_id))
            rollouts = list(counted.values())
            rewards = [row.reward for row in rollouts]
            self._dump_rows(of_batch, frozenset(selected.keys), step, partition_id)
            self._first_step.check([row.reward for row in rows])
            if kept.rows:
                if not is_validation:
                    self._first_step.end()
                    _observe_workflows(step, rollouts)
                return selected, {
                    **metrics,
                    "pivot/undecided_rows": float(undecided.total()),
                    "pivot/lone_rows": float(kept.num_lone),
                    "pivot/absent_rollouts": float(sum(num_absent.values())),
                    **_variance_metrics(groups),
                    **_verdict_shares(rewards),
                    **curriculum,
                    **self._metrics_of_rollouts(rollouts),
                    **process_metrics(rewards),
                    **term_metrics(rewards_by_group(counted)),
                    **rubric_metrics(rewards),
                    **ruler_metrics(rewards),
                    **_workflow_metrics(rollouts),
                }
        raise VerifierError(
            f"no reward could be decided in any row of the last {num_batches} batches ({partition_id}, step "
            f"{step}): {dict(undecided.most_common(3))}{_example(rows)}; the system behind the verifier is down or the "
            "expert data is broken"
        )

    def _sample_batch(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """A batch and its metrics, as verl samples them."""
        sampled: tuple[KVBatchMeta, dict[str, Any]] = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]  # verl's
        return sampled

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl's hook, called at every poll: a lost node, or in the first step a group with a fault, stops the run."""
        self._lost_nodes.check()
        finished = self.finished_keys[partition_id] | self.failure_keys[partition_id]  # type: ignore[attr-defined]  # verl's
        self._first_step.check_finished(finished, self.partitions[partition_id], partition_id)  # type: ignore[attr-defined]  # verl's
        return super()._terminal_eviction_reasons(global_steps, partition_id)  # type: ignore[misc,no-any-return]  # verl's

    def _read(self, batch: KVBatchMeta) -> list[SampledRow]:
        """[num_rows] rows of a batch."""
        return read_sampled_rows(batch.keys, batch.partition_id)

    def _rows_of_batch(self, rows: Mapping[str, SampledRow], partition_id: str) -> Mapping[str, SampledRow]:
        """{key: row} for all rows of the groups of a batch; `rows` are those that verl sampled."""
        return rows

    def _counted_rows(self, rows: Mapping[str, SampledRow], partition_id: str) -> Mapping[str, SampledRow]:
        """{key: row} that count in the metrics of the rollouts; `rows` are those of the batch's groups."""
        return rows

    def _metrics_of_rollouts(self, rows: Sequence[SampledRow]) -> dict[str, float]:
        """Metrics of the rollouts with tools.

        Args:
            rows: [num_rollouts] the row of each rollout that has its record.
        """
        records: list[RolloutRecord] = [row.record for row in rows if row.record is not None]
        successes = [row.record for row in rows if row.record is not None and (row.score or 0.0) > 0]
        num_failed = sum(row.has_failed for row in rows)
        return {**rollout_metrics(records, num_failed=num_failed), **success_metrics(successes)}

    def _left_rows(self) -> dict[str, tuple[SampledRow, LeftOut]]:
        """{key: row and reason} for training rows of groups that no batch took, since the last batch."""
        return self._cleared

    def _reason_to_leave(self, row: SampledRow) -> LeftOut:
        """Reason for which the update does not see a row of the batch."""
        return row.unusable or LeftOut.LONE

    def _dump_rows(self, rows: Mapping[str, SampledRow], kept: Collection[str], step: int, partition_id: str) -> None:
        """Dump the rows of a batch, and those that verl cleared since the last one.

        Args:
            rows: {key: row} for all rows that were generated.
            kept: Keys of the rows that the update sees.
            step: verl's training step.
            partition_id: "train" or "val".
        """
        dump = self._dumps[partition_id]
        if dump is None:
            return
        lines = [
            dump_line(key, row, step, None if key in kept else self._reason_to_leave(row)) for key, row in rows.items()
        ]
        if partition_id == "train":
            lines += [dump_line(key, row, step, reason) for key, (row, reason) in self._left_rows().items()]
            self._cleared = {}
        dump.add(step, lines)

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        """verl's hook: clears the groups that are to be replaced; `_clear_groups` gets the reason of each."""
        stale, equal, failed, _ = eviction_reasons
        self._replaced_uids = {
            **dict.fromkeys(failed, LeftOut.GROUP_FAILED),
            **dict.fromkeys(equal, LeftOut.GROUP_EQUAL_REWARDS),
            **dict.fromkeys(stale, LeftOut.GROUP_STALE),
        }
        result = super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)  # type: ignore[misc]  # verl's
        self._replaced_uids = {}
        return result

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """verl's hook: clears the rows of groups; if rows are dumped, they are read first."""
        if self._dumps[partition_id] is not None:
            for key, row in self._rows_of_groups(partition_id, uids).items():
                self._cleared[key] = (
                    row,
                    row.unusable or self._replaced_uids.get(key.split("_")[0], LeftOut.GROUP_SURPLUS),
                )
        super()._clear_groups(partition_id, uids)  # type: ignore[misc]  # verl's

    def _rows_of_groups(self, partition_id: str, uids: Collection[str]) -> dict[str, SampledRow]:
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in uids]  # type: ignore[attr-defined]  # verl's
        return dict(zip(keys, read_sampled_rows(keys, partition_id), strict=True))


class PivotReplayBuffer(PivotSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """Buffer for `trainer.v1.trainer_mode=sync`."""


class PivotReplayBufferAsync(PivotSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """Buffer for the asynchronous trainer modes."""


def _example(rows: Sequence[SampledRow]) -> str:
    """The detail of an undecided row, for a message; "" if none has one."""
    detail = next((str(row.reward["detail"]) for row in rows if row.reward.get("detail")), "")
    return f", for example {detail[:300]!r}" if detail else ""


def _open_dump(data_dir: str | None, batches_per_step: int, recorded: RecordedTexts) -> StepDump | None:
    if not data_dir:
        return None
    return StepDump(Path(data_dir) / FOLDER, batches_per_step=batches_per_step, recorded=recorded)


def _num_absent(batch: KVBatchMeta, group_size: int) -> dict[str, int]:
    """{group: number of its rollouts that gave no row} for groups with at least one such rollout."""
    rollouts = {rollout_id_of(key) for key in batch.keys}
    present = Counter(rollout.split("_")[0] for rollout in rollouts)
    return {group: group_size - number for group, number in present.items() if number < group_size}


def _keep(
    batch: KVBatchMeta, rows: Sequence[SampledRow], *, min_group_size: int, short_groups: Collection[str]
) -> DecidedRows:
    groups, rollouts = [key.split("_")[0] for key in batch.keys], [rollout_id_of(key) for key in batch.keys]
    decided = [not row.is_undecided for row in rows]
    return keep_decided(groups, rollouts, decided, min_group_size=min_group_size, short_groups=short_groups)


def _group_scores(batch: KVBatchMeta, rows: Sequence[SampledRow]) -> dict[str, list[float]]:
    """{group: [num_decided] scores of its rollouts}; a rollout with several rows has the same score in each."""
    rollouts = {rollout_id_of(key): row.reward for key, row in zip(batch.keys, rows, strict=True)}
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout, reward in rollouts.items():
        if reward.get("undecided") == 0.0:
            groups[rollout.split("_")[0]].append(float(reward["score"]))
    return groups


def _variance_metrics(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean reward variance within groups (PivotRL's figure 3) and share of mixed groups; groups of one do not count."""
    variances = [mean_and_variance(scores)[1] for scores in groups.values() if len(scores) >= 2]
    if not variances:
        return {}
    return {
        "pivot/reward_variance": sum(variances) / len(variances),
        "pivot/mixed_groups": sum(variance > 0 for variance in variances) / len(variances),
    }


def _update_curriculum(batch: KVBatchMeta, groups: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
    """Hand the groups' scores to the curriculum of this process's training dataset; returns its metrics."""
    curriculum = training_curriculum()
    if curriculum is None:
        return {}
    if groups:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
        pivots = dict(zip((key.split("_")[0] for key in batch.keys), data.get("index").tolist(), strict=True))
        curriculum.observe(step, [(int(pivots[group]), scores) for group, scores in groups.items()])
    return curriculum.metrics()


def _observe_workflows(step: int, rows: Sequence[SampledRow]) -> None:
    """Turn the successes of a step into workflows, if the training keeps workflows."""
    if (workflows := step_workflows()) is not None:
        workflows.observe(step, rows)


def _workflow_metrics(rows: Sequence[SampledRow]) -> dict[str, float]:
    """Metrics of the workflows that rollouts saw; none where `pivot.rollout.workflows` is off."""
    workflows = step_workflows()
    if workflows is None:
        return {}
    of_rollouts = [(row.record, row.score) for row in rows if row.record is not None]
    return {**workflows.metrics(), **workflow_metrics(of_rollouts)}


def _select(batch: KVBatchMeta, kept: DecidedRows) -> KVBatchMeta:
    """The kept rows, group by group; the others are cleared from TransferQueue, since nothing else would clear them.

    Rows of a group share their prompt, so that a micro-batch of neighbouring rows needs little padding.
    """
    rows = sorted(kept.rows, key=lambda row: batch.keys[row])
    if rows == list(range(len(batch.keys))):
        return batch
    if dropped := sorted(set(batch.keys) - {batch.keys[row] for row in rows}):
        tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[row] for row in rows],
        tags=[batch.tags[row] for row in rows],
    )


def _verdict_shares(rewards: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{verifier/<name>/<reason>: share of rollouts with this verdict} among the rollouts that have a verdict."""
    decided = [reward for reward in rewards if "reason" in reward]
    verdicts = Counter(f"verifier/{reward['verifier']}/{reward['reason']}" for reward in decided)
    return {name: count / verdicts.total() for name, count in sorted(verdicts.items())}
