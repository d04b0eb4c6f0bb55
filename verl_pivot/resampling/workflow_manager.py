"""WorkflowManager: verl's agent loop manager, which marks prompts for validation and gives them workflows."""

from typing import Any

from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils.tensordict_utils import assign_non_tensor_data, assign_non_tensor_stack

from verl_pivot.data.rollout_records import IS_VALIDATION, WORKFLOWS_COLUMN
from verl_pivot.errors import DataError
from verl_pivot.resampling.step_workflows import start_step_workflows
from verl_pivot.rollout.workflows import SITE_COLUMN


class WorkflowManager(AgentLoopManagerTQ):  # type: ignore[misc]  # verl is untyped here
    """Writes into each prompt whether it is for validation, which verl does not tell agent loops.

    With `pivot.rollout.workflows` each prompt also gets the workflows for its task, which all its rollouts see.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._workflows = start_step_workflows(config)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Pass prompts on to the workers.

        Raises:
            DataError: If rows already have the column for workflows.
        """
        assign_non_tensor_data(prompts, IS_VALIDATION, "validate" in prompts)
        self._add_workflows(prompts)
        super().generate_sequences(prompts)

    def _add_workflows(self, prompts: TensorDict) -> None:
        """Write the workflows for each prompt into a column.

        Raises:
            DataError: If rows already have this column.
        """
        if self._workflows is None:
            return
        if WORKFLOWS_COLUMN in prompts:
            raise DataError(f"rows have a column {WORKFLOWS_COLUMN}, which pivot.rollout.workflows writes: remove it")
        messages = [list(each) for each in _values(prompts, "raw_prompt")]
        sites = _values(prompts, SITE_COLUMN) if SITE_COLUMN in prompts else [None] * len(messages)
        columns = self._workflows.columns(
            messages,
            [{SITE_COLUMN: site} for site in sites],
            int(_values(prompts, "global_steps")[0]),
            is_validation="validate" in prompts,
        )
        assign_non_tensor_stack(prompts, WORKFLOWS_COLUMN, columns)


def _values(prompts: TensorDict, name: str) -> list[Any]:
    """[num_prompts] values of a column."""
    column = prompts.get(name)
    values = column.tolist() if hasattr(column, "tolist") else column
    return list(values) if isinstance(values, list) else [values] * len(prompts)
