"""OversamplingManager: verl's agent loop manager, which generates more rollouts per prompt than the update sees."""

from typing import Any

from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils.tensordict_utils import assign_non_tensor_data

from verl_pivot.data.rollout_records import IS_VALIDATION
from verl_pivot.errors import DataError
from verl_pivot.resampling.settings import parse_resampling

_NUM_ROLLOUTS = "__rollout_n__"
"""verl's field of a prompt: the number of rollouts that agent loop workers generate for it."""


class OversamplingManager(AgentLoopManagerTQ):  # type: ignore[misc]  # verl is untyped here
    """Generates `pivot.resampling.oversample * rollout.n` rollouts per prompt in training; validation is as in verl.

    `rollout.n` stays the number that the update sees, since verl computes the size of its mini-batches from it. Agent
    loops read in each prompt whether it is for validation, which verl does not tell them.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._num_rollouts = parse_resampling(config).num_generated

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand prompts on to the workers.

        Raises:
            DataError: If rows have a column of their own for the number of rollouts.
        """
        assign_non_tensor_data(prompts, IS_VALIDATION, "validate" in prompts)
        if "validate" not in prompts:
            if _NUM_ROLLOUTS in prompts:
                raise DataError(
                    f"training rows have a column {_NUM_ROLLOUTS}, but with pivot.resampling all groups have one size: "
                    "remove the column"
                )
            assign_non_tensor_data(prompts, _NUM_ROLLOUTS, self._num_rollouts)
        super().generate_sequences(prompts)
