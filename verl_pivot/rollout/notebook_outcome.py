"""Submitted answer -> AnswerOutcome: its verdict and scores, by the verifier `qa` or the environment of the row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.rewards.steps import AnswerScores
from verl_pivot.rollout.outcome import decided_outcome
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import Message, Role, Turn, Verdict
from verl_pivot.verifiers.qa import QaOptions, QaVerifier

_QUESTION = Message(role=Role.USER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOutcome:
    """Outcome of a rollout that was to submit an answer."""

    verdict: Verdict
    """Exact match, or the outcome of an environment; undecided if the row has no answer to compare, or is masked."""
    scores: AnswerScores
    """Scores of the answer. Those that compare words are 0 if the verdict is undecided; if an environment scores the
    answer, both are its score."""
    is_compared: bool = False
    """Whether the answer was compared with the row's, since neither a failure nor an environment gave the verdict."""


class AnsweredRollout(Protocol):
    """What is known about a rollout that was to submit an answer."""

    @property
    def answer(self) -> str | None: ...

    @property
    def stop_reason(self) -> StopReason: ...

    @property
    def failure(self) -> str: ...

    @property
    def is_bug(self) -> bool: ...


async def judged_answer(played: AnsweredRollout, row: Mapping[str, Any], tools: RolloutTools) -> AnswerOutcome:
    """Judge the answer of a rollout.

    Args:
        played: The rollout.
        row: Columns of the row, of which `reward_model.ground_truth` holds the accepted answers.
        tools: The rollout's tools, whose environments may score the outcome.
    """
    answer, stop = played.answer, played.stop_reason
    message = Message(role=Role.ASSISTANT, content=answer or "")
    has_answer = answer is not None
    if (verdict := await decided_outcome(tools, stop, message, played.failure, is_bug=played.is_bug)) is not None:
        score = verdict.score or 0.0
        return AnswerOutcome(verdict=verdict, scores=AnswerScores(score, score, has_answer))
    accepted = accepted_answers(row)
    exact, overlap = [await _compared(message, accepted, metric) for metric in ("exact", "f1")]
    scores = AnswerScores(exact.score or 0.0, overlap.score or 0.0, has_answer)
    return AnswerOutcome(verdict=exact, scores=scores, is_compared=True)


def accepted_answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Accepted answers of a row: its ground truth or the `target` in it, a text or a list, as `qa-rows` writes them."""
    reward_model = row.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if isinstance(target, str):
        return (target,)
    return tuple(map(str, target)) if isinstance(target, Iterable) else ()


async def _compared(answer: Message, accepted: tuple[str, ...], metric: Literal["exact", "f1"]) -> Verdict:
    expert = Message(role=Role.ASSISTANT)
    turn = Turn(trajectory_id="", index=0, state=(_QUESTION,), expert=expert)
    options = QaOptions(metric=metric, normalisation="l0", place="all", answers=accepted)
    return await QaVerifier(options)(answer, turn)
