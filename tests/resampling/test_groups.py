"""Finished groups: when they are dropped, which rollouts stay, penalties, settings and metrics."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.process import needs_critic
from verl_pivot.resampling.dynamic_sampling import DropReason, EqualRewards
from verl_pivot.resampling.groups import DroppedGroups, Group, Rollout, resampling_metrics
from verl_pivot.resampling.penalties import Penalty, penalty_of_record
from verl_pivot.resampling.settings import ResamplingSettings, check_batch, parse_resampling
from verl_pivot.rollout.turn_parsers import num_tag_pairs
from verl_pivot.types import ErrorKind


def penalty(num_calls: int = 2, num_errors: int = 0, num_answers: int | None = 1, num_turns: int = 3) -> Penalty:
    return Penalty(num_calls=num_calls, num_errors=num_errors, num_answers=num_answers, num_turns=num_turns)


def group(scores: list[float], num_errors: list[int] | None = None, *, number: int = 0, uid: str = "a") -> Group:
    errors = num_errors or [0] * len(scores)
    rollouts = tuple(
        Rollout(id=f"{uid}_{index}", score=score, penalty=penalty(num_errors=errors[index]))
        for index, score in enumerate(scores)
    )
    return Group(uid=uid, number=number, rollouts=rollouts)


def call(status: CallStatus, kind: ErrorKind | None = None) -> CallRecord:
    return CallRecord(turn=0, name="jupyter_code", arguments={}, status=status, error_kind=kind)


@pytest.mark.parametrize(
    ("rollout", "error", "format_"),
    [
        (penalty(num_calls=0, num_answers=1), 0.5, 0.0),
        (penalty(num_calls=4, num_errors=1, num_answers=0), 0.25, 1.0),
        (penalty(num_answers=2, num_turns=4), 0.0, 0.25),
        (penalty(num_answers=9, num_turns=2), 0.0, 1.0),
        (penalty(num_errors=2, num_answers=None), 1.0, 0.0),
    ],
)
def test_the_penalties_are_those_of_the_paper(rollout: Penalty, error: float, format_: float) -> None:
    assert (rollout.error, rollout.format, rollout.total) == (error, format_, error + format_)


def test_the_penalty_is_read_from_the_record_and_a_turn_without_action_is_no_call() -> None:
    record = make_record(
        calls=(
            call(CallStatus.OK),
            call(CallStatus.TOOL_ERROR, ErrorKind.EXECUTION_ERROR),
            call(CallStatus.TOOL_ERROR, ErrorKind.NO_ACTION),
        ),
        turn_tokens=(5, 5, 5, 5),
        num_answers=num_tag_pairs("answer", ["so <answer>1</answer>", "or <answer>2</answer>"]),
    )

    assert penalty_of_record(record) == Penalty(num_calls=2, num_errors=1, num_answers=2, num_turns=4)
    assert penalty_of_record(record, "released") == Penalty(num_calls=2, num_errors=1, num_answers=2, num_turns=3)


def test_the_released_code_gives_a_clean_answer_of_one_turn_the_whole_format_penalty() -> None:
    record = make_record(turn_tokens=(5,), num_answers=1)

    assert penalty_of_record(record).format == 0.0
    assert penalty_of_record(record, "released").format == 1.0


@pytest.mark.parametrize("turn", ["<answer>1", "1</answer>", "</answer>1<answer>", "<answer>1</answer></answer>"])
def test_unmatched_tags_are_no_answer(turn: str) -> None:
    assert num_tag_pairs("answer", [turn]) == 0


def test_dynamic_sampling_comes_before_resampling_and_a_kept_group_keeps_both_outcomes() -> None:
    settings = ResamplingSettings(group_size=2, equal_rewards=EqualRewards.DROP)
    lone_failure = group([1.0, 1.0, 1.0, 0.0])

    assert group([1.0] * 4).drop_reason(settings, 1) is DropReason.EQUAL_REWARDS
    assert lone_failure.drop_reason(settings, 1) is None
    assert sorted(rollout.score for rollout in lone_failure.kept(settings, 1)) == [0.0, 1.0]


def test_the_draw_depends_on_seed_step_and_number_alone() -> None:
    mixed = [1.0, 0.0] * 8

    def kept(seed: int, step: int, number: int) -> list[str]:
        settings = ResamplingSettings(group_size=8, seed=seed)
        return [rollout.id for rollout in group(mixed, number=number).kept(settings, step)]

    assert kept(1, 2, 3) == kept(1, 2, 3)
    assert len({tuple(kept(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]}) == 4


def test_without_oversampling_the_whole_group_stays() -> None:
    for mode in ("paper", "released"):
        settings = ResamplingSettings(group_size=4, oversample=1, mode=mode)
        assert len(group([1.0, 0.0, 0.0, 0.0]).kept(settings, 1)) == 4


def test_the_metrics_have_the_names_of_rstar2_agent() -> None:
    settings = ResamplingSettings(group_size=2, mode="released", min_failures=1, min_successes=1)
    mixed = group([1.0, 1.0, 0.0, 0.0], [1, 0, 2, 1])
    dropped = DroppedGroups()
    dropped.add(group([0.0] * 4), DropReason.EQUAL_REWARDS)
    dropped.add(Group(uid="c", number=2, rollouts=(), undecided=("tool_failure",) * 4), DropReason.TOO_FEW)

    metrics = resampling_metrics([mixed], {"a": mixed.kept(settings, 1)}, dropped)

    assert metrics == {
        "reject_equal_reward/solve_equal_total": 1.0,
        "reject_equal_reward/solve_non_equal_total": 1.0,
        "reject_equal_reward/solve_equal_total_ratio": 0.5,
        "reject_equal_reward/solve_equal_zeros": 1.0,
        "reject_equal_reward/solve_equal_non_all_zeros": 0.0,
        "roc_error_ratio/global_err_ratio": 0.5,
        "roc_error_ratio/penalty_weight": 0.5,
        "roc_answer_format/answer_per_rollout_mean": 1.0,
        "roc_answer_format/zero_answer_count": 0.0,
        "roc_answer_format/one_answer_count": 4.0,
        "roc_answer_format/gt_one_answer_count": 0.0,
        "roc_answer_format/penalty_weight": 0.0,
        "down_sampling/before_sampling_trace_num": 4.0,
        "down_sampling/after_sampling_trace_num": 2.0,
        "down_sampling/unusable_rollouts": 0.0,
        "down_sampling/groups_too_few": 1.0,
        "down_sampling/groups_equal_rewards": 1.0,
        "down_sampling/kept_reward_mean": 0.5,
        "down_sampling/kept_penalty_mean": 0.5,
        "down_sampling/kept_penalty_of_successes_mean": 0.0,
        "down_sampling/dropped_reward_mean": 0.5,
        "down_sampling/dropped_penalty_mean": 0.5,
        "down_sampling/dropped_penalty_of_successes_mean": 0.5,
    }
    assert str(dropped) == "1 groups had too few usable rollouts {'tool_failure': 4}, 1 had equal rewards"


def config(**changes: object) -> DictConfig:
    values = {
        "pivot": {"resampling": {"group_size": 8, "oversample": 2}},
        "data": {"gen_batch_size": 1, "train_batch_size": 16},
        "trainer": {"v1": {"trainer_mode": "sync"}},
        "actor_rollout_ref": {"rollout": {"n": 8}, "actor": {"ppo_mini_batch_size": 16}},
        "algorithm": {"adv_estimator": "grpo"},
        "critic": {"enable": None},
    }
    made = OmegaConf.create(values)
    for path, value in changes.items():
        OmegaConf.update(made, path.replace("__", "."), value)
    return made


def test_an_oversample_of_one_and_a_half_generates_twelve_rollouts_for_a_group_of_eight() -> None:
    assert parse_resampling(config(pivot__resampling__oversample=1.5)).num_generated == 12


@pytest.mark.parametrize(
    ("mode", "oversample", "goes_by_penalty"),
    [("paper", 2, True), ("released", 1.5, True), ("paper", 1, False), ("released", 1, False), ("farthest", 2, False)],
)
def test_penalties_of_successes_matter_where_some_of_them_are_drawn(
    mode: str, oversample: float, goes_by_penalty: bool
) -> None:
    made = config(pivot__resampling__mode=mode, pivot__resampling__oversample=oversample)

    assert parse_resampling(made).goes_by_penalty is goes_by_penalty


@given(st.integers(2, 512), st.data())
def test_every_decimal_that_gives_a_whole_number_is_an_oversample(group_size: int, data: st.DataObject) -> None:
    hundredths = data.draw(st.integers(100, 1000))
    whole = hundredths * group_size % 100 == 0
    with nullcontext() if whole else pytest.raises(ValidationError, match="must be a whole number"):
        settings = ResamplingSettings(group_size=group_size, oversample=hundredths / 100)
        assert settings.num_generated == hundredths * group_size // 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pivot__resampling__oversample": 1.3}, r"must be a whole number, got 1.3 \* 8"),
        ({"pivot__resampling__oversample": float("inf")}, "pivot.resampling.oversample: Input should be a finite"),
        ({"pivot__resampling__oversample": 0.5}, "pivot.resampling.oversample: Input should be greater than or equal"),
        (
            {"pivot__resampling__mode": "best"},
            "pivot.resampling.mode: Input should be 'paper', 'released', 'best_of_n' or",
        ),
        ({"pivot__resampling__max_gen_batches": 1}, "pivot.resampling.max_gen_batches"),
        ({"pivot__resampling": {"group_size": 3, "oversample": 2, "mode": "released"}}, "= 4 exceeds rollout.n = 3"),
        ({"pivot__resampling__overslept": 2}, "overslept.*known: .*oversample"),
        ({"data__gen_batch_size": 16}, "data.gen_batch_size must be 1, got 16"),
        ({"trainer__v1__trainer_mode": "separate_async"}, "set pivot.resampling.equal_rewards=drop"),
        ({"actor_rollout_ref__rollout__n": 4}, "group_size=8 must equal actor_rollout_ref.rollout.n=4: set rollout.n"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_launch(changes: dict[str, object], message: str) -> None:
    made = config(**changes)

    with pytest.raises(ConfigError, match=message):
        check_batch(made, parse_resampling(made), trains_critic=needs_critic(made))


@pytest.mark.parametrize("critic", [{"algorithm__adv_estimator": "gae"}, {"critic__enable": True}])
def test_beside_a_critic_a_batch_must_keep_its_size(critic: dict[str, object]) -> None:
    made = config(**critic)

    with pytest.raises(ConfigError, match=r"many times the batch: set pivot\.resampling\.equal_rewards=keep beside a"):
        check_batch(made, parse_resampling(made), trains_critic=needs_critic(made))

    for equal_rewards in ("keep", "drop", "keep_half"):
        made = config(**critic, pivot__resampling__equal_rewards=equal_rewards)
        check_batch(made, parse_resampling(made), trains_critic=needs_critic(made))
