"""Rewards of turns: the five modes by hand, and their laws for any judge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.rewards.process import Mode, ProcessRule, turn_rewards

scores = st.floats(0.0, 1.0)
judged = st.lists(st.one_of(st.none(), scores), max_size=8)
valid = st.lists(scores, max_size=8)
rules = st.builds(
    ProcessRule,
    mode=st.sampled_from(["renorm", "sum", "scaled", "process", "outcome"]),
    mu=scores,
    alpha=st.floats(0.01, 4.0),
    per_turn=st.sampled_from(["sum", "mean"]),
    invalid=st.sampled_from(["mean", "zero"]),
)
MODES_WITH_OUTCOME: list[Mode] = ["renorm", "sum", "scaled", "outcome"]


@pytest.mark.parametrize(
    ("mode", "right", "wrong"),
    [
        ("renorm", [0.75, 0.5, 1.0], [-0.25, -0.5, 0.0]),
        ("sum", [0.75, 0.5, 1.0], [0.75, 0.5, 0.0]),
        ("scaled", [0.375, 0.25, 1.0], [0.375, 0.25, 0.0]),
        ("process", [0.75, 0.5, 0.0], [0.75, 0.5, 0.0]),
        ("outcome", [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]),
    ],
)
def test_the_five_modes_by_hand(mode: Mode, right: list[float], wrong: list[float]) -> None:
    rule = ProcessRule(mode=mode)

    assert turn_rewards([0.75, 0.5], 1.0, rule) == right
    assert turn_rewards([0.75, 0.5], 0.0, rule) == wrong


@pytest.mark.parametrize(
    ("rule", "rewards"),
    [
        (ProcessRule(mu=0.5), [0.25, 0.0, 0.0]),
        (ProcessRule(mu=0.0), [0.75, 0.5, 0.0]),
        (ProcessRule(mode="scaled", alpha=2.0), [1.5, 1.0, 0.0]),
        (ProcessRule(per_turn="mean"), [-0.125, -0.25, 0.0]),
        (ProcessRule(mode="sum", per_turn="mean"), [0.375, 0.25, 0.0]),
    ],
)
def test_a_wrong_trajectory_of_three_turns_by_hand(rule: ProcessRule, rewards: list[float]) -> None:
    assert turn_rewards([0.75, 0.5], 0.0, rule) == rewards


@pytest.mark.parametrize(
    ("invalid", "scores", "right", "wrong"),
    [
        ("mean", [0.5, None, 1.0], [0.5, 0.75, 1.0, 1.0], [-0.5, -0.25, 0.0, 0.0]),
        ("zero", [0.5, None, 1.0], [0.5, 0.0, 1.0, 1.0], [-0.5, -1.0, 0.0, 0.0]),
        ("mean", [None, None], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]),
        ("zero", [None, None], [0.0, 0.0, 1.0], [-1.0, -1.0, 0.0]),
    ],
)
def test_a_turn_without_a_valid_answer_by_hand(
    invalid: str, scores: list[float | None], right: list[float], wrong: list[float]
) -> None:
    rule = ProcessRule.model_validate({"invalid": invalid})

    assert turn_rewards(scores, 1.0, rule) == right
    assert turn_rewards(scores, 0.0, rule) == wrong


@given(judged, scores, rules)
def test_there_is_one_reward_for_each_turn(scores: list[float | None], outcome: float, rule: ProcessRule) -> None:
    assert len(turn_rewards(scores, outcome, rule)) == len(scores) + 1


@given(judged, st.sampled_from(["sum", "mean"]), st.sampled_from(["mean", "zero"]))
def test_with_mu_1_a_turn_of_a_wrong_trajectory_is_never_paid_and_one_of_a_right_never_fined(
    scores: list[float | None], per_turn: str, invalid: str
) -> None:
    rule = ProcessRule.model_validate({"per_turn": per_turn, "invalid": invalid})

    assert all(0.0 <= reward <= 1.0 for reward in turn_rewards(scores, 1.0, rule))
    assert all(-1.0 <= reward <= 0.0 for reward in turn_rewards(scores, 0.0, rule))


@given(judged, st.integers(0, 7), scores, scores, rules)
def test_a_better_score_of_a_turn_lowers_no_reward(
    scores: list[float | None], turn: int, better: float, outcome: float, rule: ProcessRule
) -> None:
    """Other turns may lack a valid answer; if this turn lacks one, its score stays None."""
    improved = [
        max(score, better) if number == turn and score is not None else score for number, score in enumerate(scores)
    ]

    pairs = zip(turn_rewards(scores, outcome, rule), turn_rewards(improved, outcome, rule), strict=True)

    assert all(before <= after for before, after in pairs)


@given(judged, scores, scores, rules)
def test_a_better_outcome_lowers_no_reward(
    scores: list[float | None], one: float, other: float, rule: ProcessRule
) -> None:
    worse, better = sorted((one, other))

    pairs = zip(turn_rewards(scores, worse, rule), turn_rewards(scores, better, rule), strict=True)

    assert all(before <= after for before, after in pairs)


@given(scores, rules)
def test_without_a_judged_turn_the_outcome_alone_is_paid(outcome: float, rule: ProcessRule) -> None:
    assert turn_rewards([], outcome, rule) == [0.0 if rule.mode == "process" else outcome]


@given(st.lists(st.none(), max_size=6), scores, st.sampled_from(MODES_WITH_OUTCOME))
def test_without_a_valid_answer_the_outcome_alone_is_paid(scores: list[None], outcome: float, mode: Mode) -> None:
    assert turn_rewards(scores, outcome, ProcessRule(mode=mode)) == [0.0] * len(scores) + [outcome]


@given(st.lists(st.none(), min_size=1, max_size=6), st.lists(scores, min_size=1, max_size=6))
def test_a_turn_without_a_valid_answer_gets_no_more_than_the_best_of_the_others(
    invalid: list[None], scores: list[float]
) -> None:
    *rewards, _ = turn_rewards([*invalid, *scores], 0.0, ProcessRule())

    assert max(rewards[: len(invalid)]) <= max(rewards[len(invalid) :])


@given(valid, scores)
def test_each_further_turn_of_a_right_trajectory_adds_its_score_and_with_mean_the_sum_never_exceeds_the_mean(
    scores: list[float], added: float
) -> None:
    before, after = (turn_rewards(each, 1.0, ProcessRule()) for each in (scores, [*scores, added]))
    mean = ProcessRule(per_turn="mean")

    assert sum(after) == pytest.approx(sum(before) + added)
    assert sum(turn_rewards(scores, 1.0, mean)) <= 2.0 + 1e-9


def test_an_outcome_outside_of_0_and_1_is_refused_with_renorm_and_taken_by_the_others() -> None:
    with pytest.raises(ValueError, match=r"with mode renorm the outcome must lie in \[0, 1\], got -1\.0"):
        turn_rewards([0.5], -1.0, ProcessRule())
    with pytest.raises(ValueError, match="got nan"):
        turn_rewards([0.5], float("nan"), ProcessRule())
    assert turn_rewards([0.5], -1.0, ProcessRule(mode="sum")) == [0.5, -1.0]


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_outside_of_0_and_1_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match=r"scores of turns must lie in \[0, 1\]"):
        turn_rewards([score], 1.0, ProcessRule(mode="sum"))


@pytest.mark.parametrize("values", [{"mu": 1.5}, {"mu": float("nan")}, {"alpha": 0.0}, {"mode": "shift"}, {"beta": 1}])
def test_a_rule_with_a_wrong_number_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ProcessRule.model_validate(values)
