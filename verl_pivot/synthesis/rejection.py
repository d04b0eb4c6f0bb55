"""Rejection sampling: rollouts of the policy at a task -> the shortest distinct rollouts that solved it.

RFT (Yuan et al., arXiv:2308.01825) keeps every distinct right answer of n. Here rollouts of a task can also stop at the
s-th success, and rollouts are distinct if their sequences of actions differ.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import encode_json
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.synthesis.drafts import PASS_RATE, Draft
from verl_pivot.synthesis.rollouts import RolloutOptions, check_code, has_action, play_task, trajectory_of
from verl_pivot.synthesis.steps import ChooseStep, choose_step, make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import Role, Trajectory
from verl_pivot.validation import Options


class RepeatedRollouts(RolloutOptions):
    num: int = Field(default=8, ge=1)
    """Maximum number of rollouts of a task (n)."""
    stop_at: int | None = Field(default=None, ge=2)
    """Number of successes after which a task gets no more rollouts (s); None plays all n rollouts concurrently."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stop_at is not None and self.stop_at > self.num:
            raise ValueError(f"stop_at must not exceed num, which is {self.num}, got {self.stop_at}")
        return self


def pass_rate(num_solved: int, num_played: int, stop_at: int | None) -> float | None:
    """Unbiased estimate of the probability that a rollout solves the task, even if the s-th success ended the draws.

    If the s-th success ended the draws, it is (s - 1) / (N - 1) (Haldane, Biometrika 33, 1945), for which s must be at
    least 2. Otherwise it is c / N. Both are the share of paths to the end that begin with a success (Girshick,
    Mosteller and Savage, Annals of Mathematical Statistics 17, 1946), so that their mixture is unbiased, too.

    Args:
        num_solved: Number of successes (c).
        num_played: Number of rollouts that have an outcome (N).
        stop_at: Number of successes that ends the draws (s); None if no number of successes does.

    Returns:
        The estimate, or None if no rollout has an outcome.
    """
    if not num_played:
        return None
    if num_solved == stop_at:
        return (num_solved - 1) / (num_played - 1)
    return num_solved / num_played


@make_step("rollouts", options=RepeatedRollouts)
class TaskRollouts:
    """Plays a task several times and makes a draft from each rollout; rollouts that did not solve it are rejected."""

    def __init__(self, options: RepeatedRollouts) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        if draft.task is None:
            return [draft.rejected("no_task", "there is no task to play")]
        played = await self._played(draft, workshop)
        check_code(played)
        outcomes = [each.outcome.passed for each in played if _is_decided(each)]
        rate = pass_rate(outcomes.count(True), len(outcomes), self._options.stop_at)
        return [self._rollout(draft, each, rate, len(outcomes)) for each in played]

    async def _played(self, draft: Draft, workshop: Workshop) -> list[PlayedProblem]:
        """Rollouts in the order of their numbers; they are played one after the other if `stop_at` is set."""
        options = self._options
        if options.stop_at is None:
            return await all_at_once(self._play(draft, workshop, number) for number in range(options.num))
        played: list[PlayedProblem] = []
        while len(played) < options.num and sum(each.outcome.passed is True for each in played) < options.stop_at:
            played.append(await self._play(draft, workshop, len(played)))
        return played

    async def _play(self, draft: Draft, workshop: Workshop, number: int) -> PlayedProblem:
        assert draft.task is not None, draft.id
        return await play_task(draft.task, workshop, self._options, name=draft.item, number=number)

    def _rollout(self, draft: Draft, played: PlayedProblem, rate: float | None, num_decided: int) -> Draft:
        made = draft.made(played.sample)
        record, outcome = played.played.record(played.problem.prompt_id), played.outcome
        values = {
            PASS_RATE: rate, "num_rollouts": num_decided, "num_calls": record.num_calls, "reward": outcome.reward,
            "outcome": outcome.reason, "stop_reason": record.stop_reason.value,
        }  # fmt: skip
        made = made.with_values(**values)
        if not outcome.is_masked:
            made = replace(made, trajectory=trajectory_of(played, made))
        if outcome.passed:
            detail = "each turn of the policy was cut off, or has a call that cannot be read"
            return made if has_action(played) else made.rejected("no_action", detail)
        if _is_decided(played):
            return made.rejected("not_solved", f"{outcome.reason}: {outcome.detail}")
        return made.rejected(outcome.reason or "undecided", outcome.detail)


def _is_decided(played: PlayedProblem) -> bool:
    """Whether a rollout counts as a draw: the system did not fail, and the outcome is decided."""
    return not played.outcome.is_masked and played.outcome.reward is not None


class FewestCallsOptions(Options):
    max_per_task: int = Field(default=2, ge=1)
    """Maximum number of trajectories that are kept per task (m)."""


@choose_step("fewest_calls", options=FewestCallsOptions)
def fewest_calls(options: FewestCallsOptions) -> ChooseStep:
    """Keeps trajectories of a task with different actions.

    Those with fewer calls are preferred, then those with fewer turns that are not the expert's, then earlier rollouts.
    """

    async def choose(drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]:
        kept: dict[str, str] = {}
        left: list[Draft] = []
        for draft in sorted(drafts, key=lambda each: (_num_calls(each), _num_others(each))):
            actions = "" if draft.trajectory is None else _actions(draft.trajectory)
            if actions in kept:
                left.append(draft.rejected("same_actions", f"made the same calls as {kept[actions]}"))
            elif len(kept) == options.max_per_task:
                detail = f"{len(kept)} trajectories of the task with no more calls are kept"
                left.append(draft.rejected("over_limit", detail))
            else:
                kept[actions] = draft.id
                left.append(draft)
        return left

    return choose


def _num_calls(draft: Draft) -> int:
    return 0 if draft.trajectory is None else sum(len(message.tool_calls) for message in draft.trajectory.messages)


def _num_others(draft: Draft) -> int:
    """Number of turns that are not the expert's, such as those that were cut off."""
    if draft.trajectory is None:
        return 0
    num_turns = sum(message.role is Role.ASSISTANT for message in draft.trajectory.messages)
    return num_turns - len(draft.trajectory.expert_indices)


def _actions(trajectory: Trajectory) -> str:
    """Names and arguments of the calls, turn by turn, as JSON text."""
    turns = [
        [[call.name, call.arguments] for call in each.tool_calls] for each in trajectory.messages if each.tool_calls
    ]
    return encode_json(turns, sort_keys=True)  # type: ignore[arg-type]  # nested lists of JSON
