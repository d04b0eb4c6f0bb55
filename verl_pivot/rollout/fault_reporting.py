"""FaultReportingLoop: an agent loop that raises -> a row that says why; verl would log an error for each rollout."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.utils.import_utils import load_class_from_fqn

from verl_pivot.data.faults import fault_verdict
from verl_pivot.data.rollout_records import VERDICT_FIELD
from verl_pivot.types import JsonObject, Verdict


class FaultReportingLoop:
    """Makes and runs another agent loop; verl makes one of these for each rollout.

    If the loop raises, verl would log the error once for each rollout, and end much later with a message about groups
    without trajectories. Here the rollout becomes an undecided row with the cause, and the replay buffer either stops
    at such a row or leaves it out.
    """

    def __init__(self, *, loop: str, **arguments: Any) -> None:
        """Make the loop.

        Args:
            loop: Full name of the agent loop's class.
            arguments: Arguments that verl gives to an agent loop.
        """
        self._loop, self._error = None, None
        try:
            self._loop = load_class_from_fqn(loop, "agent loop")(**arguments)
        except Exception as error:  # noqa: BLE001  an agent loop that cannot be made; `run` reports it
            self._error = error

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The outputs of the loop; one undecided output that no update will see if the loop raises."""
        if self._loop is None:
            assert self._error is not None
            return masked_output(fault_verdict(self._error))
        try:
            return await self._loop.run(sampling_params, **row)
        except Exception as error:  # noqa: BLE001  an agent loop, its tools or its row; the row reports it
            return masked_output(fault_verdict(error))


def masked_output(verdict: Verdict) -> AgentLoopOutput:
    """Output of one masked token, which verl accepts, with the undecided verdict that says what failed."""
    fields: JsonObject = {"score": verdict.score, "reason": verdict.reason, "detail": verdict.detail}
    return AgentLoopOutput(
        prompt_ids=[0],
        response_ids=[0],
        response_mask=[0],
        response_logprobs=[0.0],
        num_turns=2,
        metrics={},
        extra_fields={VERDICT_FIELD: fields},
    )
