"""End of a rollout with tools -> the Verdict of a failure or of an environment, if either decides the outcome."""

from verl_pivot.data.faults import FaultReason, fault_verdict
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import UserCodeError
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import Message, Verdict


async def decided_outcome(
    tools: RolloutTools, stop_reason: StopReason, last_message: Message, failure: str, *, is_bug: bool = False
) -> Verdict | None:
    """Verdict of a failure or of an environment; None leaves the outcome to the reward manager.

    Args:
        tools: The rollout's tools, whose environments may score the outcome.
        stop_reason: Why the rollout ended.
        last_message: The last turn of the policy; an environment sees it only if the policy ended the rollout with it.
        failure: Description of the failure that masks the rollout; "" if none does.
        is_bug: Whether that failure is one of a tool's own code.
    """
    if stop_reason.is_masked:
        return Verdict.undecided(FaultReason.USER_CODE_FAILED if is_bug else stop_reason.value, failure)
    try:
        return await tools.score(last_message if stop_reason is StopReason.ANSWERED else None)
    except UserCodeError as error:
        return fault_verdict(error)
