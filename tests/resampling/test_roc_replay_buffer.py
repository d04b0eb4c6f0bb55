"""RocReplayBuffer on a real TransferQueue: batches have the exact size, dropped groups are cleared and replaced."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout_queue import (
    announce,
    clear,
    finish,
    rollout_fields,
    rows_left,
    sampler_kwargs,
    trainer_config,
    transfer_queue,
)
from verl_pivot.errors import ConfigError, ResamplingError, VerifierError
from verl_pivot.resampling.roc import pick_as_released

pytestmark = pytest.mark.slow

MIXED = [(1.0, 0), (0.0, 0), (1.0, 2), (0.0, 1)]
SOLVED = [(1.0, 0)] * 4


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with transfer_queue():
        yield


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    clear()


def make_buffer(
    trainer_mode: str = "sync",
    folder: Path | None = None,
    refill: Any = None,
    config: Any = None,
    max_steps: int = 1,
    strategy: str = "drop",
    **resampling: object,
) -> Any:
    from verl_pivot.resampling.roc_replay_buffer import RocReplayBuffer, RocReplayBufferAsync

    values = {"group_size": 2, "min_failures": 1, "min_successes": 1, "seed": 1, "max_gen_batches": 3, **resampling}
    return (RocReplayBuffer if trainer_mode == "sync" else RocReplayBufferAsync)(
        trainer_mode=trainer_mode,
        trainer_config=trainer_config(train_batch_size=2, mini_batch_size=2, group_size=2)
        if config is None
        else config,
        max_off_policy_threshold=None if trainer_mode == "sync" else max_steps,
        max_off_policy_strategy=strategy,
        sampler_kwargs=sampler_kwargs(None if folder is None else str(folder), **values),
        refill_fn=refill,
    )


def finish_with(
    uid: str, rollouts: Sequence[tuple[float | None, int]], step: int = 1, status: str = "finished"
) -> None:
    finish(uid, [rollout_fields(score, errors) for score, errors in rollouts], step, status)


def read_dump(folder: Path, *, step: int = 1, num_lines: int = 1) -> list[dict[str, Any]]:
    """Wait until another thread has written at least `num_lines` lines of a step's dump, and return them."""
    path = folder / "pivot" / f"{step}.jsonl"
    deadline = time.monotonic() + 10
    while not path.exists() or len(lines := path.read_text().splitlines()) < num_lines:
        assert time.monotonic() < deadline, list(folder.rglob("*"))
        time.sleep(0.01)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_the_update_sees_exactly_its_share_and_the_rest_is_cleared_and_counted(mode: str, tmp_path: Path) -> None:
    announce(["a", "b"])
    finish_with("b", MIXED)
    finish_with("a", MIXED)

    batch, metrics = make_buffer(mode, tmp_path, mode="released").sample(1, "train", 2)

    assert batch.keys == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    assert [tag["seq_len"] for tag in batch.tags] == [60] * 4
    assert rows_left() == batch.keys
    assert metrics["down_sampling/before_sampling_trace_num"] == 8
    assert metrics["down_sampling/after_sampling_trace_num"] == 4
    assert metrics["down_sampling/kept_penalty_of_successes_mean"] == 0.0
    assert metrics["down_sampling/dropped_penalty_of_successes_mean"] == 1.0
    assert (
        metrics["rollout/error_rate_of_successes"] == 0.5
    )  # over all generated rollouts, not over those that the update sees
    dumped = read_dump(tmp_path)
    assert {each["uid"] for each in dumped if each["kept"]} == set(batch.keys)
    assert Counter(each.get("left_out") for each in dumped) == {None: 4, "resampled": 4}
    assert {each["step"] for each in dumped} == {1}
    assert dumped[0]["reward_info"] == {"acc": 1.0}
    assert [each["score"] for each in dumped if each["uid"].startswith("a_")] == [1.0, 0.0, 1.0, 0.0]


