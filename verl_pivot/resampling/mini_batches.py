"""Number of groups or rows in a step's update -> size of its mini-batches, so that few rows are padded."""

from math import gcd

from omegaconf import DictConfig


def fitted_mini_batch(num_groups: int, *, num_updates: int, groups_per_unit: int) -> int:
    """Groups per mini-batch: the fewest that give at most `num_updates` updates and can be divided among the GPUs.

    Args:
        num_groups: Groups that the step's update sees, at least one.
        num_updates: Updates of a step whose batch is full.
        groups_per_unit: Every mini-batch must have a multiple of this number of groups.
    """
    units = -(-num_groups // (num_updates * groups_per_unit))
    return units * groups_per_unit


class MiniBatches:
    """`actor.ppo_mini_batch_size` in verl's own config, which verl reads anew in every step (`_update_actor`)."""

    def __init__(self, config: DictConfig) -> None:
        """Remember the size that the user chose.

        Args:
            config: verl's whole config.
        """
        self._actor = config.actor_rollout_ref.actor
        self._train_batch_size = int(config.data.train_batch_size)
        self._full_size = int(self._actor.ppo_mini_batch_size)
        num_gpus = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        micro_batch = 1 if self._actor.use_dynamic_bsz else int(self._actor.ppo_micro_batch_size_per_gpu or 1)
        rows = num_gpus * micro_batch
        self._group_size = int(config.actor_rollout_ref.rollout.n)
        self._groups_per_unit = rows // gcd(rows, self._group_size)

    def fit(self, num_groups: int) -> None:
        """Choose the size for an update of this many groups; a full batch gets the size that the user chose."""
        size = fitted_mini_batch(
            num_groups,
            num_updates=self._train_batch_size // self._full_size,
            groups_per_unit=self._groups_per_unit,
        )
        self._actor.ppo_mini_batch_size = min(size, self._full_size)

    def fit_one_update(self, num_rows: int) -> None:
        """Choose the size that makes a batch of this many rows one update with at most one unit of padding.

        verl counts mini-batches in groups of `rollout.n` rows, even here, where a rollout may have several rows.
        """
        self._actor.ppo_mini_batch_size = fitted_mini_batch(
            -(-num_rows // self._group_size), num_updates=1, groups_per_unit=self._groups_per_unit
        )
