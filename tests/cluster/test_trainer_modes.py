"""verl's asynchronous trainers take two steps of a method, and report how old their training data are."""

from pathlib import Path

import pytest

from tests.cluster.short_launch import run_short_launch
from tests.support.sandbox_machine import needs_sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2000), needs_sandbox]

STALENESS = "training/off_policy/trajectory_staleness_worst/max"
WEIGHTS = "actor_rollout_ref.rollout.checkpoint_engine"
ACTOR = "actor_rollout_ref.actor"
SEPARATE = "trainer.v1.separate_async"


@pytest.mark.parametrize("method", ["grpo_roc", "pivotrl", "l0"])
def test_two_steps_of_colocate_async_with_partial_rollouts(tmp_path: Path, method: str) -> None:
    steps = run_short_launch(tmp_path, method, "+tail=partial", num_workers=1)

    assert sorted(steps) == [1, 2]
    assert 0 <= steps[2][STALENESS] <= 1


@pytest.mark.parametrize(
    ("method", "overrides"),
    [("grpo_roc", ["pivot.resampling.equal_rewards=drop"]), ("pivotrl", [])],
    ids=["grpo_roc", "pivotrl"],
)
def test_two_steps_of_separate_async_with_the_switch_of_hybrid_rollout(
    tmp_path: Path, method: str, overrides: list[str]
) -> None:
    """One engine samples during training; the worker's engine samples too until our buffer has enough for step 1."""
    weights = tmp_path / "weights"
    weights.mkdir()
    steps = run_short_launch(
        tmp_path, method, *overrides, "trainer.v1.trainer_mode=separate_async", f"{SEPARATE}.parameter_sync_step=2",
        f"{ACTOR}.ppo_mini_batch_size=2", f"{SEPARATE}.hybrid_rollout.enable_switch=True",
        "actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=2", f"{WEIGHTS}.backend=shared_file",
        f"{WEIGHTS}.custom_backend_module=shared_file_weights",
        f"+{WEIGHTS}.engine_kwargs.shared_file.folder={weights}",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={Path(__file__).parent}", num_workers=1,
    )  # fmt: skip

    assert sorted(steps) == [1, 2]
    assert sorted(path.name for path in weights.iterdir()) == ["0.pt", "1.pt", "2.pt"]
    assert 0 <= steps[2][STALENESS] <= 2
    assert steps[1]["timing_s/switch_wait"] > 0.0
    assert steps[1]["separate_async/decision/sampleable_count"] > 0
