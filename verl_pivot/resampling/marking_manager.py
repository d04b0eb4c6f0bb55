"""MarkingManager: verl's agent loop manager, which marks prompts for validation and gives all groups one size."""

from typing import Any

from tensordict import TensorDict
from verl.utils.tensordict_utils import assign_non_tensor_data

from verl_pivot.errors import DataError
from verl_pivot.resampling.workflow_manager import WorkflowManager

_NUM_ROLLOUTS = "__rollout_n__"
"""verl's field of a prompt: the number of rollouts that agent loop workers generate for it."""


class MarkingManager(WorkflowManager):
    """Gives all groups of training one size, and writes into prompts what `WorkflowManager` writes."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.num_rollouts = int(config.actor_rollout_ref.rollout.n)
        """Rollouts per prompt in training."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Pass prompts on to the workers.

        Raises:
            DataError: If rows have a column of their own for the number of rollouts, or for workflows.
        """
        if "validate" not in prompts:
            if _NUM_ROLLOUTS in prompts:
                raise DataError(
                    f"training rows have a column {_NUM_ROLLOUTS}, but the method's groups all have one size: remove "
                    "the column"
                )
            assign_non_tensor_data(prompts, _NUM_ROLLOUTS, self.num_rollouts)
        super().generate_sequences(prompts)
