"""Steps `greedy_probe` and `borderline`: what a policy does at each labelled turn -> what is worth training on.

LoopTool (arXiv:2511.09148, section 3) calls it greedy capability probing. Its code samples at temperature 0.001 and
records `exp(-mean log p)`; the rule by which right answers count as borderline is not in it, and is ours.
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
from verl_pivot.synthesis.hard_tools import greedy_question
from verl_pivot.synthesis.rollouts import POLICY
from verl_pivot.synthesis.steps import ChooseStep, choose_step, make_step
from verl_pivot.synthesis.turn_trajectories import ending_in
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Malformed, Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.scoring import score_message

PROBE, PROBE_REASON = "probe", "probe_reason"
"""Keys of a draft's values: how the policy did at its turn, and why the verifier says so."""
_PERPLEXITY, _ACTION = "perplexity", "policy_action"
_LEAST_LOGPROB = -100.0
"""Mean below which no model's own tokens are: one of a million tokens at random has -14."""
_ROUNDING = 1e-3
"""Mean above 0 that rounding may give."""
_RIGHT_ANSWERS = "right answers"
"""Group of the drafts whose perplexities are compared."""


class Probed(StrEnum):
    """How a policy did at a labelled turn."""

    RIGHT = "right"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """The verifier cannot tell, such as where the label itself cannot be run."""
    REPAIRED = "repaired"
    """The policy was right where the label was wrong, and its action has taken the place of the label."""


class GreedyProbeOptions(Options):
    max_tokens: int = Field(default=1024, ge=16)
    """Most tokens of one answer."""
    logprobs: bool = True
    """Whether the policy is asked for them; without perplexities no right answer is borderline."""


@make_step("greedy_probe", options=GreedyProbeOptions)
class GreedyProbe:
    """Makes a draft of each turn of the expert that makes calls, with what the policy does there at temperature 0."""

    def __init__(self, options: GreedyProbeOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        labelled = () if draft.trajectory is None else turns(draft.trajectory)
        calls = [turn for turn in labelled if turn.expert.tool_calls]
        if not calls:
            return [draft.rejected("no_label", "no turn of the expert makes a call")]
        return await all_at_once(self._probed(draft.made(number), turn, workshop) for number, turn in enumerate(calls))

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
    """exp(-mean log p) of an answer's tokens; None if there are none.

    Raises:
        EngineError: If the server gives what no probabilities are.
    """
    if not logprobs:
        return None
    mean = fmean(each.logprob for each in logprobs)
    if not _LEAST_LOGPROB < mean <= _ROUNDING:
        raise EngineError(
            f"the policy's server gives logprobs with a mean of {mean:g}, which no model has; set "
            "greedy_probe.logprobs=false to do without them"
        )
    return math.exp(-mean)


def probed_turn(draft: Draft, *found: Probed) -> Turn | None:
    """The labelled turn of a draft at which the policy was found to do so; None if it did else, or nobody asked it."""
    if draft.trajectory is None or draft.values.get(PROBE) not in found:
        return None
    return turns(draft.trajectory)[-1]


def policy_action(draft: Draft) -> Message | None:
    """What the policy did at a draft's turn; None if that was no action."""
    action = draft.values.get(_ACTION)
    return None if action is None else parse_message(action)


class BorderlineOptions(Options):
    above: float = Field(default=0.8, ge=0.0, lt=1.0)
    """Quantile of the perplexities of all right answers; those above it are borderline, the others are mastered."""


@choose_step("borderline", options=BorderlineOptions, across_items=True)
def borderline(options: BorderlineOptions) -> ChooseStep:
    """Keeps what the policy failed at, and of what it had right the answers of which it was least sure."""

    async def choose(drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]:
        known = sorted(found for each in drafts if (found := _right_perplexity(each)) is not None)
        limit = quantile(known, options.above) if known else 0.0
        return [_chosen(each, limit) for each in drafts]

    return choose


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed; 0 for a share of 0."""
    return ascending[math.ceil(share * len(ascending)) - 1] if share else 0.0


def _right_perplexity(draft: Draft) -> float | None:
    found = draft.values.get(_PERPLEXITY)
    return found if draft.values.get(PROBE) == Probed.RIGHT and isinstance(found, float) else None


def _chosen(draft: Draft, limit: float) -> Draft:
    if draft.values.get(PROBE) != Probed.RIGHT:
        return draft
    found = _right_perplexity(draft)
    if found is None:
        return draft.rejected("mastered", "the policy is right, and nobody knows how sure it was")
    if found <= limit:
        return draft.rejected("mastered", f"the policy is right, with a perplexity of {found:.4g}, up to {limit:.4g}")
    return draft
