"""Two nodes of Ray with a worker each, of which one is lost in mid-step, and a launch from the last checkpoint."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cluster.short_launch import SECONDS, short_launch, steps_of
from tests.support.launching import launch
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.trial_report import LOG_NAME

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2000), needs_sandbox]

NUM_STEPS = 6
NODE = {"num_cpus": 32, "num_gpus": 1, "object_store_memory": 500 << 20}
OTHER_ADDRESS = {"node_ip_address": "127.0.0.2"}
"""So that the launch joins the node that stays: of several at one address Ray joins any."""
NOTICING = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Ray cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": NOTICING}
    )
    try:
        cluster.add_node(**NODE, **OTHER_ADDRESS)
        yield cluster
    finally:
        cluster.shutdown()


def await_step(folder: Path, number: int, running: "Future[CompletedProcess[str]]") -> None:
    """Wait until the launch in a folder has logged a step."""
    while not running.done():
        logs = folder.glob(f"outputs/local/*/{LOG_NAME}")
        if any(step.number == number for log in logs for step in logged_steps(log.read_text(errors="replace"))):
            return
        time.sleep(0.2)
    raise AssertionError(running.result().stdout[-5000:] + running.result().stderr)


def test_a_launch_on_two_nodes_that_loses_one_goes_on_from_its_last_step_once_there_is_another(tmp_path: Path) -> None:
    with two_nodes() as cluster, ThreadPoolExecutor(1) as pool:
        words = short_launch(
            tmp_path, "grpo_roc", "trainer.nnodes=2", "trainer.n_gpus_per_node=1",
            f"ray_kwargs.ray_init.address='{cluster.address}'", "ray_kwargs.ray_init.num_gpus=null",
            "ray_kwargs.ray_init.num_cpus=null", "actor_rollout_ref.rollout.agent.num_workers=2",
            f"trainer.total_training_steps={NUM_STEPS}", "trainer.save_freq=1", "trainer.resume_mode=auto",
            num_workers=2,
        )  # fmt: skip
        running = pool.submit(launch, tmp_path, *words, timeout_seconds=SECONDS)
        await_step(tmp_path, 1, running)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        failed = running.result()
        saved = int((tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
        cluster.add_node(**NODE, **OTHER_ADDRESS)
        resumed = launch(tmp_path, *words, timeout_seconds=SECONDS)

    assert failed.returncode != 0
    assert "of the cluster was lost" in failed.stderr.splitlines()[-1], failed.stderr
    steps = steps_of("grpo_roc", resumed)
    assert 1 <= saved < NUM_STEPS
    assert sorted(steps) == list(range(saved + 1, NUM_STEPS + 1))
