"""The sandbox on a Ray cluster of three nodes, all on this machine."""

import asyncio
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.sandbox.cluster.test_supervisor import HEALTH, make_place
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.cluster.supervisor import Started
from verl_pivot.sandbox.discovery import Listing
from verl_pivot.sandbox.execution import Program, Result
from verl_pivot.sandbox.nodes import NAME_VARIABLE, TOKEN_VARIABLE, URLS_VARIABLE

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
MARK = f"{random.SystemRandom().uniform(1000, 2000):.6f}"
"""Value of an option of `sandbox serve`, by which this test's services are found among the machine's processes."""


def sandbox_command(command: str, address: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "verl_pivot.cli", "sandbox", command, "--ray", "--address", address, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def our_services() -> dict[str, psutil.Process]:
    """{address: process} of each `verl-pivot sandbox serve` with MARK in its command."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        if MARK in (process.info["cmdline"] or []):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[f"{connection.laddr.ip}:{connection.laddr.port}"] = process
    return found


@contextmanager
def ray_cluster(num_nodes: int = 3) -> Iterator[Any]:
    """Ray cluster of `num_nodes` nodes; this process is connected to its head node."""
    import ray
    from ray.cluster_utils import Cluster

    # A dead node is noticed after seconds, not half a minute.
    noticing = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": noticing}
    )
    try:
        for _ in range(num_nodes - 1):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def squares(count: int, seconds: float) -> list[Program]:
    code = "import time\ntime.sleep({})\nprint({} ** 2)"
    return [Program(code=code.format(seconds, number)) for number in range(count)]


def assert_each_is_right(results: list[Result]) -> None:
    assert [result.stdout for result in results] == [f"{number**2}\n" for number in range(len(results))]


async def spread(sandbox: Sandbox) -> Counter[str]:
    """{node: number of calls that it answered}, of 120 calls."""
    results = await sandbox.run_many(squares(120, 0.05))
    assert_each_is_right(results)
    return Counter(result.node for result in results)


async def spread_over(sandbox: Sandbox, num_nodes: int) -> Counter[str]:
    """Wait until calls go to `num_nodes` nodes, and return `spread`."""
    async with asyncio.timeout(40.0):
        while len(await spread(sandbox)) != num_nodes:  # noqa: ASYNC110  it asks for what has no event
            await asyncio.sleep(1.0)
        return await spread(sandbox)


async def lose_a_node(cluster: Any) -> tuple[Counter[str], Counter[str]]:
    """(`spread` after one of three nodes was killed under load, `spread` after another node joined)."""
    async with Sandbox(rng=random.Random(0)) as sandbox:
        assert len(await spread_over(sandbox, 3)) == 3
        under_way = asyncio.create_task(sandbox.run_many(squares(300, 0.1)))
        await asyncio.sleep(1.0)
        cluster.remove_node(sorted(cluster.worker_nodes, key=id)[0], allow_graceful=False)
        assert_each_is_right(await under_way)
        async with asyncio.timeout(30.0):
            while len(our_services()) != 2:  # noqa: ASYNC110  processes have no event
                await asyncio.sleep(0.2)
        of_two = await spread_over(sandbox, 2)
        cluster.add_node(**NODE)
        return of_two, await spread_over(sandbox, 3)


def answer_from_a_worker() -> str:
    """Output of a program that a Ray task runs with a client of its own, without any setting."""
    import ray

    def task() -> str:
        async def main() -> str:
            async with Sandbox() as sandbox:
                return (await sandbox.run("print(6 * 7)")).stdout

        return asyncio.run(main())

    answer: str = ray.get(ray.remote(task).options(num_cpus=0).remote(), timeout=60)
    return answer


@pytest.mark.slow
@needs_sandbox
def test_calls_outlive_a_node_and_spread_over_the_nodes_that_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URLS_VARIABLE, TOKEN_VARIABLE, NAME_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    options = ("--lanes", "1", "--slots", "4")
    with ray_cluster() as cluster:
        started = sandbox_command("start", cluster.address, *options, "--", "--session-idle-seconds", MARK)
        assert started.returncode == 0, started.stderr
        assert started.stdout.count("http://") == 3
        addresses = our_services().keys()
        assert all(f"http://{address} " in started.stdout for address in addresses)
        try:
            assert answer_from_a_worker() == "42\n"
            of_two, of_three = asyncio.run(lose_a_node(cluster))
            other = sandbox_command("start", cluster.address, "--lanes", "2")
            status = sandbox_command("status", cluster.address)
        finally:
            stopped = sandbox_command("stop", cluster.address)
        gone = sandbox_command("status", cluster.address)

    assert len(of_two) == 2
    assert min(of_two.values()) >= 30  # of 120 calls
    assert len(of_three) == 3
    assert min(of_three.values()) >= 15
    assert (other.returncode, "runs with --lanes 1 --slots 4" in other.stderr) == (1, True)
    assert (status.returncode, status.stdout.count("serving")) == (0, 3)
    assert (stopped.returncode, stopped.stdout) == (0, "sandbox 'default' has ended on 3 nodes\n")
    assert our_services() == {}
    assert (gone.returncode, "start it with `verl-pivot sandbox start --ray --name default`" in gone.stderr) == (
        1,
        True,
    )


@pytest.mark.slow
def test_without_a_cluster_the_command_says_at_once_what_to_do() -> None:
    started = time.monotonic()
    answer = sandbox_command("start", "127.0.0.1:1")

    assert answer.returncode == 1
    assert "no Ray cluster at '127.0.0.1:1'" in answer.stderr
    assert "start one with `ray start --head` or leave out --ray" in answer.stderr
    assert time.monotonic() - started < 30.0


@pytest.mark.slow
def test_values_that_go_to_ray_survive_pickle() -> None:
    from verl_pivot.sandbox.cluster.ray_supervisor import RayNodes
    from verl_pivot.sandbox.ray_discovery import RayDiscovery

    place = make_place()
    place.serves("http://a", HEALTH, 1.0)
    values = (place, Listing(urls=("http://a",), token="t"), Started(problem="none"), RayDiscovery("default"))

    assert tuple(pickle.loads(pickle.dumps(value)) for value in values) == values
    assert isinstance(pickle.loads(pickle.dumps(RayNodes())), RayNodes)
