"""`verl-pivot synthesize --ray` on a cluster of two nodes, both on this machine."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from tests.sandbox.cluster.test_ray_supervisor import ray_cluster
from tests.support.fake_engine import Answer, FakeServer, fake_server
from tests.synthesis.test_interruptions import CONCURRENCY, questions, respond, started, write_inputs, written
from verl_pivot.types import JsonObject


def wait_for(server: FakeServer, num_requests: int, process: "subprocess.Popen[str]") -> None:
    while len(server.requests) < num_requests:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.slow
def test_a_command_that_was_killed_and_a_dead_node_leave_the_bytes_of_a_run_without_ray(tmp_path: Path) -> None:
    write_inputs(tmp_path)

    goes_on = Event()
    goes_on.set()

    def respond_while_it_goes_on(path: str, body: JsonObject) -> Answer:
        goes_on.wait()
        return respond(path, body)

    with ray_cluster(num_nodes=2) as cluster, fake_server(respond_while_it_goes_on) as server:
        options = ("--ray", "--address", cluster.address)
        process = started(tmp_path, server, "spread", *options)
        wait_for(server, 40, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        process = started(tmp_path, server, "spread", *options)
        wait_for(server, 60, process)
        goes_on.clear()  # else the other node may do all of the rest before Ray notices that this one is dead
        (lost,) = cluster.worker_nodes
        cluster.remove_node(lost, allow_graceful=False)
        losses = (f"the worker on {lost.node_ip_address} is lost", "has left the cluster")
        assert process.stderr is not None
        assert any(loss in line for line in process.stderr for loss in losses)
        goes_on.set()
        output, errors = process.communicate()
    with fake_server(respond) as calm:
        started(tmp_path, calm, "calm").communicate()

    assert process.returncode == 0, output + errors
    assert written(tmp_path / "spread") == written(tmp_path / "calm")
    assert questions(server).keys() == questions(calm).keys()
    assert sum(count - 1 for count in questions(server).values()) <= CONCURRENCY  # under way when the command died


def _desk(close: Callable[[], Awaitable[None]]) -> SimpleNamespace:
    """Handle of a desk, without Ray, whose remote `close` is this function."""
    return SimpleNamespace(close=SimpleNamespace(remote=close))


@pytest.mark.slow
async def test_a_desk_that_closes_says_nothing_and_one_that_does_not_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import RayError, RayTaskError

    from verl_pivot.synthesis import ray_running

    async def closes() -> None: ...

    async def dies() -> None:
        raise RayError("The actor died.\nAnd a paragraph.")

    async def fails() -> None:
        raise RayTaskError("close", "Traceback\nOSError: disk full", OSError("disk full")).as_instanceof_cause()

    async def times_out() -> None:
        raise RayTaskError("close", "Traceback\nTimeoutError", TimeoutError("lock")).as_instanceof_cause()

    async def hangs() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(ray_running, "STOP_SECONDS", 0.05)
    said: list[str] = []
    for close in (closes, dies, fails, times_out, hangs):
        await ray_running.close_desk(_desk(close), said.append)

    end = ". All answers and costs are kept; the seconds since the last cost are not counted in the budget"
    assert said == [
        f"the process that asks the models is lost: The actor died.{end}",
        f"the process that asks the models could not close the budget: OSError('disk full'){end}",
        f"the process that asks the models could not close the budget: TimeoutError('lock'){end}",
        f"the process that asks the models did not end within 0.05 s, and is killed{end}",
    ]