def test_the_batches_of_one_step_are_dumped_into_one_file(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    for uid in ("a", "b"):
        announce([uid])
        finish_with(uid, MIXED)
        buffer.sample(1, "train", 1)

    assert [each["uid"].split("_")[0] for each in read_dump(tmp_path, num_lines=8)] == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_groups_without_enough_usable_rollouts_or_without_advantage_are_replaced(mode: str, tmp_path: Path) -> None:
    numbers = count()

    def refill(num_prompts: int) -> None:
        for _ in range(num_prompts):
            uid = f"new{next(numbers)}"
            announce([uid])
            finish_with(uid, MIXED)

    announce(["few", "equal", "absent", "failed", "whole"])
    finish_with("few", [(1.0, 0), (None, 0), (None, 0), (None, 0)])
    finish_with("equal", SOLVED)
    finish_with("absent", [])
    finish_with("failed", MIXED[:3], status="failure")  # one rollout raised; the three others are enough
    finish_with("whole", MIXED)

    batch, metrics = make_buffer(mode, tmp_path, refill, equal_rewards="drop").sample(1, "train", 5)

    assert {key.split("_")[0] for key in batch.keys} == {"failed", "whole", "new0", "new1", "new2"}
    assert len(batch.keys) == 10
    assert rows_left() == sorted(batch.keys)
    assert metrics["down_sampling/groups_too_few"] == 2
    assert metrics["down_sampling/groups_equal_rewards"] == metrics["reject_equal_reward/solve_equal_total"] == 1
    assert "training/rollout_failure/evicted_samples" not in metrics
    assert metrics["verifier/outcome/tool_failure"] == 1.0  # of the group that was replaced; others name no reason
    dumped = read_dump(tmp_path)
    assert Counter(each["uid"].split("_")[0] for each in dumped) == {
        "few": 4, "equal": 4, "failed": 3, "whole": 4, "new0": 4, "new1": 4, "new2": 4
    }  # fmt: skip
    assert {each["uid"] for each in dumped if each["kept"]} == set(batch.keys)
    assert {
        group: Counter(each["left_out"] for each in dumped if each["uid"].startswith(group))
        for group in ("few", "equal", "failed", "whole")
    } == {
        "few": {"group_too_few": 1, "masked": 3},
        "equal": {"group_equal_rewards": 4},
        "failed": {None: 2, "resampled": 1},
        "whole": {None: 2, "resampled": 2},
    }


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_the_run_stops_at_the_bound_on_generation_and_names_the_counts(mode: str, tmp_path: Path) -> None:
    numbers = count()

    def refill(num_prompts: int) -> None:
        for _ in range(num_prompts):
            uid = f"new{next(numbers)}"
            announce([uid])
            finish_with(uid, SOLVED)

    announce(["a", "b"])
    finish_with("a", [(None, 0)] * 4)
    finish_with("b", SOLVED)

    message = (
        r"step 7: the budget of 6 prompts \(pivot.resampling.max_gen_batches=3 batches of 2\) did not give a batch to "
        r"learn from: 1 groups had too few usable rollouts \{'tool_failure': 4\}, [45] had equal rewards; .*"
        r"raise pivot.resampling.max_gen_batches"
    )
    with pytest.raises(ResamplingError, match=message):
        make_buffer(mode, tmp_path, refill=refill, equal_rewards="drop").sample(7, "train", 2)
    assert Counter(each["left_out"] for each in read_dump(tmp_path, step=7)).keys() == {"masked", "group_equal_rewards"}


def test_the_draw_depends_on_seed_step_and_order_so_that_a_resumed_run_draws_the_same() -> None:
    def drawn(uids: list[str], step: int, seed: int) -> list[str]:
        announce(uids, step)
        for uid in reversed(uids):
            finish(uid, [rollout_fields(float(index % 2)) for index in range(12)], step)
        batch, _ = make_buffer(group_size=6, seed=seed).sample(step, "train", len(uids))
        return [key.split("_")[1] for key in batch.keys]

    first = drawn(["a", "b"], step=3, seed=1)

    assert drawn(["c", "d"], step=3, seed=1) == first
    assert drawn(["e", "f"], step=4, seed=1) != first
    assert drawn(["g", "h"], step=3, seed=2) != first


# (reward, number of errors) of 8 rollouts in the order in which they were sampled.
EIGHT = [(0.0, 0), (1.0, 1), (0.0, 0), (1.0, 0), (0.0, 0), (0.0, 0), (1.0, 0), (0.0, 0)]


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
@pytest.mark.parametrize("sessions", [(0, 1, 2, 3, 4, 5, 6, 7), (7, 6, 5, 4, 3, 2, 1, 0), (4, 7, 1, 6, 0, 3, 5, 2)])
def test_the_released_rule_keeps_the_failures_sampled_first_not_those_that_ended_first(
    mode: str, sessions: Sequence[int]
) -> None:
    announce(["a"])
    finish("a", [rollout_fields(*EIGHT[session]) for session in sessions], sessions=sessions)

    batch, _ = make_buffer(mode, group_size=4, mode="released", min_failures=2, min_successes=2).sample(1, "train", 1)

    # The first round(5 * 4 / 8) = 2 failures, and of three successes the two without an error.
    assert sorted(batch.keys) == ["a_0_0", "a_2_0", "a_3_0", "a_6_0"]


def test_groups_of_32_that_end_in_any_order_keep_what_the_released_rule_keeps_of_the_order_of_sampling() -> None:
    rng = random.Random(0)
    groups = {f"g{number}": [(float(rng.random() < 0.6), rng.randrange(3)) for _ in range(32)] for number in range(20)}
    announce(list(groups))
    for uid, rollouts in rng.sample(list(groups.items()), len(groups)):
        sessions = rng.sample(range(32), 32)
        finish(uid, [rollout_fields(*rollouts[session]) for session in sessions], sessions=sessions)

    batch, _ = make_buffer(group_size=16, mode="released", min_failures=2, min_successes=2).sample(1, "train", 20)

    kept = {
        uid: pick_as_released([score for score, _ in rollouts], [errors / 2 for _, errors in rollouts], keep=16)
        for uid, rollouts in groups.items()
    }
    assert sorted(batch.keys) == sorted(f"{uid}_{session}_0" for uid, chosen in kept.items() for session in chosen)


def test_the_draw_of_the_paper_does_not_depend_on_which_rollout_ended_first() -> None:
    def drawn(uid: str, sessions: Sequence[int]) -> list[str]:
        announce([uid])
        finish(uid, [rollout_fields(*EIGHT[session]) for session in sessions], sessions=sessions)
        return [key.split("_")[1] for key in make_buffer(group_size=4).sample(1, "train", 1)[0].keys]

    assert drawn("a", range(8)) == drawn("b", range(7, -1, -1)) == drawn("c", (4, 7, 1, 6, 0, 3, 5, 2))


def test_rejected_groups_make_the_update_and_its_mini_batches_smaller_without_a_refill(tmp_path: Path) -> None:
    config = trainer_config(train_batch_size=6, mini_batch_size=3, group_size=2)
    actor = config._get_root().actor_rollout_ref.actor
    buffer = make_buffer(folder=tmp_path, config=config, equal_rewards="reject")

    announce(["a", "b", "c", "d", "e", "f"])
    for uid, rollouts in zip("abcdef", [SOLVED, MIXED, MIXED, SOLVED, MIXED, MIXED], strict=True):
        finish_with(uid, rollouts)
    batch, metrics = buffer.sample(1, "train", 6)

    assert {key.split("_")[0] for key in batch.keys} == {"b", "c", "e", "f"}
    assert rows_left() == sorted(batch.keys)
    assert len(batch.keys) == 8
    assert actor.ppo_mini_batch_size == 2  # two updates of two groups each; a full step has two of three each
    assert metrics["down_sampling/groups_equal_rewards"] == 2
    assert metrics["reject_equal_reward/solve_equal_total_ratio"] == pytest.approx(2 / 6)
    dumped = read_dump(tmp_path)
    assert len(dumped) == 24  # all rollouts that were generated
    assert {"group_equal_rewards"} < {each["left_out"] for each in dumped}

    announce(["g", "h", "i", "j", "k", "l"], step=2)
    for uid in "ghijkl":
        finish_with(uid, MIXED, step=2)
    buffer.sample(2, "train", 6)
    assert actor.ppo_mini_batch_size == 3


def test_a_step_with_no_group_left_samples_again_within_the_budget() -> None:
    asked = []

    def refill(num_prompts: int) -> None:
        asked.append(num_prompts)
        for number in range(num_prompts):
            uid = f"new{len(asked)}{number}"
            announce([uid])
            finish_with(uid, MIXED if len(asked) == 2 and number == 0 else SOLVED)

    announce(["a", "b"])
    finish_with("a", SOLVED)
    finish_with("b", SOLVED)
    batch, metrics = make_buffer(refill=refill, equal_rewards="reject").sample(1, "train", 2)

    assert asked == [2, 2]
    assert {key.split("_")[0] for key in batch.keys} == {"new20"}
    assert metrics["down_sampling/groups_equal_rewards"] == 5

    announce(["c", "d"])
    finish_with("c", SOLVED)
    finish_with("d", SOLVED)
    with pytest.raises(ResamplingError, match="step 2: the budget of 6 prompts"):
        make_buffer(refill=refill, equal_rewards="reject").sample(2, "train", 2)


def test_where_the_last_step_dropped_half_of_its_groups_the_next_begins_with_more_prompts(tmp_path: Path) -> None:
    """A batch of 6 with a usable share of 6 / 12: 12 prompts are needed on average, with a deviation of 3.46."""
    asked: list[int] = []

    def refill(num_prompts: int) -> None:
        asked.append(num_prompts)
        for number in range(num_prompts):
            announce([f"new{number}"], step=2)
            finish_with(f"new{number}", MIXED, step=2)

    config = trainer_config(train_batch_size=6, mini_batch_size=6, group_size=2)
    buffer = make_buffer(folder=tmp_path, config=config, refill=refill, equal_rewards="drop", max_gen_batches=9)
    announce(list("abcdef"))
    for uid in "abcdef":
        finish_with(uid, MIXED)

    first, metrics = buffer.sample(1, "train", 6)
    assert asked == []
    assert (metrics["down_sampling/groups_ahead"], metrics["down_sampling/groups_surplus"]) == (0, 0)

    buffer._prefetch.end(0, 6)  # as if that step had dropped six groups
    announce(list("ghijkl"), step=2)
    for uid, rollouts in zip("ghijkl", [MIXED, MIXED, MIXED, MIXED, MIXED, SOLVED], strict=True):
        finish_with(uid, rollouts, step=2)
    batch, metrics = buffer.sample(2, "train", 6)

    assert asked == [2]  # floor(12 - 3.46) - 6 prompts ahead, of which one replaces the group without an advantage
    assert len({key.split("_")[0] for key in batch.keys}) == 6
    assert (metrics["down_sampling/groups_ahead"], metrics["down_sampling/groups_surplus"]) == (2, 1)
    assert rows_left() == sorted([*first.keys, *batch.keys])
    assert Counter(each["left_out"] for each in read_dump(tmp_path, step=2))["group_surplus"] == 4


def test_no_batch_is_sampled_while_prompts_generated_ahead_run() -> None:
    buffer = make_buffer(
        refill=lambda number: announce([f"ahead{each}" for each in range(number)]), equal_rewards="drop"
    )
    buffer._prefetch.end(6, 18)  # a quarter of the groups was usable: floor(8 - 4.9) - 2 prompts are generated ahead
    announce(["a", "b"])
    finish_with("a", MIXED)
    finish_with("b", MIXED)
    polls = []

    def wait(partition_id: str, last_time: float) -> float:
        polls.append(len(polls))
        if len(polls) == 2:
            finish_with("ahead0", MIXED)
        assert len(polls) < 10
        return last_time

    buffer._wait_for_next_poll = wait
    batch, metrics = buffer.sample(1, "train", 2)

    assert len(polls) == 2
    assert metrics["down_sampling/groups_surplus"] == 1
    assert rows_left() == sorted(batch.keys)


def test_a_buffer_counts_and_evicts_before_its_first_batch_as_hybrid_rollout_asks() -> None:
    announce(["a", "b"])
    finish_with("a", MIXED)
    finish_with("b", [(None, 0)] * 4)
    refilled: list[int] = []

    def refill(num_prompts: int) -> None:
        refilled.append(num_prompts)
        announce(["c"])
        finish_with("c", MIXED)

    buffer = make_buffer("separate_async", refill=refill, equal_rewards="drop")

    assert buffer.get_sampleable_count(1, "train") == 1
    assert buffer.wait_for_sampleable(1, "train", 2)[0] == {"a", "c"}
    assert refilled == [1]


def test_the_hybrid_switch_of_the_separate_trainer_waits_for_groups_before_the_first_batch() -> None:
    """The test calls verl's own hooks of a step in the order in which verl's trainer calls them."""
    from verl.trainer.config import HybridRolloutSwitchConfig
    from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync

    refilled: list[int] = []

    def refill(num_prompts: int) -> None:
        refilled.append(num_prompts)
        announce(["c"])
        finish_with("c", MIXED)

    config = trainer_config(train_batch_size=2, mini_batch_size=1, group_size=2)
    trainer = object.__new__(PPOTrainerSeparateAsync)
    trainer.replay_buffer = make_buffer("separate_async", refill=refill, config=config, equal_rewards="drop")
    trainer.hybrid_rollout_config = HybridRolloutSwitchConfig(enable_switch=True, switch_threshold_ratio=1.0)
    trainer.config, trainer.parameter_sync_step, trainer.global_steps = config._get_root(), 2, 1
    trainer.current_mode, trainer.timing_raw = HybridEngineMode.ROLLOUT, {}
    trainer.config.actor_rollout_ref.rollout.update(nnodes=1, n_gpus_per_node=1)
    trainer._init_hybrid_rollout_state()
    trainer.switch_to_trainer = lambda: setattr(trainer, "current_mode", HybridEngineMode.TRAINER)

    announce(["a", "b"])
    finish_with("a", MIXED)
    finish_with("b", SOLVED)
    trainer.on_step_begin()
    assert trainer.current_mode is HybridEngineMode.ROLLOUT  # one of two groups is usable
    trainer._wait_for_sampleable_and_switch()
    assert (trainer.current_mode, refilled) == (HybridEngineMode.TRAINER, [1])
    trainer.on_sample_begin()
    (first, metrics), (second, later) = (trainer.replay_buffer.sample(1, "train", 1) for _ in range(2))
    batches = [first, second]

    assert [batch.keys[0].split("_")[0] for batch in batches] == ["a", "c"]
    assert [each["down_sampling/groups_equal_rewards"] for each in (metrics, later)] == [1.0, 0.0]
    assert rows_left() == sorted(key for batch in batches for key in batch.keys)


def test_a_step_of_partial_rollouts_takes_the_oldest_groups_and_waits_for_a_prompt_in_its_last_step() -> None:
    buffer = make_buffer("colocate_async", max_steps=2, strategy="wait")
    polls = []

    def wait(partition_id: str, last_time: float) -> float:
        polls.append(len(polls))
        if len(polls) == 3:
            finish_with("slow", MIXED)
        assert len(polls) < 10
        return last_time

    buffer._wait_for_next_poll = wait
    announce(["slow", "a", "b"], step=1)
    finish_with("a", MIXED)
    finish_with("b", MIXED)
    first, _ = buffer.sample(1, "train", 2)
    assert polls == []

    announce(["c", "d"], step=2)
    finish_with("d", MIXED, step=2)
    finish_with("c", MIXED, step=2)
    second, _ = buffer.sample(2, "train", 2)

    assert [sorted({key.split("_")[0] for key in batch.keys}) for batch in (first, second)] == [
        ["a", "b"],
        ["c", "slow"],
    ]
    assert len(polls) == 3
    assert {key.split("_")[0] for key in rows_left()} == {"a", "b", "c", "d", "slow"}


def test_groups_that_stay_over_several_batches_and_steps_keep_numbers_of_their_own() -> None:
    buffer = make_buffer("colocate_async", max_steps=2)
    announce(["a", "b", "c"])
    for uid in "abc":
        finish_with(uid, MIXED)
    buffer.sample(1, "train", 1)
    announce(["d"])
    finish_with("d", MIXED)
    buffer.get_sampleable_count(1, "train")
    assert sorted(buffer._numbers.values()) == [0, 1, 2, 3]

    staying = {uid: buffer._numbers[uid] for uid in buffer._finished}
    announce(["e"], 2)
    finish_with("e", MIXED, 2)
    buffer.get_sampleable_count(2, "train")

    assert buffer._numbers == {**staying, "e": 4}
    assert len(staying) == 3


def test_the_batches_of_a_step_draw_differently() -> None:
    """With trainer.v1.separate_async.parameter_sync_step above 1 a step has several batches."""
    buffer = make_buffer("colocate_async", group_size=6)
    drawn = []
    for uid in "ab":
        announce([uid])
        finish(uid, [rollout_fields(float(index % 2)) for index in range(12)])
        batch, _ = buffer.sample(1, "train", 1)
        drawn.append([key.split("_")[1] for key in batch.keys])

    assert drawn[0] != drawn[1]


def test_the_first_step_with_a_success_says_whether_successes_have_the_format_tag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def sample(buffer: Any, uid: str, successes: Sequence[int], step: int) -> str:
        """Sample a group of successes with these numbers of answers and two failures; returns what is logged."""
        announce([uid], step)
        rollouts = [rollout_fields(1.0, num_answers=answers) for answers in successes]
        finish(uid, [*rollouts, rollout_fields(0.0), rollout_fields(0.0)], step)
        caplog.clear()
        buffer.sample(step, "train", 1)
        return "".join(each.getMessage() for each in caplog.records if each.name.startswith("verl_pivot"))

    buffer = make_buffer(equal_rewards="keep")
    assert sample(buffer, "a", [], step=1) == ""
    said = sample(buffer, "b", [0, 0], step=2)
    assert "step 2: none of 2 successes has a pair of tags <answer>, so that p_format is 1 for each of them" in said
    assert sample(buffer, "c", [0, 0], step=3) == ""
    assert sample(make_buffer(), "d", [0, 1], step=1) == ""
    assert sample(make_buffer(mode="farthest"), "e", [0, 0], step=1) == ""  # mode farthest reads the score alone


def test_rows_without_a_record_of_their_calls_are_refused_with_the_remedy() -> None:
    announce(["a"])
    finish("a", [{"reward_extra_info": {"acc": 1.0}}] * 4)

    with pytest.raises(
        ConfigError, match="needs the record of each rollout's calls, which only this package's agent loops"
    ):
        make_buffer().sample(1, "train", 1)


def make_pivot_buffer(mode: str, folder: Path, refill: Any) -> Any:
    from verl_pivot.resampling.replay_buffer import PivotReplayBuffer, PivotReplayBufferAsync

    return (PivotReplayBuffer if mode == "sync" else PivotReplayBufferAsync)(
        trainer_mode=mode,
        trainer_config={},
        max_off_policy_threshold=None if mode == "sync" else 1,
        max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs(str(folder), group_size=4),
        refill_fn=refill,
    )


def test_groups_that_verl_replaces_are_dumped_with_the_reason(tmp_path: Path) -> None:
    numbers = count()

    def refill(num_prompts: int) -> None:
        for _ in range(num_prompts):
            uid = f"new{next(numbers)}"
            announce([uid], step=3)
            finish_with(uid, [*MIXED[:3], (None, 0)], step=3)

    announce(["old"], step=1)
    finish_with("old", MIXED, step=1)
    announce(["failed"], step=3)
    finish_with("failed", MIXED[:3], step=3, status="failure")

    make_pivot_buffer("colocate_async", tmp_path, refill).sample(3, "train", 2)

    assert Counter((each["uid"].split("_")[0], each["left_out"]) for each in read_dump(tmp_path, step=3)) == {
        ("old", "group_stale"): 4,
        ("failed", "group_failed"): 3,
        ("new0", None): 3,
        ("new0", "masked"): 1,
        ("new1", None): 3,
        ("new1", "masked"): 1,
    }


def test_the_rollouts_that_no_verifier_could_decide_are_dumped_when_they_stop_the_run(tmp_path: Path) -> None:
    numbers = count()

    def refill(num_prompts: int) -> None:
        for _ in range(num_prompts):
            uid = f"new{next(numbers)}"
            announce([uid])
            finish_with(uid, [(None, 0)] * 4)

    refill(2)

    with pytest.raises(VerifierError, match="no reward could be decided in any row of the last 3 batches"):
        make_pivot_buffer("sync", tmp_path, refill).sample(1, "train", 2)

    assert Counter((each["uid"].split("_")[0], each["left_out"]) for each in read_dump(tmp_path)) == {
        (f"new{number}", "masked"): 4 for number in range(6)
    }
