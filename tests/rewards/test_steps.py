"""Rewards and returns of steps: numbers worked out by hand from L0's rule, and laws that hold for any trajectory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from verl_pivot.rewards.steps import (
    AnswerScores,
    AnswerWeights,
    StepFacts,
    StepRule,
    StepWeights,
    step_returns,
    step_rewards,
    trajectory_scores,
)

GOOD = StepFacts(has_form=True, ran=True, num_outputs=1)
FAILED = StepFacts(has_form=True, ran=False, num_outputs=2, num_errors=1)
SILENT = StepFacts(has_form=True, ran=True)
EMPTY = StepFacts(has_form=False, ran=False)
RIGHT = AnswerScores(em=1.0, f1=1.0, has_answer=True)
WRONG = AnswerScores(em=0.0, f1=0.5, has_answer=True)
NONE = AnswerScores(em=0.0, f1=0.0, has_answer=False)
RULE = StepRule()
RELEASED = StepRule(execution="released")
steps = st.lists(st.sampled_from([GOOD, FAILED, SILENT, EMPTY]), min_size=1, max_size=30)
answers = st.sampled_from([RIGHT, WRONG, NONE])
rules = st.builds(StepRule, execution=st.sampled_from(["ran", "released"]), gamma=st.floats(0.0, 1.0))


def test_one_perfect_step_has_a_reward_and_a_return_of_one() -> None:
    assert step_rewards([GOOD], RIGHT, RULE) == pytest.approx([1.0])  # 0.1 + 0.1 + 0.8 * (0.9 + 0.1)
    assert step_returns([GOOD], RIGHT, RULE) == pytest.approx([1.0])


def test_a_wrong_answer_has_the_reward_of_having_answered() -> None:
    assert step_rewards([GOOD], WRONG, RULE) == pytest.approx([0.28])  # 0.1 + 0.1 + 0.8 * 0.1


def test_without_an_answer_only_format_and_execution_are_rewarded() -> None:
    assert step_rewards([GOOD, GOOD], NONE, RULE) == pytest.approx([0.1, 0.1])
    assert step_returns([GOOD, GOOD], NONE, RULE) == pytest.approx([0.195, 0.1])


def test_an_error_in_the_middle_costs_its_step_the_reward_for_execution() -> None:
    rewards = step_rewards([GOOD, FAILED, GOOD], RIGHT, RULE)

    assert rewards == pytest.approx([0.2 / 3, 0.1 / 3, 0.2 / 3 + 0.8])
    assert step_returns([GOOD, FAILED, GOOD], RIGHT, RULE) == pytest.approx(
        [0.2 / 3 + 0.95 * 0.1 / 3 + 0.9025 * (0.2 / 3 + 0.8), 0.1 / 3 + 0.95 * (0.2 / 3 + 0.8), 0.2 / 3 + 0.8]
    )


def test_the_released_code_rewards_the_share_of_outputs_that_are_no_errors() -> None:
    rewards = step_rewards([FAILED, SILENT, GOOD], NONE, RELEASED)

    assert rewards == pytest.approx([(0.1 + 0.05) / 3, 0.1 / 3, 0.2 / 3])


def test_an_empty_turn_has_no_reward_for_format_or_execution() -> None:
    assert step_rewards([EMPTY, EMPTY], NONE, RULE) == [0.0, 0.0]
    assert step_rewards([EMPTY, EMPTY], NONE, RELEASED) == [0.0, 0.0]


def test_weights_are_those_of_the_rule() -> None:
    rule = StepRule(
        weights=StepWeights(answer=2.0, format=0.0, execution=0.5),
        answer_weights=AnswerWeights(em=0.0, has_answer=0.5, f1=1.0),
        gamma=0.5,
    )

    assert step_rewards([GOOD, GOOD], WRONG, rule) == pytest.approx([0.25, 2.25])  # 0.25 + 2 * (0.5 + 0.5)
    assert step_returns([GOOD, GOOD], WRONG, rule) == pytest.approx([1.375, 2.25])


def test_a_trajectory_without_steps_has_no_rewards() -> None:
    assert step_rewards([], RIGHT, RULE) == []
    assert step_returns([], RIGHT, RULE) == []


def test_scores_of_a_trajectory_are_shares_of_its_steps() -> None:
    assert trajectory_scores([GOOD, FAILED, SILENT, EMPTY], WRONG, RULE, 2) == {
        "em": 0.0, "f1": 0.5, "has_answer": 1.0, "format": 0.75, "execution": 0.5, "steps": 4.0, "failed_steps": 2.0,
        "trims": 2.0,
    }  # fmt: skip
    assert trajectory_scores([FAILED, SILENT], RIGHT, RELEASED, 0)["execution"] == 0.25


def test_a_cell_with_more_errors_than_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match="got 2 errors in 1"):
        StepFacts(has_form=True, ran=False, num_outputs=1, num_errors=2)


@pytest.mark.parametrize("values", [{"gamma": 1.1}, {"execution": "run"}, {"weights": {"answer": -1.0}}, {"gama": 1}])
def test_rules_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StepRule.model_validate(values)


@given(steps, answers, rules)
def test_a_step_s_return_is_its_reward_and_the_discounted_return_of_the_next(
    facts: list[StepFacts], answer: AnswerScores, rule: StepRule
) -> None:
    rewards, returns = step_rewards(facts, answer, rule), step_returns(facts, answer, rule)

    assert returns[-1] == rewards[-1]
    assert returns[:-1] == pytest.approx(
        [reward + rule.gamma * later for reward, later in zip(rewards[:-1], returns[1:], strict=True)]
    )


@given(steps, answers)
def test_rewards_of_a_trajectory_lie_in_0_to_1_however_many_steps_it_has(
    facts: list[StepFacts], answer: AnswerScores
) -> None:
    assert 0.0 <= sum(step_rewards(facts, answer, RULE)) <= 1.0 + 1e-9


@given(steps, answers, rules, st.data())
def test_returns_are_the_same_however_steps_are_split_into_rows(
    facts: list[StepFacts], answer: AnswerScores, rule: StepRule, data: st.DataObject
) -> None:
    """Returns are made of the whole trajectory, so that a trim between two steps changes none."""
    cut = data.draw(st.integers(0, len(facts)))
    returns = step_returns(facts, answer, rule)

    assert returns[:cut] + returns[cut:] == step_returns(facts, answer, rule)
