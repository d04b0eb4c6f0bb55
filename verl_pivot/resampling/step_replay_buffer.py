"""StepReplayBuffer: verl's replay buffer for L0, whose trajectories have several rows and whose batch is one update."""

from collections.abc import Sequence
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_pivot.resampling.roc_replay_buffer import RocSampling
from verl_pivot.resampling.sampled_rows import SampledRow
from verl_pivot.resampling.step_metrics import step_metrics


class StepSampling(RocSampling):
    """Base of the buffers of both trainer modes.

    Groups are those of `RocSampling`: all trajectories of a prompt, whatever the number of their rows. Validation is as
    in `PivotSampling`.
    """

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Sample as `RocSampling` does, and make the batch one update.

        Raises:
            ResamplingError: If `pivot.resampling.max_gen_batches` batches of prompts do not give enough groups.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "train":
            return batch, metrics
        self._mini_batches.fit_one_update(len(batch.keys))
        return batch, {**metrics, "l0/rows": float(len(batch.keys))}

    def _metrics_of_rollouts(self, rows: Sequence[SampledRow]) -> dict[str, float]:
        """Metrics of the rollouts with tools, and of the trajectories' steps."""
        trajectories = [(row.reward, row.record) for row in rows if row.record is not None and not row.is_undecided]
        return {**super()._metrics_of_rollouts(rows), **step_metrics(trajectories)}


class StepReplayBuffer(StepSampling, ReplayBuffer):  # type: ignore[misc]  # verl is untyped here
    """Buffer for `trainer.v1.trainer_mode=sync`."""


class StepReplayBufferAsync(StepSampling, ReplayBufferAsync):  # type: ignore[misc]  # verl is untyped here
    """Buffer for the asynchronous trainer modes."""
