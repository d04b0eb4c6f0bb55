"""data.curriculum: which pivot is drawn next, given the rewards of past groups."""

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.data.curriculum import Curriculum, CurriculumOptions, PivotRecord, mean_and_variance, parse_options
from verl_pivot.errors import ConfigError, DataError

FLAT, MIXED = (1.0, 1.0), (0.0, 1.0)
NO_REPROFILING = CurriculumOptions(reprofile_every=0)


def make_curriculum(
    num_pivots: int = 6,
    *,
    options: CurriculumOptions = NO_REPROFILING,
    variances: Sequence[float | None] | None = None,
    identity: str = "a",
    seed: int = 0,
    shuffle: bool = True,
    batch_size: int = 2,
) -> Curriculum:
    return Curriculum(
        [PivotRecord(variance=variance) for variance in variances or [None] * num_pivots],
        options,
        identity=identity,
        seed=seed,
        shuffle=shuffle,
        batch_size=batch_size,
    )


def draw(curriculum: Curriculum, num_draws: int) -> list[int]:
    return [curriculum.draw() for _ in range(num_draws)]


def test_the_variance_of_a_group_is_the_population_variance() -> None:
    assert mean_and_variance([0.0, 0.0, 0.0, 1.0]) == (0.25, 0.1875)
    assert mean_and_variance([0.1] * 3)[1] == 0.0


def test_a_visit_moves_the_running_mean_and_variance_by_one_minus_decay() -> None:
    record = PivotRecord(mean=0.5, variance=0.25)
    options = CurriculumOptions(decay=0.25, retire_variance=0.0625)

    record.update([1.0, 1.0], 3, options)
    assert record == PivotRecord(mean=0.875, variance=0.0625, num_visits=1, num_flat_visits=1, last_step=3)
    record.update([0.0, 1.0], 7, options)
    assert record == PivotRecord(mean=0.59375, variance=0.203125, num_visits=2, num_flat_visits=0, last_step=7)


def test_without_a_profile_the_first_visit_sets_the_running_mean_and_variance() -> None:
    record = PivotRecord()

    record.update([0.0, 1.0], 1, CurriculumOptions(decay=0.9))

    assert (record.mean, record.variance) == (0.5, 0.25)


def test_flat_visits_in_a_row_retire_a_pivot_and_a_mixed_visit_makes_it_active() -> None:
    curriculum = make_curriculum()
    retired = []

    for step, rewards in enumerate([FLAT, MIXED, FLAT, FLAT, FLAT, MIXED], start=1):
        curriculum.observe(step, [(4, rewards)])
        retired.append(curriculum.is_retired(4))

    assert retired == [False, False, False, True, True, False]


def test_groups_with_fewer_than_two_rewards_are_left_out() -> None:
    curriculum = make_curriculum(options=CurriculumOptions(retire_visits=1))

    curriculum.observe(1, [(0, [1.0]), (1, [])])

    assert curriculum.records[:2] == [PivotRecord(), PivotRecord()]


def test_without_shuffle_an_epoch_is_in_the_order_of_the_file() -> None:
    curriculum = make_curriculum(4, shuffle=False)

    assert draw(curriculum, 3) == [0, 1, 2]
    for step in (1, 2):
        curriculum.observe(step, [(1, FLAT)])
    assert draw(curriculum, 7) == [3, 0, 2, 3, 0, 2, 0]


def test_a_pivot_that_retires_is_removed_from_the_current_epoch() -> None:
    curriculum = make_curriculum(6, options=CurriculumOptions(retire_visits=1), shuffle=False)
    assert draw(curriculum, 2) == [0, 1]

    curriculum.observe(1, [(4, FLAT), (0, MIXED)])

    assert draw(curriculum, 4) == [2, 3, 5, 0]


def test_pivots_of_larger_weight_tend_to_come_earlier_and_weight_0_comes_last() -> None:
    """With weights 0.5, 0.1 and 0 the pivot of weight 0.5 is drawn first in 5 of 6 epochs."""
    firsts: Counter[int] = Counter()
    for seed in range(600):
        order = draw(make_curriculum(variances=[0.0, 0.01, 0.25], seed=seed), 3)
        firsts[order[0]] += 1
        assert order[2] == 0

    assert abs(firsts[2] / 600 - 5 / 6) < 0.05


def test_with_exponent_0_all_weights_are_equal() -> None:
    curriculum = make_curriculum(variances=[0.0, 0.01, None], options=CurriculumOptions(weight_exponent=0.0))

    assert [curriculum.weight(pivot) for pivot in range(3)] == [1.0, 1.0, 1.0]


