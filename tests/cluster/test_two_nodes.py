"""Two nodes of Ray with a worker each: one is lost in mid-step, and a launch goes on from the last checkpoint."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

from tests.cluster.short_launch import SECONDS, short_launch, steps_of
from tests.support.launching import launch
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.trial_report import LOG_NAME

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2000), needs_sandbox]

NUM_STEPS = 6
HEAD = {"num_cpus": 0, "include_dashboard": False}
"""Options of the head node, which only the launch itself joins; trainer and workers run on the other nodes."""
NODE = {"num_cpus": 32, "num_gpus": 1, "object_store_memory": 500 << 20}
NOTICING = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Ray cluster of a head and two nodes on this machine; the nodes' other addresses make a launch join the head."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**HEAD, "_system_config": NOTICING})
    try:
        for number in (2, 3):
            cluster.add_node(**NODE, node_ip_address=f"127.0.0.{number}")
        yield cluster
    finally:
        cluster.shutdown()


def await_step(folder: Path, number: int, running: "Future[CompletedProcess[str]]") -> str:
    """Wait until the log of the launch in a folder has a step of this number; returns the log."""
    while not running.done():
        logs = folder.glob(f"outputs/local/*/{LOG_NAME}")
        for text in (log.read_text(errors="replace") for log in logs):
            if any(step.number == number for step in logged_steps(text)):
                return text
        time.sleep(0.2)
    raise AssertionError(running.result().stdout[-5000:] + running.result().stderr)


def node_without_trainer(cluster: Any, log: str) -> Any:
    """Node with a worker and without the trainer; a launch that loses its trainer would just fail."""
    trainer = re.search(r"TaskRunnerV1 pid=(\d+)", log)
    assert trainer is not None
    of_trainer = psutil.Process(int(trainer[1])).ppid()
    return next(node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid != of_trainer)


LOST = ("of the cluster was lost", "The actor died unexpectedly before finishing this task.")
"""Our message if the trainer was waiting for rollouts, and Ray's own if a worker of the lost node was at work."""


def test_a_launch_on_two_nodes_that_loses_one_goes_on_from_its_last_step_once_there_is_another(tmp_path: Path) -> None:
    with two_nodes() as cluster, ThreadPoolExecutor(1) as pool:
        words = short_launch(
            tmp_path, "grpo_roc", "trainer.nnodes=2", "trainer.n_gpus_per_node=1",
            f"ray_kwargs.ray_init.address='{cluster.address}'", "ray_kwargs.ray_init.num_gpus=null",
            "ray_kwargs.ray_init.num_cpus=null", "actor_rollout_ref.rollout.agent.num_workers=2",
            f"trainer.total_training_steps={NUM_STEPS}", "trainer.save_freq=1", "trainer.resume_mode=auto",
            "+ray_kwargs.ray_init.runtime_env.env_vars.TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT='30'", num_workers=2,
        )  # fmt: skip
        running = pool.submit(launch, tmp_path, *words, timeout_seconds=SECONDS)
        log = await_step(tmp_path, 1, running)
        cluster.remove_node(node_without_trainer(cluster, log), allow_graceful=False)
        failed = running.result()
        saved = int((tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
        cluster.add_node(**NODE, node_ip_address="127.0.0.4")
        resumed = launch(tmp_path, *words, timeout_seconds=SECONDS)

    assert failed.returncode != 0
    said = failed.stderr.splitlines()[-1]
    assert any(lost in said for lost in LOST), failed.stderr
    assert "start the same command again" in said
    assert "continues from its last checkpoint" in said
    steps = steps_of("grpo_roc", resumed)
    assert 1 <= saved < NUM_STEPS
    assert sorted(steps) == list(range(saved + 1, NUM_STEPS + 1))
