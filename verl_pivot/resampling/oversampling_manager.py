"""OversamplingManager: verl's agent loop manager, which generates more rollouts per prompt than the update sees."""

from typing import Any

from verl_pivot.resampling.marking_manager import MarkingManager
from verl_pivot.resampling.settings import parse_resampling


class OversamplingManager(MarkingManager):
    """Generates `pivot.resampling.oversample * rollout.n` rollouts per prompt in training; validation is as in verl.

    `rollout.n` stays the number that the update sees, since verl computes the size of its mini-batches from it.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.num_rollouts = parse_resampling(config).num_generated
