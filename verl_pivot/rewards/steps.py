"""Facts about a trajectory's steps and scores of its answer -> a reward and a return for each step (L0)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from verl_pivot.validation import Options

Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts about one step, which is a thought together with its code.

    Example:
        StepFacts(has_form=True, ran=False, num_outputs=3, num_errors=1)
    """

    has_form: bool
    """Whether the turn has exactly one think block of more than 10 characters and one code block of more than 5."""
    ran: bool
    """Whether its cell ran without an error; False if there was no code to run."""
    num_outputs: int = 0
    """Number of outputs of the cell: its printed text, its value, and its error."""
    num_errors: int = 0
    """Number of the outputs that are errors."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_errors <= self.num_outputs:
            raise ValueError(
                f"a cell has at most as many errors as outputs, got {self.num_errors} errors in {self.num_outputs}"
            )


class AnswerScores(NamedTuple):
    """Scores of the answer that a trajectory submitted; all 0 if it submitted none."""

    em: float
    """1 if the answer is an accepted one, else 0."""
    f1: float
    """Overlap of its words with those of the nearest accepted answer, from 0 to 1."""
    has_answer: bool


class StepWeights(Options):
    """Weights of the parts of a trajectory's reward."""

    answer: Weight = 0.8
    """Weight of the answer's score, which the last step gets."""
    format: Weight = 0.1
    """Weight of the share of steps with the right form."""
    execution: Weight = 0.1
    """Weight of the share of steps whose cell ran."""


class AnswerWeights(Options):
    """Weights of the scores of an answer."""

    em: Weight = 0.9
    """Weight of the exact match."""
    has_answer: Weight = 0.1
    """Weight of having answered at all."""
    f1: Weight = 0.0
    """Weight of the overlap of words."""


class StepRule(Options):
    """How facts become rewards and returns. The defaults are those of L0's released code, except for `execution`."""

    weights: StepWeights = StepWeights()
    answer_weights: AnswerWeights = AnswerWeights()
    execution: Literal["ran", "released"] = "ran"
    """ran: a step is rewarded if its cell ran without an error. released: by the share of its outputs that are no
    errors, and with 0 if there are no outputs, so that a cell that only assigns gets nothing."""
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.95
    """Discount from one step to the step before it."""


def step_rewards(steps: Sequence[StepFacts], answer: AnswerScores, rule: StepRule) -> list[float]:
    """Rewards of a trajectory's steps.

    Each of T steps can get 1/T of the reward for format and of the reward for execution, so that more steps do not
    bring more reward. The last step also gets the reward for the answer.

    Source: L0 (arXiv:2506.23667) and its released code, `combine_str_reward_fn`.

    Args:
        steps: [num_steps] facts of all steps.
        answer: Scores of the answer.
        rule: How facts and scores make rewards.

    Returns:
        [num_steps] rewards.

    Example:
        step_rewards([StepFacts(has_form=True, ran=True)], AnswerScores(1.0, 1.0, True), StepRule())  # [1.0]
    """
    weights, num_steps = rule.weights, len(steps)
    rewards = [
        weights.format * step.has_form / num_steps + weights.execution * _execution(step, rule) / num_steps
        for step in steps
    ]
    if rewards:
        rewards[-1] += weights.answer * _answer(answer, rule.answer_weights)
    return rewards


def step_returns(steps: Sequence[StepFacts], answer: AnswerScores, rule: StepRule) -> list[float]:
    """Returns of a trajectory's steps: the reward of a step and gamma times the return of the step after it.

    Args and example are those of `step_rewards`.

    Returns:
        [num_steps] returns.
    """
    returns: list[float] = []
    later = 0.0
    for reward in reversed(step_rewards(steps, answer, rule)):
        later = reward + rule.gamma * later
        returns.append(later)
    return returns[::-1]


def trajectory_scores(
    steps: Sequence[StepFacts], answer: AnswerScores, rule: StepRule, num_trims: int
) -> dict[str, float]:
    """Scores of a trajectory that verl averages in validation, and that the replay buffer averages in training.

    Args:
        steps: [num_steps] facts of all steps, at least one.
        answer: Scores of the answer.
        rule: Rule by which a step counts as executed.
        num_trims: How often the context was trimmed.

    Returns:
        {name: value}: em, f1, has_answer, the shares of steps `format` and `execution`, and the numbers `steps`,
        `failed_steps` (those whose cell did not run) and `trims`.
    """
    num_steps = len(steps)
    return {
        "em": answer.em,
        "f1": answer.f1,
        "has_answer": float(answer.has_answer),
        "format": sum(step.has_form for step in steps) / num_steps,
        "execution": sum(_execution(step, rule) for step in steps) / num_steps,
        "steps": float(num_steps),
        "failed_steps": float(sum(not step.ran for step in steps)),
        "trims": float(num_trims),
    }


def _execution(step: StepFacts, rule: StepRule) -> float:
    if rule.execution == "ran":
        return float(step.ran)
    return 1.0 - step.num_errors / step.num_outputs if step.num_outputs else 0.0


def _answer(answer: AnswerScores, weights: AnswerWeights) -> float:
    return weights.em * answer.em + weights.has_answer * answer.has_answer + weights.f1 * answer.f1
