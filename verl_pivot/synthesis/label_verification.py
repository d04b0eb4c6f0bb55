"""Step `verified_label`: where a policy and a label differ, execution and judges decide which is wrong.

LoopTool (arXiv:2511.09148, section 3) calls this judgement-guided label verification: a majority of judges decides
which of the two is right, and the policy's action replaces a wrong label. Here both are run in an environment before a
judge is asked: the policy continues after each. A label is replaced only by an action that leads to an outcome of 1,
in no more turns than the label needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.playing.shown_texts import shown_to_player
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.greedy_probe import PROBE, PROBE_REASON, Probed, policy_action, probed_turn
from verl_pivot.synthesis.guided_rollouts import guided_row, play_guided, prompt_of
from verl_pivot.synthesis.judging import THREE_JUDGES, PairVerdict, judged_pair
from verl_pivot.synthesis.rollouts import RolloutOptions, check_code
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.turn_trajectories import ending_in
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.tools.tool_response import is_same_result
from verl_pivot.types import JsonObject, Malformed, Message, Role, Turn
from verl_pivot.verifiers.judge_prompts import conversation_text

_CRITERION = (
    "An answer is the assistant's next turn. It is right if its calls do what the user wants next, with the values "
    "that the conversation gives. It is wrong if it calls another tool, lacks a call, or has a wrong or invented value."
)


class LabelVerdict(StrEnum):
    """Which of a label and the policy's action is right, in LoopTool's terms."""

    MODEL_INCORRECT = "model_incorrect"
    ORIGINAL_INCORRECT = "original_incorrect"
    BOTH_CORRECT = "both_correct"
    BOTH_INCORRECT = "both_incorrect"


class VerifiedLabelOptions(RolloutOptions):
    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature of the policy that continues after a label or an action."""
    roles: tuple[str, ...] = THREE_JUDGES
    """Roles of the judges, as in `judge`; if the list is empty, the outcomes alone decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continued:
    """Result of an action after which the policy continued."""

    solves: bool | None
    """Whether the outcome is 1; None if the system failed."""
    detail: str
    num_turns: int = 0
    """Number of turns of the whole conversation."""


@make_step("verified_label", options=VerifiedLabelOptions)
class VerifiedLabel:
    """Replaces wrong labels, and rejects drafts whose label cannot be shown to be right.

    A draft at which the policy was right is not changed. If the verifier was undecided, the label may be broken, so it
    is checked too.
    """

    def __init__(self, options: VerifiedLabelOptions) -> None:
        self._options = options

    async def prepare(self, workshop: Workshop) -> None:
        workshop.toolset("runs labels")

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        turn = probed_turn(draft, Probed.FAILED, Probed.UNDECIDED)
        if turn is None:
            return [draft]
        action = policy_action(draft)
        if action is None:
            return [_kept(draft)]
        label_run = await self._outcome(draft, turn, turn.expert, workshop)
        action_run = await self._outcome(draft, turn, action, workshop)
        shown = f"label: {label_run.detail}; policy: {action_run.detail}"
        if label_run.solves is None or action_run.solves is None:
            return [draft.rejected("system_failed", shown)]
        draft = draft.with_values(label_solves=label_run.solves, policy_solves=action_run.solves)
        solves = PairVerdict(first=_is_way(label_run, action_run), second=_is_way(action_run, label_run))
        found = solves if solves.first or not self._options.roles else await self._judged(turn, action, workshop)
        if found is None:
            return [draft.rejected("judges_undecided", "no majority of the judges says which is right")]
        verdict = _VERDICTS[found]
        if verdict is LabelVerdict.MODEL_INCORRECT:
            return [_kept(draft)]
        draft = draft.with_values(label=verdict)
        if verdict is not LabelVerdict.ORIGINAL_INCORRECT:
            return [draft.rejected(verdict.value, shown)]
        if not solves.second:
            return [draft.rejected("repair_not_accepted", shown)]
        assert draft.trajectory is not None, draft.id
        repaired = ending_in(draft.trajectory, turn, action, id=draft.id)
        values: JsonObject = {PROBE: Probed.REPAIRED, "replaced_label": turn.expert.as_dict()}
        return [replace(draft, trajectory=repaired).with_values(**values)]

    async def _judged(self, turn: Turn, action: Message, workshop: Workshop) -> PairVerdict | None:
        """Whether the label and the action are right, by the majority of the judges."""
        state = conversation_text(turn.state)
        first, second = (encode_json(sent_message(each)) for each in (turn.expert, action))
        return await judged_pair(workshop, state, first, second, _CRITERION, roles=self._options.roles)

    async def _outcome(self, draft: Draft, turn: Turn, action: Message, workshop: Workshop) -> _Continued:
        """Result of the policy that continues after an action in the label's state."""
        trajectory = draft.trajectory
        assert trajectory is not None, draft.id
        if not trajectory.metadata.keys() - {PROVENANCE}:
            return _Continued(solves=False, detail="the row has no metadata of an environment")
        prompt = prompt_of(trajectory)
        if isinstance(prompt, Malformed):
            return _Continued(solves=False, detail=prompt.detail)
        before = [message for message in turn.state[len(prompt) :] if message.role is Role.ASSISTANT]
        if len(before) + 1 >= self._options.max_turns:
            detail = (
                f"the label is turn {len(before) + 1}, and max_turns={self._options.max_turns} leaves no turn after it"
            )
            return _Continued(solves=False, detail=f"{detail}: raise it")
        row = guided_row(draft, trajectory, prompt)
        played = await play_guided(row, [*before, action], workshop, self._options, name=draft.item)
        check_code([played])
        if not played.outcome.is_masked and not _is_state(played, turn.state, self._options.max_observation_tokens):
            return _Continued(solves=False, detail="earlier calls give other results than recorded")
        outcome = played.outcome
        solves = None if outcome.is_masked else outcome.passed is True
        num_turns = len(played.played.turns)
        return _Continued(solves=solves, detail=f"{outcome.reason} in {num_turns} turns", num_turns=num_turns)


_VERDICTS = {
    PairVerdict(first=True, second=False): LabelVerdict.MODEL_INCORRECT,
    PairVerdict(first=False, second=True): LabelVerdict.ORIGINAL_INCORRECT,
    PairVerdict(first=True, second=True): LabelVerdict.BOTH_CORRECT,
    PairVerdict(first=False, second=False): LabelVerdict.BOTH_INCORRECT,
}


def _kept(draft: Draft) -> Draft:
    """The draft with its label as it is; rejected if the row's verifier was undecided about the label."""
    draft = draft.with_values(label=LabelVerdict.MODEL_INCORRECT)
    if draft.values[PROBE] == Probed.UNDECIDED:
        return draft.rejected(str(draft.values[PROBE_REASON]), "the verifier cannot decide about the label")
    return draft


def _is_way(run: _Continued, other: _Continued) -> bool:
    """Whether an action leads to an outcome of 1, and the other action does not do so in fewer turns."""
    return run.solves is True and not (other.solves and other.num_turns < run.num_turns)


def _is_state(played: PlayedProblem, state: Sequence[Message], max_observation_tokens: int) -> bool:
    """Whether a conversation begins with the messages of a state, with the same results by `is_same_result`.

    Recorded results are compared as a conversation shows them: cut to the limit, and with broken marks of the template.
    """
    found = played.played.messages[: len(state)]
    return len(found) == len(state) and all(
        each.role is known.role
        and (
            each.role is not Role.TOOL
            or is_same_result(each.content, shown_to_player(known.content, max_observation_tokens))
        )
        for each, known in zip(found, state, strict=True)
    )
