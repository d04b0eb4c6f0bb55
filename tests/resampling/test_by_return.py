"""resampling.by_return: the two filters of TSR's released code, with results worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rollout_records import make_record
from verl_pivot.resampling.by_return import keep_best, keep_farthest
from verl_pivot.resampling.groups import Group, Rollout
from verl_pivot.resampling.penalties import penalty_of_record
from verl_pivot.resampling.settings import ResamplingMode, ResamplingSettings

SCORES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=32)


def test_best_of_n_keeps_the_greatest_returns() -> None:
    assert keep_best([-3.0, 7.0, 0.5, 7.0, -87.0, 2.0], keep=3) == [1, 3, 5]


def test_of_equal_returns_those_that_were_sampled_first_stay() -> None:
    assert keep_best([1.0, 0.0, 1.0, 1.0], keep=2) == [0, 2]
    assert keep_farthest([1.0, 0.0, 1.0, 0.0], keep=2) == [0, 1]


def test_the_farthest_returns_are_counted_from_the_mean_of_the_whole_group() -> None:
    # The mean is 4: distances 4, 3, 1, 0, 8.
    assert keep_farthest([0.0, 1.0, 3.0, 4.0, 12.0], keep=3) == [0, 1, 4]


def test_of_one_success_among_eight_the_success_is_farthest() -> None:
    assert keep_farthest([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], keep=4) == [0, 1, 2, 3]


@given(SCORES, st.data())
def test_no_return_that_goes_is_above_one_that_stays(scores: list[float], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(scores)))
    best, farthest = keep_best(scores, keep=keep), keep_farthest(scores, keep=keep)
    mean = sum(scores) / len(scores)

    for kept, values in ((best, scores), (farthest, [abs(score - mean) for score in scores])):
        assert len(set(kept)) == keep
        assert kept == sorted(kept)
        gone = [value for index, value in enumerate(values) if index not in kept]
        assert min(values[index] for index in kept) >= max(gone, default=-float("inf")) - 1e-9


@pytest.mark.parametrize("keep", [0, 3])
def test_more_than_there_are_cannot_stay(keep: int) -> None:
    with pytest.raises(ValueError, match=r"keep must be in \[1, 2\]"):
        keep_best([0.0, 1.0], keep=keep)


@pytest.mark.parametrize(("mode", "kept"), [("best_of_n", ["a_1", "a_3"]), ("farthest", ["a_0", "a_1"])])
def test_the_mode_of_the_settings_chooses_the_filter(mode: ResamplingMode, kept: list[str]) -> None:
    penalty = penalty_of_record(make_record())
    rollouts = [Rollout(id=f"a_{index}", score=score, penalty=penalty) for index, score in enumerate([-9, 9, 0, 1])]
    group = Group(uid="a", number=0, rollouts=tuple(rollouts))

    assert [each.id for each in group.kept(ResamplingSettings(group_size=2, mode=mode), step=1)] == kept