def test_the_longest_unvisited_retired_pivots_fill_an_epoch_up_to_a_batch() -> None:
    curriculum = make_curriculum(5, options=CurriculumOptions(retire_visits=1), batch_size=3, shuffle=False)
    for step, pivot in enumerate([3, 0, 4, 2], start=1):
        curriculum.observe(step, [(pivot, FLAT)])

    assert draw(curriculum, 3) == [0, 1, 3]
    curriculum.observe(5, [(3, FLAT), (0, FLAT), (1, FLAT)])

    assert draw(curriculum, 3) == [0, 2, 4]  # all are retired: training goes on with the longest unvisited ones


def test_fewer_pivots_than_a_batch_are_drawn_repeatedly() -> None:
    assert draw(make_curriculum(2, batch_size=5, shuffle=False), 5) == [0, 1, 0, 1, 0]


def test_re_profiling_visits_a_share_of_the_retired_pivots_longest_unvisited_first() -> None:
    options = CurriculumOptions(retire_visits=1, reprofile_every=5, reprofile_share=0.5)
    curriculum = make_curriculum(20, options=options)
    assert sorted(draw(curriculum, 20)) == list(range(20))
    curriculum.observe(1, [(pivot, FLAT) for pivot in (8, 9)])
    curriculum.observe(4, [(pivot, FLAT) for pivot in (5, 6, 7)])
    draw(curriculum, 4)

    curriculum.observe(5, [])
    rest = draw(curriculum, 11 + 3)

    assert sorted(pivot for pivot in rest if pivot in range(5, 10)) == [5, 8, 9]
    assert len(set(rest)) == 14


def test_re_profiled_pivots_are_drawn_within_as_many_draws_as_since_the_last_re_profiling() -> None:
    options = CurriculumOptions(retire_visits=1, reprofile_every=1, reprofile_share=0.5)
    for seed in range(50):
        curriculum = make_curriculum(100, options=options, seed=seed)
        seen = draw(curriculum, 4)
        curriculum.observe(1, [(pivot, FLAT) for pivot in seen])
        assert len(set(draw(curriculum, 6)) & set(seen)) == 2


def test_a_re_profiled_pivot_with_mixed_rewards_is_active_again() -> None:
    options = CurriculumOptions(retire_visits=1, reprofile_every=2, reprofile_share=0.25)
    curriculum = make_curriculum(4, options=options, batch_size=1, shuffle=False)
    draw(curriculum, 4)
    curriculum.observe(1, [(2, FLAT)])
    curriculum.observe(2, [])  # 25 % of one retired pivot is rounded up to 1, which 25 % of four draws allow
    assert draw(curriculum, 1) == [2]

    curriculum.observe(3, [(2, MIXED)])

    assert draw(curriculum, 4) == [0, 1, 2, 3]


def test_a_step_with_several_batches_re_profiles_once() -> None:
    options = CurriculumOptions(retire_visits=1, reprofile_every=3, reprofile_share=0.25)
    curriculum = make_curriculum(8, options=options, batch_size=1)
    draw(curriculum, 8)
    curriculum.observe(2, [(pivot, FLAT) for pivot in range(4)])

    for _ in range(3):
        curriculum.observe(3, [])

    assert curriculum.state_dict()["queue"] == [0]


def test_re_profiling_takes_no_more_than_its_share_of_the_draws() -> None:
    options = CurriculumOptions(retire_visits=1, reprofile_every=1, reprofile_share=0.5)
    curriculum = make_curriculum(40, options=options)
    draw(curriculum, 40)
    curriculum.observe(1, [(pivot, FLAT) for pivot in range(36)])
    assert sorted(curriculum.state_dict()["queue"]) == list(range(18))

    draw(curriculum, 4)
    curriculum.observe(2, [])

    assert len(curriculum.state_dict()["queue"]) == 18 - 4 + 2


def test_the_metrics_count_active_retired_and_solved_pivots() -> None:
    curriculum = make_curriculum(4, variances=[0.25, 0.25, None, None], options=CurriculumOptions(retire_visits=1))
    draw(curriculum, 1)

    curriculum.observe(1, [(0, FLAT), (2, (0.0, 0.0)), (3, MIXED)])

    assert curriculum.metrics() == {
        "curriculum/active": 2.0,
        "curriculum/retired": 2.0,
        "curriculum/retired_solved": 1.0,
        "curriculum/mean_variance": 0.125,
        "curriculum/epoch": 1.0,
    }


def test_the_state_of_a_curriculum_over_other_pivots_is_refused() -> None:
    with pytest.raises(DataError, match=r"was saved for other pivots than those of data\.train_files"):
        make_curriculum(identity="a").load_state_dict(make_curriculum(identity="b").state_dict())


