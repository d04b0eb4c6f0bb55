"""Rows of a trajectory with steps: where verl finds the returns, also after it wrote a score into the output."""

import pytest

from verl_pivot.rewards.step_returns import StepReturnOutput


def output(mask: list[int], ends: list[int], returns: list[float], score: float | None = None) -> StepReturnOutput:
    return StepReturnOutput(
        prompt_ids=[5], response_ids=[7] * len(mask), response_mask=mask, turn_ends=ends, step_returns=returns,
        reward_score=score, num_turns=2, metrics={}, extra_fields={"reward_extra_info": {"score": score}},
    )  # fmt: skip


def test_each_step_has_its_return_on_its_last_token() -> None:
    row = output([1, 1, 0, 0, 1], [2, 5], [0.75, 0.5]).as_dict()

    assert row["rm_scores"].tolist() == [0.0, 0.75, 0.0, 0.0, 0.5]
    assert row["extra_fields"]["turn_ends"] == [2, 5]
    assert "step_returns" not in row


def test_the_score_that_verl_copies_from_the_last_row_does_not_stand_beside_the_returns() -> None:
    """verl writes the score of the last output into all others before it calls as_dict."""
    first, last = output([1, 0, 1], [1, 3], [0.5, 0.25]), output([1], [1], [1.0])
    first.reward_score = last.reward_score = 1.0

    assert first.as_dict()["rm_scores"].tolist() == [0.5, 0.0, 0.25]
    assert last.as_dict()["rm_scores"].tolist() == [1.0]


def test_without_returns_the_score_stands_on_the_last_sampled_token() -> None:
    assert output([1, 0, 1, 0], [1, 3], [], score=1.0).as_dict()["rm_scores"].tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("ends", "returns"), [([2], [0.5]), ([2, 4], [0.5, 0.5]), ([2, 5], [0.5]), ([2, 5], [0.5] * 3)]
)
def test_steps_that_are_not_the_runs_of_sampled_tokens_are_refused(ends: list[int], returns: list[float]) -> None:
    with pytest.raises(ValueError, match="one return for each run of sampled tokens"):
        output([1, 1, 0, 0, 1], ends, returns).as_dict()
