"""Options of verl's training, combined with a method and two workers."""

from pathlib import Path

import pytest

from tests.cluster.short_launch import run_short_launch
from tests.support.sandbox_machine import needs_sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2000), needs_sandbox]

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"


def test_an_adapter_of_lora_is_trained_in_batches_cut_by_tokens_which_accumulate_gradients(tmp_path: Path) -> None:
    steps = run_short_launch(
        tmp_path, "grpo_roc", f"{MODEL}.lora_rank=4", f"{MODEL}.lora.merge=True", f"{ACTOR}.use_dynamic_bsz=True",
        f"{ACTOR}.ppo_max_token_len_per_gpu=2560", num_workers=2,
    )  # fmt: skip

    assert sorted(steps) == [1, 2]
    assert min(step["actor/grad_norm"] for step in steps.values()) > 0.0


def test_three_epochs_of_one_batch_each_with_a_validation_before_and_after_every_step(tmp_path: Path) -> None:
    steps = run_short_launch(
        tmp_path, "pivotrl", "data.train_max_samples=8", "data.val_max_samples=8", "trainer.total_epochs=3",
        "trainer.total_training_steps=3", "trainer.val_before_train=True", "trainer.test_freq=1", num_workers=2,
    )  # fmt: skip

    assert sorted(steps) == [0, 1, 2, 3]
    assert [steps[number]["training/epoch"] for number in (1, 2, 3)] == [0, 1, 2]
    for number in steps:
        assert any(name.startswith("val-") for name in steps[number]), number
