"""Calibration: an expert's trajectory -> trajectories in which a policy deviates, notices its mistake, and recovers.

STeCa (arXiv:2502.14276, `data_collection/data_cali_alfworld.py`) plays a policy from each prefix of an expert's
trajectory. In its code, actions differ if the cosine of their embeddings is below 0.95, and the new trajectory is not
run. Here the row's verifier decides whether actions differ, and each new trajectory is run and must have outcome 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import Field

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.data.turns import turns
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.synthesis.caller_turns import read_text
from verl_pivot.synthesis.deviations import (
    Deviation,
    ThoughtPlace,
    by_loss,
    calibrated,
    mean_outcome,
    recovering_turns,
)
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import made_or_refused
from verl_pivot.synthesis.guided_rollouts import guided_row, play_guided, prompt_of
from verl_pivot.synthesis.rollouts import RolloutOptions, check_code
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Malformed, Message, Role, Trajectory, Turn
from verl_pivot.verifiers.scoring import score_message

_TELLS = re.compile(r"\bexperts?\b", re.IGNORECASE)


class CalibratedOptions(RolloutOptions):
    num: int = Field(default=4, ge=1)
    """Number of continuations whose mean outcome is the value of an action (M in the paper)."""
    max_per_trajectory: int = Field(default=2, ge=1)
    """Maximum number of calibrated turns per trajectory; the turns with the greatest loss of value are taken."""
    thought_in: ThoughtPlace = ThoughtPlace.CONTENT
    """Part of the turn that holds the thought: its text, or its reasoning, which not every chat template shows."""
    max_thought_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of a thought that the writer writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuidedTask:
    """An expert's trajectory as a task in which the first turns are given by the expert."""

    id: str
    row: JsonObject
    trajectory: Trajectory
    prompt: tuple[Message, ...]
    turns: tuple[Message, ...]
    """[num_turns] the expert's actions after the prompt."""
    candidates: dict[int, Turn]
    """{index in `turns`: the turn} of each turn that directly follows another turn of the expert."""


class _Probed(NamedTuple):
    """Results of the continuations from one turn on."""

    value_before: float | None
    """Mean outcome of the continuations; None if none has an outcome."""
    deviation: Deviation | None
    """First action of a failed continuation that differs from the expert's, with its value; None if there is none."""


