"""Check `expert_accepted`: the verifier of a draft's trajectory accepts the expert at every turn."""

from verl_pivot.data.turns import turns
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.steps import CheckStep, check_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.scoring import score_expert


class ExpertAcceptedOptions(Options):
    """`expert_accepted` has no options: the row names its verifier."""


@check_step("expert_accepted", options=ExpertAcceptedOptions)
def expert_accepted(options: ExpertAcceptedOptions) -> CheckStep:
    """Passes a trajectory whose verifier gives every expert turn full score; undecided if the verifier is undecided."""

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        candidates = () if draft.trajectory is None else turns(draft.trajectory)
        if not candidates:
            return Verdict.refuse("no_expert_turn", "the draft has no expert turn for the verifier to judge")
        for turn in candidates:
            verdict = await score_expert(turn)
            if verdict.score is None:
                return verdict
            if verdict.score != 1.0:
                return Verdict.refuse("expert_refused", f"turn {turn.index}, {verdict.reason}: {verdict.detail}")
        return Verdict.accept()

    return check
