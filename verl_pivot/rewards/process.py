"""Scores of a trajectory's turns and its outcome -> a reward for each turn (PPR, arXiv:2509.25598)."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.rewards.checklist import gains
from verl_pivot.validation import Options

Mode = Literal["renorm", "sum", "scaled", "process", "outcome"]


class ProcessRule(Options):
    """How the scores of turns and the outcome make rewards, where r_t is the score of turn t and r_o the outcome.

    | mode | every turn but the last | last turn |
    |---|---|---|
    | renorm | r_t + r_o - mu | r_o |
    | sum | r_t | r_o |
    | scaled | alpha * r_t | r_o |
    | process | r_t | 0 |
    | outcome | 0 | r_o |
    """

    mode: Mode = "renorm"
    mu: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    """With mode renorm: how far every judged turn is shifted down."""
    alpha: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.5
    """With mode scaled: factor of the scores."""
    per_turn: Literal["sum", "mean"] = "sum"
    """mean: rewards of judged turns are divided by the number of these turns: a longer trajectory is not paid more."""
    reward: Literal["progress", "gain"] = "progress"
    """
    Meaning of r_t. progress: the score of the turn. gain: the score minus that of the turn before, so that a turn
    without progress earns nothing; only for scores that tell how far a task has come.
    """
    invalid: Literal["mean", "zero"] = "mean"
    """
    Score of a turn for which the judge gave no valid answer.
    mean: the mean score of the trajectory's other turns; without any, the outcome alone is paid.
    zero: 0, as in the released code; with renorm and a wrong answer, no turn can get less than such a turn.
    With reward=gain the turn gains nothing, and the gain of the next turn is measured from the last known score.
    """


def turn_rewards(scores: Sequence[float | None], outcome: float, rule: ProcessRule) -> list[float]:
    """Rewards of a trajectory's turns.

    Args:
        scores: [num_turns - 1] the judge's score in [0, 1] of each turn but the last, which is not judged; None where
            the judge gave no valid answer.
        outcome: Score of the whole trajectory.
        rule: How scores and outcome make rewards.

    Returns:
        [num_turns] rewards.

    Raises:
        ValueError: If a score is not in [0, 1], or with mode renorm the outcome is not, or if mode renorm has gains.

    Example:
        turn_rewards([0.75], 0.0, ProcessRule())  # [-0.25, 0.0]
    """
    if any(score is not None and not 0.0 <= score <= 1.0 for score in scores):
        raise ValueError(f"scores of turns must lie in [0, 1], got {list(scores)}")
    if rule.mode == "renorm" and not 0.0 <= outcome <= 1.0:
        raise ValueError(f"with mode renorm the outcome must lie in [0, 1], got {outcome}")
    if rule.mode == "renorm" and rule.reward == "gain":
        raise ValueError("mode renorm shifts scores, not gains")
    last = 0.0 if rule.mode == "process" else outcome
    filled = gains(scores) if rule.reward == "gain" else _filled(scores, rule)
    divisor = len(filled) if rule.per_turn == "mean" else 1
    return [0.0 if score is None else _judged(score, outcome, rule) / divisor for score in filled] + [last]


def _filled(scores: Sequence[float | None], rule: ProcessRule) -> list[float | None]:
    """Scores with a number in place of each None; with `invalid: mean`, all are None if no turn has a score."""
    if rule.invalid == "zero":
        return [0.0 if score is None else score for score in scores]
    valid = [score for score in scores if score is not None]
    if not valid:
        return [None] * len(scores)
    mean = min(max(sum(valid) / len(valid), min(valid)), max(valid))  # rounding may exceed the scores
    return [mean if score is None else score for score in scores]


def _judged(score: float, outcome: float, rule: ProcessRule) -> float:
    """Reward of one judged turn."""
    match rule.mode:
        case "renorm":
            return score + outcome - rule.mu
        case "scaled":
            return rule.alpha * score
        case "outcome":
            return 0.0
        case "sum" | "process":
            return score