@make_step("calibrated", options=CalibratedOptions)
class Calibrated:
    """Makes trajectories from the policy's worst deviations from an expert's trajectory that can be recovered from."""

    def __init__(self, options: CalibratedOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        options = self._options
        task = _guided_task(draft, options.max_turns)
        if isinstance(task, Malformed):
            return [draft.rejected(task.reason, task.detail)]
        played = await self._play_given(task, task.turns, workshop)
        if problem := _problem(played, task, len(task.turns)):
            return [draft.rejected("system_failed" if _is_system(played) else "expert_fails", problem)]
        probed = [await self._probed(task, number, workshop) for number in task.candidates]
        before = [each.value_before for each in probed]
        indices = (str(turn.index) for turn in task.candidates.values())
        draft = draft.with_values(values_before=dict(zip(indices, before, strict=True)))
        if all(value is None for value in before):
            return [draft.rejected("undecided", "no continuation of the policy has an outcome")]
        found = [each.deviation for each in probed if each.deviation is not None]
        drafts: list[Draft] = []
        for number, deviation in enumerate(by_loss(found)):
            if sum(each.finding is None for each in drafts) == options.max_per_trajectory:
                break
            made = draft.made(number)
            drafts.append(await made_or_refused(made, self._made(made, task, deviation, workshop)))
        detail = f"{len(found)} failed actions differ from the expert's, but each of them raises the value"
        return drafts or [draft.rejected("no_deviation", detail)]

    async def _probed(self, task: _GuidedTask, number: int, workshop: Workshop) -> _Probed:
        """Value before a turn, and the first failed action there that differs from the expert's by the verifier."""
        given = task.turns[:number]
        before = await self._continued(task, given, 2 * number, workshop)
        value_before = mean_outcome(map(_outcome, before))
        if value_before is None:
            return _Probed(None, None)
        for played in before:
            action = _first_action(played, number)
            if action is None or not await _is_other(action, task.candidates[number]):
                continue
            # New continuations: the one with this action was chosen because it failed, so it would bias the mean.
            value = mean_outcome(map(_outcome, await self._continued(task, (*given, action), 2 * number + 1, workshop)))
            return _Probed(value_before, None if value is None else Deviation(number, action, value_before, value))
        return _Probed(value_before, None)

    async def _continued(
        self, task: _GuidedTask, given: Sequence[Message], series: int, workshop: Workshop
    ) -> list[PlayedProblem]:
        """[num] conversations in which the policy continues after the given turns; each series has its own seeds."""
        num = self._options.num
        played = await all_at_once(
            play_guided(task.row, given, workshop, self._options, name=task.id, number=series * num + k)
            for k in range(num)
        )
        check_code(played)
        return played

    async def _play_given(self, task: _GuidedTask, given: Sequence[Message], workshop: Workshop) -> PlayedProblem:
        played = await play_guided(task.row, given, workshop, self._options, name=task.id, policy_goes_on=False)
        check_code([played])
        return played

    async def _made(self, draft: Draft, task: _GuidedTask, deviation: Deviation, workshop: Workshop) -> Draft:
        """The draft with the trajectory that recovers from a deviation, or rejected with the reason."""
        index = task.candidates[deviation.turn].index
        draft = draft.with_values(turn=index, value_before=deviation.value_before, value=deviation.value)
        given = recovering_turns(task.turns, deviation)
        played = await self._play_given(task, given, workshop)
        if problem := _problem(played, task, len(given)):
            return draft.rejected("system_failed" if _is_system(played) else "not_recovered", problem)
        messages = played.played.messages
        thought = await self._thought(messages, index, workshop)
        if isinstance(thought, Malformed):
            return draft.rejected(thought.reason, thought.detail)
        made = calibrated(task.trajectory, messages, index, thought, self._options.thought_in, id=draft.id)
        return replace(draft, trajectory=made)

    async def _thought(self, messages: Sequence[Message], index: int, workshop: Workshop) -> str | Malformed:
        """The assistant's thought about its turn `index` after it has seen the result, written by the writer."""
        question = WriterQuestion(
            messages=({"role": "user", "content": _thought_question(messages, index)},),
            seed=workshop.seed(index),
            max_tokens=self._options.max_thought_tokens,
        )
        text = read_text(await workshop.answer(question), reason="bad_thought")
        if isinstance(text, Malformed):
            return text
        if found := _TELLS.search(text):
            return Malformed(
                reason="thought_tells",
                detail=f"the thought mentions {found[0]!r}, which the assistant cannot know: {text!r}",
            )
        return text


def _guided_task(draft: Draft, max_turns: int) -> _GuidedTask | Malformed:
    """The task of a trajectory, or the reason why it cannot be played."""
    trajectory = draft.trajectory
    if trajectory is None or trajectory.passed is False:
        return Malformed(reason="not_passed", detail="calibration needs a trajectory that solves its task")
    prompt = prompt_of(trajectory)
    if isinstance(prompt, Malformed):
        return prompt
    taken = tuple(message for message in trajectory.messages[len(prompt) :] if message.role is Role.ASSISTANT)
    num_prompt_turns = sum(message.role is Role.ASSISTANT for message in prompt)
    by_index = {turn.index - num_prompt_turns: turn for turn in turns(trajectory)}
    candidates = {
        number: by_index[number] for number in range(1, len(taken)) if {number - 1, number} <= by_index.keys()
    }
    if not candidates:
        return Malformed(reason="too_few_turns", detail="no expert turn directly follows another expert turn")
    if len(taken) >= max_turns:
        detail = f"with the deviation the trajectory has {len(taken) + 1} turns, more than max_turns={max_turns}"
        return Malformed(reason="too_many_turns", detail=detail)
    return _GuidedTask(
        id=draft.item,
        row=guided_row(draft, trajectory, prompt),
        trajectory=trajectory,
        prompt=prompt,
        turns=taken,
        candidates=candidates,
    )


def _problem(played: PlayedProblem, task: _GuidedTask, num_turns: int) -> str:
    """Why a conversation that consists of given turns does not solve the task; "" if it does."""
    conversation, outcome = played.played, played.outcome
    if conversation.messages[: conversation.num_prompt_messages] != task.prompt:
        return "the prompt with the environment's opening text differs from the trajectory's prompt"
    unreadable = next((number for number, turn in enumerate(conversation.turns) if not turn.is_readable), None)
    if unreadable is not None:
        return f"turn {unreadable} has a call that cannot be read: {conversation.turns[unreadable].calls}"
    if outcome.passed is not True:
        return f"the outcome is {outcome.reward}, {outcome.reason}: {outcome.detail}"
    if len(conversation.turns) < num_turns:
        return f"it ends early, after {len(conversation.turns)} of {num_turns} turns: {conversation.stop_reason.value}"
    try:
        encode_json([message.as_dict() for message in conversation.messages])
    except BadRowError as error:  # half of a surrogate pair in a call or a result
        return str(error)
    return ""


def _is_system(played: PlayedProblem) -> bool:
    """Whether the system failed in a conversation that consists of given turns, so that no engine is used."""
    return played.outcome.is_masked and played.played.stop_reason is not StopReason.ENGINE_FAILURE


def _outcome(played: PlayedProblem) -> float | None:
    """The outcome of one continuation; None if the system failed, or the outcome is undecided."""
    return None if played.outcome.is_masked else played.outcome.reward


def _first_action(played: PlayedProblem, num_given: int) -> Message | None:
    """The policy's first action in a failed conversation; None unless it makes calls that can be run."""
    if played.outcome.is_masked or played.outcome.passed is not False or len(played.played.turns) <= num_given:
        return None
    turn = played.played.turns[num_given]
    return turn.message if turn.ended and turn.is_readable and turn.calls else None


async def _is_other(action: Message, turn: Turn) -> bool:
    """Whether an action differs from the expert's by the verifier; an undecided action does not count as different."""
    verdict = await score_message(action, turn)
    return verdict.score is not None and verdict.score < 1.0


def _thought_question(messages: Sequence[Message], index: int) -> str:
    starts = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    shown = "\n".join(encode_json(sent_message(message)) for message in messages[: starts[index + 1]])
    return (
        "A conversation of a user with an assistant that has tools, one message a line:\n"
        f"{shown}\n\nThe assistant's last turn was a mistake. Its next turn, which is right, is:\n"
        f"{encode_json(sent_message(messages[starts[index + 1]]))}\n\n"
        "Write what the assistant thinks before that next turn: from the result, that its last turn did not help and "
        "why, and what it does instead. Write in the first person, in one to three sentences, with nothing that the "
        "conversation does not say, and without a call. Answer with the thought alone."
    )
