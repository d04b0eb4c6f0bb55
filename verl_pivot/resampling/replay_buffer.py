"""verl's replay buffer with our resampling (`trainer.v1.sampler.custom_sampler`), and our metrics."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.data.curriculum import mean_and_variance
from verl_pivot.data.dataset import training_curriculum
from verl_pivot.errors import VerifierError
from verl_pivot.resampling.groups import Kept, keep_decided
from verl_pivot.rollout.rollout_record import FIELD, rollout_metrics, success_metrics, write_records


class PivotSampling:
    """What both trainer modes share: rows that no verifier could decide never reach the update."""

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        poll_interval = float(sampler_kwargs["poll_interval"])
        super().__init__(*args, **kwargs, sampler_kwargs=sampler_kwargs, poll_interval=poll_interval)  # type: ignore[call-arg]  # verl's
        self.max_undecided_batches = int(sampler_kwargs["max_undecided_batches"])
        self.group_size = int(sampler_kwargs["group_size"])
        self.records_folders = {
            "train": _records_folder(sampler_kwargs["rollout_data_dir"]),
            "val": _records_folder(sampler_kwargs["validation_data_dir"]),
        }
        self._dumped: dict[str, int] = {}
        """{partition: step of its last dump}; a step may have several batches."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample as verl does, then drop undecided rows; a batch without any decided row is replaced.

        Raises:
            VerifierError: After `pivot.max_undecided_batches` such batches in a row.
        """
        is_validation = partition_id == "val"
        num_batches = 1 if is_validation else self.max_undecided_batches
        undecided: Counter[str] = Counter()
        for number in range(num_batches):
            if number > 0:
                self.refill_fn(batch_size)  # type: ignore[attr-defined]  # verl's
            batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]  # verl's
            extra_fields = self._read(batch)
            rewards = [fields.get("reward_extra_info", {}) for fields in extra_fields]
            num_absent = {} if is_validation else _num_absent(batch, self.group_size)
            kept = _keep(batch, rewards, min_group_size=1 if is_validation else 2, short=num_absent)
            undecided.update(str(reward["reason"]) for reward in rewards if reward.get("undecided"))
            groups = _group_scores(batch, rewards)
            taught = {} if is_validation else _teach_curriculum(batch, groups, global_steps)
            selected = _select(batch, kept)
            if kept.rows:
                counts = {
                    "pivot/undecided_rows": float(undecided.total()),
                    "pivot/lone_rows": float(kept.num_lone),
                    "pivot/absent_rollouts": float(sum(num_absent.values())),
                }
                rows = dict(zip(batch.keys, extra_fields, strict=True))
                tools = self._told_of_tools(rows, frozenset(selected.keys), global_steps, partition_id)
                return selected, {**metrics, **counts, **_signal(groups), **_verdict_shares(rewards), **taught, **tools}
        raise VerifierError(
            f"no reward could be decided in any row of the last {num_batches} batches ({partition_id}, step "
            f"{global_steps}): {dict(undecided.most_common(3))}; the system behind the verifier is down or the expert "
            "data is broken"
        )

    def _read(self, batch: KVBatchMeta) -> list[dict[str, Any]]:
        """[num_rows] what our loops and the reward manager say of each row."""
        return read_extra_fields(batch.keys, batch.partition_id)

    def _told_of_tools(
        self,
        rows: Mapping[str, dict[str, Any]],
        kept: Collection[str],
        step: int,
        partition_id: str,
    ) -> dict[str, float]:
        """Metrics of the rows from the tool loop, whose records are dumped beside verl's texts.

        Args:
            rows: {key: extra fields} of all that were sampled.
            kept: Keys of those that the update sees.
            step: verl's.
            partition_id: train or val.
        """
        records = {
            key: {"score": _score(fields), "kept": key in kept, **fields[FIELD]}
            for key, fields in rows.items()
            if FIELD in fields
        }
        folder = self.records_folders[partition_id]
        if records and folder is not None:
            write_records(folder / f"{step}.jsonl", records, append=self._dumped.get(partition_id) == step)
            self._dumped[partition_id] = step
        told = list(records.values())
        return {**rollout_metrics(told), **success_metrics(told)}


class PivotReplayBuffer(PivotSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """For `trainer.v1.trainer_mode=sync`."""


class PivotReplayBufferAsync(PivotSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """For the asynchronous trainer modes."""


def read_extra_fields(keys: Sequence[str], partition_id: str) -> list[dict[str, Any]]:
    """[num_rows] from TransferQueue."""
    if not keys:
        return []
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["extra_fields"])
    return list(data.get("extra_fields").tolist())


def _records_folder(data_dir: str | None) -> Path | None:
    return None if data_dir is None else Path(data_dir) / "tools"


def _score(fields: Mapping[str, Any]) -> float | None:
    """None where no verifier could decide."""
    reward = fields.get("reward_extra_info", {})
    return None if reward.get("undecided") else reward.get("score")


def _num_absent(batch: KVBatchMeta, group_size: int) -> dict[str, int]:
    """{group: rollouts that left no row} of those groups that have some."""
    rollouts = {key.rsplit("_", 1)[0] for key in batch.keys}
    present = Counter(rollout.split("_")[0] for rollout in rollouts)
    return {group: group_size - number for group, number in present.items() if number < group_size}


def _keep(
    batch: KVBatchMeta, rewards: Sequence[dict[str, Any]], *, min_group_size: int, short: Collection[str]
) -> Kept:
    groups = [key.split("_")[0] for key in batch.keys]
    decided = [not reward.get("undecided") for reward in rewards]
    return keep_decided(groups, decided, min_group_size=min_group_size, short=short)


def _group_scores(batch: KVBatchMeta, rewards: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """{group: [num_decided] scores of its rollouts}; of a rollout's several rows each carries the same score."""
    rollouts = {key.rsplit("_", 1)[0]: reward for key, reward in zip(batch.keys, rewards, strict=True)}
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout, reward in rollouts.items():
        if reward.get("undecided") == 0.0:
            groups[rollout.split("_")[0]].append(float(reward["score"]))
    return groups


def _signal(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What PivotRL's figure 3 plots, and the share of groups with any advantage; groups of one have neither."""
    variances = [mean_and_variance(scores)[1] for scores in groups.values() if len(scores) >= 2]
    if not variances:
        return {}
    return {
        "pivot/reward_variance": sum(variances) / len(variances),
        "pivot/mixed_groups": sum(variance > 0 for variance in variances) / len(variances),
    }


def _teach_curriculum(batch: KVBatchMeta, groups: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
    """Hand the groups to the curriculum of this process's training dataset, if it is on; its metrics."""
    curriculum = training_curriculum()
    if curriculum is None:
        return {}
    if groups:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
        pivots = dict(zip((key.split("_")[0] for key in batch.keys), data.get("index").tolist(), strict=True))
        curriculum.observe(step, [(int(pivots[group]), scores) for group, scores in groups.items()])
    return curriculum.metrics()


def _select(batch: KVBatchMeta, kept: Kept) -> KVBatchMeta:
    """The kept rows, group by group; the others are cleared from TransferQueue, which nobody else would do.

    Rows of a group share their prompt: side by side, a micro-batch of them needs next to no padding.
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


def _verdict_shares(rewards: Sequence[dict[str, Any]]) -> dict[str, float]:
    """[verifier/<name>/<reason>] the share of each verdict among the rows that a verifier saw."""
    verdicts = Counter(f"verifier/{reward['verifier']}/{reward['reason']}" for reward in rewards if "reason" in reward)
    return {name: count / verdicts.total() for name, count in sorted(verdicts.items())}
