"""verl's replay buffer with our resampling (`trainer.v1.sampler.custom_sampler`), and our metrics."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.errors import VerifierError
from verl_pivot.resampling.groups import Kept, keep_decided


class _PivotSampling:
    """What both trainer modes share: rows that no verifier could decide never reach the update."""

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        poll_interval = float(sampler_kwargs["poll_interval"])
        super().__init__(*args, **kwargs, sampler_kwargs=sampler_kwargs, poll_interval=poll_interval)  # type: ignore[call-arg]  # verl's
        self.max_undecided_batches = int(sampler_kwargs["max_undecided_batches"])

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
            rewards = _reward_infos(batch)
            kept = _keep(batch, rewards, min_group_size=1 if is_validation else 2)
            undecided.update(str(reward["reason"]) for reward in rewards if reward.get("undecided"))
            selected = _select(batch, kept)
            if kept.rows:
                counts = {"pivot/undecided_rows": float(undecided.total()), "pivot/lone_rows": float(kept.num_lone)}
                return selected, {**metrics, **counts, **_verdict_shares(rewards)}
        raise VerifierError(
            f"no reward could be decided in any row of the last {num_batches} batches ({partition_id}, step "
            f"{global_steps}): {dict(undecided.most_common(3))}; the system behind the verifier is down or the expert "
            "data is broken"
        )


class PivotReplayBuffer(_PivotSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """For `trainer.v1.trainer_mode=sync`."""


class PivotReplayBufferAsync(_PivotSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """For the asynchronous trainer modes."""


def _reward_infos(batch: KVBatchMeta) -> list[dict[str, Any]]:
    """[num_rows] what the reward manager said of each row; empty for rows that are no pivots."""
    if not batch.keys:
        return []
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    return [fields.get("reward_extra_info", {}) for fields in data.get("extra_fields").tolist()]


def _keep(batch: KVBatchMeta, rewards: Sequence[dict[str, Any]], *, min_group_size: int) -> Kept:
    groups = [key.split("_")[0] for key in batch.keys]
    return keep_decided(groups, [not reward.get("undecided") for reward in rewards], min_group_size=min_group_size)


def _select(batch: KVBatchMeta, kept: Kept) -> KVBatchMeta:
    """The kept rows, group by group; the others are cleared from TransferQueue, which nobody else would do.

    Rows of a group share their prompt: side by side, a micro-batch of them needs next to no padding.
    """
    rows = sorted(kept.rows, key=lambda row: batch.keys[row])
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