def test_options_are_read_from_the_config() -> None:
    assert parse_options({}) == CurriculumOptions(enabled=False)
    assert parse_options({"enabled": True, "decay": 0, "retire_visits": 3}).retire_visits == 3


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"enabled": True, "retier_visits": 2}, r"pivot\.curriculum\.retier_visits: unknown key; known: decay, "),
        ({"enabled": "yes"}, r"pivot\.curriculum\.enabled: .*, got 'yes'"),
        ({"decay": 1.0}, r"pivot\.curriculum\.decay: .* less than 1, got 1\.0"),
        ({"retire_visits": 0}, r"pivot\.curriculum\.retire_visits: .* greater than or equal to 1, got 0"),
        ({"retire_visits": 1.5}, r"pivot\.curriculum\.retire_visits: .*, got 1\.5"),
        ({"reprofile_share": 0.0}, r"pivot\.curriculum\.reprofile_share: .* greater than 0, got 0\.0"),
        ({"retire_variance": float("nan")}, r"pivot\.curriculum\.retire_variance: .*, got nan"),
    ],
)
def test_unknown_and_impossible_options_are_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(section)


OPTIONS = st.builds(
    CurriculumOptions,
    decay=st.sampled_from([0.0, 0.5]),
    retire_visits=st.integers(1, 3),
    weight_exponent=st.sampled_from([0.0, 1.0]),
    reprofile_every=st.integers(0, 4),
    reprofile_share=st.sampled_from([0.1, 0.5]),
)
CURRICULA = st.builds(
    make_curriculum,
    st.integers(5, 12),
    options=OPTIONS,
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
    batch_size=st.integers(1, 5),
)
NUM_LEVELS = 4


def train(curriculum: Curriculum, num_steps: int, *, first: int = 1) -> list[list[int]]:
    """[num_steps] batches of pivots; a pivot's rewards are mixed if pivot + step is a multiple of NUM_LEVELS."""
    batches = []
    for step in range(first, first + num_steps):
        batches.append(draw(curriculum, curriculum.batch_size))
        curriculum.observe(step, [(pivot, FLAT if (pivot + step) % NUM_LEVELS else MIXED) for pivot in batches[-1]])
    return batches


@given(CURRICULA, st.integers(0, 12))
def test_an_epoch_holds_every_active_pivot_once_and_at_least_a_batch(curriculum: Curriculum, num_steps: int) -> None:
    """The first pivots of an epoch may be left over from the epoch before."""
    train(curriculum, num_steps)
    epoch, left, batch = curriculum.state_dict()["epoch"], [], []
    while curriculum.state_dict()["epoch"] == epoch:
        left = curriculum.state_dict()["queue"]
        batch = draw(curriculum, curriculum.batch_size)
    active = {pivot for pivot in range(len(curriculum.records)) if not curriculum.is_retired(pivot)}

    drawn = [*batch, *curriculum.state_dict()["queue"]]

    assert drawn[: len(left)] == left
    assert active <= set(drawn)
    assert len(set(drawn)) == len(drawn) == max(len(active | set(left)), curriculum.batch_size)


@given(CURRICULA, st.integers(1, 12))
def test_no_batch_holds_a_pivot_twice(curriculum: Curriculum, num_steps: int) -> None:
    assert all(len(set(batch)) == curriculum.batch_size for batch in train(curriculum, num_steps))


@settings(deadline=None)
@given(CURRICULA, st.integers(0, 10), st.integers(1, 10))
def test_a_curriculum_restored_from_json_draws_the_same_pivots(curriculum: Curriculum, before: int, after: int) -> None:
    train(curriculum, before)
    state = json.loads(json.dumps(curriculum.state_dict()))
    other = Curriculum(
        [PivotRecord()] * len(curriculum.records),
        curriculum.options,
        identity="a",
        seed=curriculum.seed,
        shuffle=curriculum.shuffle,
        batch_size=curriculum.batch_size,
    )

    other.load_state_dict(state)

    assert train(other, after, first=before + 1) == train(curriculum, after, first=before + 1)
    assert other.state_dict() == curriculum.state_dict()


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.1, 0.5]))
def test_active_and_retired_pivots_are_both_visited_again_and_again(
    num_flat: int, batch_size: int, every: int, share: float
) -> None:
    """Three pivots stay mixed, the others flat; neither re-profilings nor epochs take all draws."""
    options = CurriculumOptions(retire_visits=1, reprofile_every=every, reprofile_share=share)
    curriculum = make_curriculum(3 + num_flat, options=options, batch_size=batch_size)
    num_steps = 2 * (3 + num_flat) + 20 * num_flat + 10 * every
    visits: Counter[int] = Counter()
    for step in range(1, num_steps):
        batch = draw(curriculum, batch_size)
        visits.update(batch)
        curriculum.observe(step, [(pivot, MIXED if pivot < 3 else FLAT) for pivot in batch])

    assert min(visits[pivot] for pivot in range(3 + num_flat)) >= 2
    assert min(visits[pivot] for pivot in range(3)) >= (num_steps * batch_size) // 10
