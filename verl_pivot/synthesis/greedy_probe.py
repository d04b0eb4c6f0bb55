"""Steps `greedy_probe` and `borderline`: a policy's action at each labelled turn -> turns that are worth training on.

LoopTool (arXiv:2511.09148, section 3) calls this greedy capability probing. Its code samples at temperature 0.001 and
records `exp(-mean log p)`. It has no rule for which right answers count as borderline; the rule here is our own.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean

from pydantic import Field

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.messages import parse_message
from verl_pivot.data.turns import turns
from verl_pivot.engines.chat import TokenLogprob
from verl_pivot.errors import EngineError
from verl_pivot.synthesis.caller_turns import read_action
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import made_or_refused
from verl_pivot.synthesis.hard_tools import greedy_question
from verl_pivot.synthesis.rollouts import POLICY
from verl_pivot.synthesis.steps import ChooseStep, choose_step, make_step
from verl_pivot.synthesis.turn_trajectories import ending_in
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Malformed, Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.scoring import score_message

PROBE, PROBE_REASON = "probe", "probe_reason"
"""Keys of draft values: the policy's result at the draft's turn, and the verifier's reason."""
_PERPLEXITY, _ACTION = "perplexity", "policy_action"
_LEAST_LOGPROB = -100.0
"""Lower bound of a valid mean log-probability; even a random choice among a million tokens has -14."""
_ROUNDING = 1e-3
"""Upper bound of a valid mean log-probability, which rounding may lift above 0."""
_RIGHT_ANSWERS = "right answers"
"""Group of the drafts whose perplexities are compared."""


class Probed(StrEnum):
    """Result of a policy at a labelled turn."""

    RIGHT = "right"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """The verifier cannot decide, for example because the label itself cannot be run."""
    REPAIRED = "repaired"
    """The policy was right and the label wrong, so the policy's action has replaced the label."""


class GreedyProbeOptions(Options):
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""
    logprobs: bool = True
    """Whether to request log-probabilities from the policy's server; without them no right answer is borderline."""


@make_step("greedy_probe", options=GreedyProbeOptions)
class GreedyProbe:
    """Makes a draft from each expert turn with calls, and records the policy's action there at temperature 0."""

    def __init__(self, options: GreedyProbeOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        labelled = () if draft.trajectory is None else turns(draft.trajectory)
        calls = [turn for turn in labelled if turn.expert.tool_calls]
        if not calls:
            return [draft.rejected("no_label", "no turn of the expert makes a call")]
        made = [draft.made(number) for number in range(len(calls))]
        return await all_at_once(
            made_or_refused(each, self._probed(each, turn, workshop)) for each, turn in zip(made, calls, strict=True)
        )

    async def _probed(self, draft: Draft, turn: Turn, workshop: Workshop) -> Draft:
        assert draft.trajectory is not None, draft.id
        draft = replace(draft, trajectory=ending_in(draft.trajectory, turn, turn.expert, id=draft.id))
        options = self._options
        answer = await workshop.answer(
            greedy_question(turn, workshop, options.max_tokens, logprobs=options.logprobs), POLICY
        )
        action = read_action(answer)
        if isinstance(action, Malformed):
            verdict = Verdict.refuse(action.reason, action.detail)
        else:
            verdict = await score_message(action, turn)
        found = _FOUND.get(verdict.score, Probed.FAILED)
        values: JsonObject = {
            PROBE: found,
            _PERPLEXITY: perplexity(answer.logprobs),
            _ACTION: None if isinstance(action, Malformed) else action.as_dict(),
            PROBE_REASON: verdict.reason,
            "turn": turn.index,
        }
        group = _RIGHT_ANSWERS if found is Probed.RIGHT else draft.group
        return replace(draft, group=group).with_values(**values)


_FOUND = {1.0: Probed.RIGHT, None: Probed.UNDECIDED}


def perplexity(logprobs: Sequence[TokenLogprob]) -> float | None:
    """exp(-mean log p) of an answer's tokens; None if there are no log-probabilities.

    Raises:
        EngineError: If the mean is no possible value of log-probabilities.
    """
    if not logprobs:
        return None
    mean = fmean(each.logprob for each in logprobs)
    if not _LEAST_LOGPROB < mean <= _ROUNDING:
        raise EngineError(
            f"the policy's server returns impossible logprobs (mean {mean:g}); set greedy_probe.logprobs=false to run "
            "without them"
        )
    return math.exp(-mean)


def probed_turn(draft: Draft, *found: Probed) -> Turn | None:
    """The labelled turn of a draft if the policy's result is one of `found`; None otherwise, or without a result."""
    if draft.trajectory is None or draft.values.get(PROBE) not in found:
        return None
    return turns(draft.trajectory)[-1]


def policy_action(draft: Draft) -> Message | None:
    """The policy's action at a draft's turn; None if its answer was no valid action."""
    action = draft.values.get(_ACTION)
    return None if action is None else parse_message(action)


class BorderlineOptions(Options):
    above: float = Field(default=0.8, ge=0.0, lt=1.0)
    """Quantile of the perplexities of all right answers; answers above it are borderline, the others are mastered."""


@choose_step("borderline", options=BorderlineOptions, across_items=True)
def borderline(options: BorderlineOptions) -> ChooseStep:
    """Keeps turns at which the policy failed, and those it got right with the highest perplexity."""

    async def choose(drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]:
        known = sorted(found for each in drafts if (found := _right_perplexity(each)) is not None)
        limit = quantile(known, options.above) if known else 0.0
        return [_chosen(each, limit) for each in drafts]

    return choose


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 for a share of 0."""
    return ascending[math.ceil(share * len(ascending)) - 1] if share else 0.0


def _right_perplexity(draft: Draft) -> float | None:
    found = draft.values.get(_PERPLEXITY)
    return found if draft.values.get(PROBE) == Probed.RIGHT and isinstance(found, float) else None


def _chosen(draft: Draft, limit: float) -> Draft:
    if draft.values.get(PROBE) != Probed.RIGHT:
        return draft
    found = _right_perplexity(draft)
    if found is None:
        return draft.rejected("mastered", "the policy is right, but its perplexity is unknown (no logprobs)")
    if found <= limit:
        detail = f"the policy is right, and its perplexity {found:.4g} does not exceed the limit {limit:.4g}"
        return draft.rejected("mastered", detail)
    return draft
