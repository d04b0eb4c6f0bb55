"""RocReplayBuffer on a real TransferQueue: batches have the exact size, dropped groups are cleared and replaced."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout_queue import announce, finish, rollout_fields, rows_left, sampler_kwargs, transfer_queue
from verl_pivot.errors import ConfigError, ResamplingError

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
    import transfer_queue as tq

    if keys := list((tq.kv_list() or {}).get("train", {})):
        tq.kv_clear(keys=keys, partition_id="train")


def make_buffer(
    trainer_mode: str = "sync", folder: Path | None = None, refill: Any = None, **resampling: object
) -> Any:
    from verl_pivot.resampling.roc_replay_buffer import RocReplayBuffer, RocReplayBufferAsync

    values = {"group_size": 2, "min_failures": 1, "min_successes": 1, "seed": 1, **resampling}
    return (RocReplayBuffer if trainer_mode == "sync" else RocReplayBufferAsync)(
        trainer_mode=trainer_mode,
        trainer_config={},
        max_off_policy_threshold=None if trainer_mode == "sync" else 1,
        max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs(None if folder is None else str(folder), **values),
        refill_fn=refill,
    )


def finish_with(
    uid: str, rollouts: Sequence[tuple[float | None, int]], step: int = 1, status: str = "finished"
) -> None:
    finish(uid, [rollout_fields(score, errors) for score, errors in rollouts], step, status)


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
    dumped = [json.loads(line) for line in (tmp_path / "tools" / "1.jsonl").read_text().splitlines()]
    assert {each["uid"] for each in dumped if each["kept"]} == set(batch.keys)
    assert [each["score"] for each in dumped if each["uid"].startswith("a_")] == [1.0, 0.0, 1.0, 0.0]


def test_the_batches_of_one_step_are_dumped_into_one_file(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    for uid in ("a", "b"):
        announce([uid])
        finish_with(uid, MIXED)
        buffer.sample(1, "train", 1)

    lines = (tmp_path / "tools" / "1.jsonl").read_text().splitlines()

    assert [json.loads(line)["uid"].split("_")[0] for line in lines] == ["a"] * 4 + ["b"] * 4


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
    dumped = [json.loads(line) for line in (tmp_path / "tools" / "1.jsonl").read_text().splitlines()]
    assert Counter(each["uid"].split("_")[0] for each in dumped) == {
        "few": 4, "equal": 4, "failed": 3, "whole": 4, "new0": 4, "new1": 4, "new2": 4
    }  # fmt: skip
    assert {each["uid"] for each in dumped if each["kept"]} == set(batch.keys)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_the_run_stops_at_the_bound_on_generation_and_names_the_counts(mode: str) -> None:
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
        r"step 7: 3 batches of 2 prompts did not give 2 groups to learn from: 1 groups had too few usable rollouts "
        r"\{'tool_failure': 4\}, [45] had equal rewards; .*raise pivot.resampling.max_gen_batches"
    )
    with pytest.raises(ResamplingError, match=message):
        make_buffer(mode, refill=refill, equal_rewards="drop").sample(7, "train", 2)


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


def test_rows_without_a_record_of_their_calls_are_refused_with_the_remedy() -> None:
    announce(["a"])
    finish("a", [{"reward_extra_info": {"acc": 1.0}}] * 4)

    with pytest.raises(ConfigError, match="only the agent loop pivot_tools and the reward manager of"):
        make_buffer().sample(1, "train", 1)
