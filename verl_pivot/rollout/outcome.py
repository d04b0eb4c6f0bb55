"""End of a rollout with tools -> the Verdict of a failure or of an environment, if either decides the outcome."""

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.tools.toolset import RolloutTools
from verl_pivot.types import Message, Verdict


async def decided_outcome(
    tools: RolloutTools, stop_reason: StopReason, last_message: Message, failure: str
) -> Verdict | None:
    """Verdict of a failure or of an environment; None leaves the outcome to whoever gives the reward.

    Args:
        tools: The rollout's tools, whose environments may score the outcome.
        stop_reason: Why the rollout ended.
        last_message: The last turn of the policy; an environment sees it only if the policy ended the rollout with it.
        failure: Description of the failure that masks the rollout; "" if none does.
    """
    if stop_reason.is_masked:
        return Verdict.undecided(stop_reason.value, failure)
    return await tools.score(last_message if stop_reason is StopReason.ANSWERED else None)
