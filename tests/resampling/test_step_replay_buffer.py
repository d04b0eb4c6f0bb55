"""StepReplayBuffer on a real TransferQueue: trajectories of several rows stay whole, and each batch is one update."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.support.rollout_queue import (
    PARTITION,
    announce,
    clear,
    rollout_fields,
    rows_left,
    sampler_kwargs,
    trainer_config,
    transfer_queue,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with transfer_queue():
        yield


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    clear()


def make_buffer(refill: Any = None, num_gpus: int = 1, **resampling: object) -> tuple[Any, Any]:
    """A buffer for batches of two groups of two rollouts, and the actor's config, in which it sets the mini-batch."""
    from verl_pivot.resampling.step_replay_buffer import StepReplayBuffer

    values = {"group_size": 2, "min_failures": 1, "min_successes": 1, "seed": 1, "max_gen_batches": 3, **resampling}
    config = trainer_config(train_batch_size=2, mini_batch_size=2, group_size=2, num_gpus=num_gpus)
    buffer = StepReplayBuffer(
        trainer_mode="sync",
        trainer_config=config,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs(**values),
        refill_fn=refill,
    )
    return buffer, config._get_root().actor_rollout_ref.actor


def finish_notebooks(uid: str, rollouts: Sequence[tuple[float | None, int]]) -> None:
    """Write a finished group.

    Args:
        uid: Id of the prompt.
        rollouts: [num_rollouts] (score, None if undecided; number of rows); the last row has the record.
    """
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, fields = [], []
    for session, (score, num_rows) in enumerate(rollouts):
        recorded = rollout_fields(score)
        steps = {"em": score, "f1": score, "has_answer": 1.0, "format": 0.5, "execution": 1.0, "steps": 6.0}
        recorded["reward_extra_info"] |= {**steps, "failed_steps": 1.0, "trims": num_rows - 1.0}
        for part in range(num_rows):
            extra_fields = recorded if part == num_rows - 1 else {}
            keys.append(f"{uid}_{session}_{part}")
            fields.append({"responses": torch.arange(40), "extra_fields": extra_fields})
    tags = [{"status": "success", "seq_len": 60, "response_len": 40, "global_steps": 1} for _ in keys]
    tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=PARTITION)
    tq.kv_put(key=uid, partition_id=PARTITION, tag={"status": "finished"})


def test_all_rows_of_each_trajectory_are_one_update_and_its_metrics_count_trajectories() -> None:
    buffer, actor = make_buffer(equal_rewards="keep")
    announce(["a", "b"])
    finish_notebooks("a", [(1.0, 3), (0.0, 1)])
    finish_notebooks("b", [(0.0, 2), (0.0, 1)])

    batch, metrics = buffer.sample(1, PARTITION, 2)

    assert sorted(batch.keys) == ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "b_0_0", "b_0_1", "b_1_0"]
    assert actor.ppo_mini_batch_size == 4  # in groups of two rows: 8 rows in one update, one of them padding
    assert metrics["l0/rows"] == 7.0
    assert metrics["l0/em"] == 0.25
    assert metrics["l0/trims"] == 0.75
    assert metrics["l0/steps"] == 6.0


def test_the_size_of_the_update_follows_the_rows_of_each_step() -> None:
    buffer, actor = make_buffer(num_gpus=4, equal_rewards="keep")
    sizes = []
    for step, num_rows in enumerate((5, 1, 2), start=1):
        announce([f"a{step}", f"b{step}"], step)
        for uid in ("a", "b"):
            finish_notebooks(f"{uid}{step}", [(1.0, num_rows), (0.0, 1)])
        batch, _ = buffer.sample(step, PARTITION, 2)
        sizes.append((len(batch.keys), actor.ppo_mini_batch_size))

    assert sizes == [(12, 6), (4, 2), (6, 4)]  # rounded up to whole rows for each of four GPUs


def test_a_group_of_equal_answers_or_of_one_decided_trajectory_goes_with_all_its_rows() -> None:
    def refill(num_prompts: int) -> None:
        announce([f"new{number}" for number in range(num_prompts)])
        for number in range(num_prompts):
            finish_notebooks(f"new{number}", [(0.0, 2), (1.0, 2)])

    buffer, _ = make_buffer(refill, equal_rewards="drop")
    announce(["equal", "alone"])
    finish_notebooks("equal", [(1.0, 4), (1.0, 2)])
    finish_notebooks("alone", [(1.0, 4), (None, 2)])

    batch, metrics = buffer.sample(1, PARTITION, 2)

    kept = [f"new{number}_{session}_{part}" for number in (0, 1) for session in (0, 1) for part in (0, 1)]
    assert sorted(batch.keys) == kept
    assert rows_left() == kept
    assert metrics["down_sampling/groups_equal_rewards"] == 1.0
    assert metrics["down_sampling/groups_too_few"] == 1.0
    assert metrics["l0/em"] == 5 / 7  # of seven decided trajectories, three of which no update sees
