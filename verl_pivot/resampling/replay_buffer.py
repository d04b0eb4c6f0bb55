"""PivotReplayBuffer: verl's replay buffer (`custom_sampler`), which drops undecided rows and reports metrics."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.data.curriculum import mean_and_variance
from verl_pivot.data.dataset import training_curriculum
from verl_pivot.data.rollout_dumps import DumpedRollout, write_rollouts
from verl_pivot.data.rollout_records import RECORD_FIELD, RolloutRecord, parse_record
from verl_pivot.errors import VerifierError
from verl_pivot.resampling.undecided import DecidedRows, keep_decided
from verl_pivot.rollout.rollout_metrics import rollout_metrics, success_metrics


class SampledRow(NamedTuple):
    """One row as the agent loop and the reward manager wrote it."""

    reward: Mapping[str, Any]
    """`reward_extra_info` of the reward manager; empty if it wrote none."""
    record: RolloutRecord | None
    """Record of a rollout with tools; None for rows of other agent loops."""

    @property
    def is_undecided(self) -> bool:
        return bool(self.reward.get("undecided"))

    @property
    def score(self) -> float | None:
        """Score of the row; None if it is undecided."""
        return None if self.is_undecided else self.reward.get("score")


class PivotSampling:
    """Base of the buffers of both trainer modes: rows that no verifier could decide never reach the update."""

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        poll_interval = float(sampler_kwargs["poll_interval"])
        super().__init__(*args, **kwargs, sampler_kwargs=sampler_kwargs, poll_interval=poll_interval)  # type: ignore[call-arg]  # verl's
        self.max_undecided_batches = int(sampler_kwargs["max_undecided_batches"])
        self.group_size = int(sampler_kwargs["group_size"])
        self.dump_folders = {
            "train": _dump_folder(sampler_kwargs["rollout_data_dir"]),
            "val": _dump_folder(sampler_kwargs["validation_data_dir"]),
        }
        self._dumped_steps: dict[str, int] = {}
        """{partition: step of its last dump}; later batches of the same step are appended."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample as verl does, then drop undecided rows; a batch without any decided row is replaced.

        Raises:
            VerifierError: After `pivot.max_undecided_batches` batches in a row without any decided row.
        """
        is_validation = partition_id == "val"
        num_batches = 1 if is_validation else self.max_undecided_batches
        undecided: Counter[str] = Counter()
        for number in range(num_batches):
            if number > 0:
                self.refill_fn(batch_size)  # type: ignore[attr-defined]  # verl's
            batch, metrics = self._sample_batch(global_steps, partition_id, batch_size)
            rows = self._read(batch)
            num_absent = {} if is_validation else _num_absent(batch, self.group_size)
            kept = _keep(batch, rows, min_group_size=1 if is_validation else 2, short_groups=num_absent)
            undecided.update(str(row.reward["reason"]) for row in rows if row.is_undecided)
            groups = _group_scores(batch, rows)
            curriculum = {} if is_validation else _update_curriculum(batch, groups, global_steps)
            selected = _select(batch, kept)
            if kept.rows:
                counts = {
                    "pivot/undecided_rows": float(undecided.total()),
                    "pivot/lone_rows": float(kept.num_lone),
                    "pivot/absent_rollouts": float(sum(num_absent.values())),
                }
                by_key = dict(zip(batch.keys, rows, strict=True))
                rollouts = self._report_rollouts(by_key, frozenset(selected.keys), global_steps, partition_id)
                return selected, {
                    **metrics,
                    **counts,
                    **_variance_metrics(groups),
                    **_verdict_shares(rows),
                    **curriculum,
                    **rollouts,
                }
        raise VerifierError(
            f"no reward could be decided in any row of the last {num_batches} batches ({partition_id}, step "
            f"{global_steps}): {dict(undecided.most_common(3))}; the system behind the verifier is down or the expert "
            "data is broken"
        )

    def _sample_batch(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """A batch and its metrics, as verl samples them."""
        sampled: tuple[KVBatchMeta, dict[str, Any]] = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]  # verl's
        return sampled

    def _read(self, batch: KVBatchMeta) -> list[SampledRow]:
        """[num_rows] rows of a batch."""
        return read_sampled_rows(batch.keys, batch.partition_id)

    def _report_rollouts(
        self, rows: Mapping[str, SampledRow], kept: Collection[str], step: int, partition_id: str
    ) -> dict[str, float]:
        """Metrics of the rollouts with tools; also dumps their records beside verl's own dump of the step.

        Args:
            rows: {key: row} for all rows that were sampled.
            kept: Keys of the rows that the update sees.
            step: verl's training step.
            partition_id: "train" or "val".
        """
        rollouts = [
            DumpedRollout.of(row.record, uid=key, score=row.score, is_kept=key in kept)
            for key, row in rows.items()
            if row.record is not None
        ]
        folder = self.dump_folders[partition_id]
        if rollouts and folder is not None:
            write_rollouts(folder / f"{step}.jsonl", rollouts, append=self._dumped_steps.get(partition_id) == step)
            self._dumped_steps[partition_id] = step
        return {**rollout_metrics(rollouts), **success_metrics(rollouts)}


class PivotReplayBuffer(PivotSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """Buffer for `trainer.v1.trainer_mode=sync`."""


class PivotReplayBufferAsync(PivotSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """Buffer for the asynchronous trainer modes."""


def read_sampled_rows(keys: Sequence[str], partition_id: str) -> list[SampledRow]:
    """[num_rows] rows that TransferQueue holds under these keys.

    Raises:
        DataError: If the record of a rollout cannot be read.
    """
    if not keys:
        return []
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["extra_fields"])
    return [_sampled_row(fields) for fields in data.get("extra_fields").tolist()]


def _sampled_row(extra_fields: Mapping[str, Any]) -> SampledRow:
    record = extra_fields.get(RECORD_FIELD)
    return SampledRow(extra_fields.get("reward_extra_info", {}), None if record is None else parse_record(record))


def _dump_folder(data_dir: str | None) -> Path | None:
    return None if data_dir is None else Path(data_dir) / "tools"


def _num_absent(batch: KVBatchMeta, group_size: int) -> dict[str, int]:
    """{group: number of its rollouts that gave no row} for groups with at least one of these."""
    rollouts = {key.rsplit("_", 1)[0] for key in batch.keys}
    present = Counter(rollout.split("_")[0] for rollout in rollouts)
    return {group: group_size - number for group, number in present.items() if number < group_size}


def _keep(
    batch: KVBatchMeta, rows: Sequence[SampledRow], *, min_group_size: int, short_groups: Collection[str]
) -> DecidedRows:
    groups = [key.split("_")[0] for key in batch.keys]
    decided = [not row.is_undecided for row in rows]
    return keep_decided(groups, decided, min_group_size=min_group_size, short_groups=short_groups)


def _group_scores(batch: KVBatchMeta, rows: Sequence[SampledRow]) -> dict[str, list[float]]:
    """{group: [num_decided] scores of its rollouts}; a rollout with several rows has the same score in each."""
    rollouts = {key.rsplit("_", 1)[0]: row.reward for key, row in zip(batch.keys, rows, strict=True)}
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
    """Hand the groups' scores to the curriculum of this process's training dataset; its metrics, none if it is off."""
    curriculum = training_curriculum()
    if curriculum is None:
        return {}
    if groups:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
        pivots = dict(zip((key.split("_")[0] for key in batch.keys), data.get("index").tolist(), strict=True))
        curriculum.observe(step, [(int(pivots[group]), scores) for group, scores in groups.items()])
    return curriculum.metrics()


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


def _verdict_shares(rows: Sequence[SampledRow]) -> dict[str, float]:
    """{verifier/<name>/<reason>: share of rows with this verdict} over the rows that have a verdict."""
    rewards = [row.reward for row in rows if "reason" in row.reward]
    verdicts = Counter(f"verifier/{reward['verifier']}/{reward['reason']}" for reward in rewards)
    return {name: count / verdicts.total() for name, count in sorted(verdicts.items())}
