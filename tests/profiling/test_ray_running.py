"""`verl-pivot profile --ray` on a cluster of three nodes, all on this machine."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.profiling.test_profiles import make_settings, make_trajectory, write_trajectories
from tests.sandbox.cluster.test_ray_supervisor import NODE, ray_cluster
from tests.support.fake_engine import Answer, FakeServer, fake_server, sglang_sample
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tokenizer
from tests.workers.test_worker_pool import make_measured, make_turn
from verl_pivot.engines.retries import Retries
from verl_pivot.profiling.profiles import read_profiles
from verl_pivot.profiling.servers import OpenAIServer
from verl_pivot.profiling.worker import WorkerSettings
from verl_pivot.types import JsonObject
from verl_pivot.workers.command_home import CommandHome

VERIFIER = """
import os
from pathlib import Path

import ray

from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import register


@register("length")
async def length(action, turn):
    if ray.is_initialized():
        Path("nodes", ray.get_runtime_context().get_node_id()).touch()
    return Verdict(score=len(action.content) % 3 / 2, reason="length")
"""
"""A verifier that leaves a file for each node on which it ran."""


def hashing_policy(folder: Path, wait: Callable[[], object]) -> Callable[[str, JsonObject], Answer]:
    """Answers of a server whose samples depend on the prompt's tokens and the seed alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def sample(prompt_ids: object, parameters: object) -> JsonObject:
        assert isinstance(parameters, dict), parameters
        text = sha256(f"{prompt_ids}/{parameters['sampling_seed']}".encode()).hexdigest()
        return sglang_sample(tokenizer.encode(text[: int(text[0], 16) + 1] + "<|im_end|>"), cached=2)

    def answer(path: str, body: JsonObject) -> Answer:
        wait()
        prompts, parameters = body["input_ids"], body["sampling_params"]
        assert isinstance(prompts, list), prompts
        assert isinstance(parameters, list), parameters
        return Answer(body=list(map(sample, prompts, parameters)))

    return answer


@contextmanager
def profiling(folder: Path, url: str, out: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `verl-pivot profile` with its output in the file `log`; it is killed when the block ends."""
    command = [sys.executable, "-m", "verl_pivot.cli", "profile", "trajectories.jsonl", "--model", "policy"]
    command += ["--out", out, "--endpoint", url, "--samples", "2", "--concurrency", "18"]
    command += ["--verifier-module", "length.py", *options]
    with (folder / "log").open("wb") as log:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def num_sampled(server: FakeServer) -> int:
    """Number of turns that the server was asked to sample, prefills not counted."""
    return sum(body["sampling_params"][0]["max_new_tokens"] > 1 for body in server.requests)  # type: ignore[index,call-overload,operator]


def wait_for_nodes(folder: Path, num_nodes: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until verifiers have run on `num_nodes` nodes."""
    while len(list((folder / "nodes").iterdir())) != num_nodes:
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)


def write_inputs(folder: Path, num_trajectories: int) -> Path:
    """Write trajectories of six turns each, a verifier and a tokenizer; returns the folder of the tokenizer."""
    trajectories = [
        replace(make_trajectory(f"t{i}", 6, f"Hi {i}."), verifier="length") for i in range(num_trajectories)
    ]
    write_trajectories(folder / "trajectories.jsonl", *trajectories)
    (folder / "length.py").write_text(VERIFIER)
    (folder / "nodes").mkdir()
    return write_tokenizer(folder / "policy")


@pytest.mark.slow
def test_a_profile_outlives_a_node_and_is_the_same_as_on_one_machine(tmp_path: Path) -> None:
    model, hurry = write_inputs(tmp_path, num_trajectories=100), threading.Event()

    def hold() -> None:
        hurry.wait(0.5 if num_sampled(server) < 300 else 5)  # slow, so that turns are left when the last node joins

    with ray_cluster() as cluster, fake_server(hashing_policy(model, hold)) as server:
        options = ("--ray", "--address", cluster.address)
        with profiling(tmp_path, server.url, "ray.jsonl", *options) as process:
            wait_for_nodes(tmp_path, 3, process)
            cluster.remove_node(sorted(cluster.worker_nodes, key=id)[0], allow_graceful=False)
            cluster.add_node(**NODE)
            wait_for_nodes(tmp_path, 4, process)
            num_before = num_sampled(server)
            hurry.set()
            said_on_ray = (tmp_path / "log").read_text() if process.wait() == 0 else ""
        num_on_ray = num_sampled(server)
        with profiling(tmp_path, server.url, "alone.jsonl") as process:
            assert process.wait() == 0

    assert num_before < 600
    assert num_on_ray <= 618  # each turn once, and again those in flight on the node that died
    assert len(read_profiles(tmp_path / "ray.jsonl")) == 600
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert "(workers left: " in said_on_ray
    assert "raylet" not in said_on_ray


@pytest.mark.slow
def test_what_goes_to_workers_survives_pickle() -> None:
    settings = WorkerSettings(
        profile=make_settings(),
        seed=1,
        retries=Retries(),
        endpoints=("http://a",),
        openai=OpenAIServer(url="http://b", model="policy", api_key="none"),
        server_flags=(),
        verifier_modules=("length.py",),
        home=CommandHome(folder="/", python_path=(), variables={"HF_HOME": "/models"}),
    )
    values: Sequence[object] = (settings, make_turn(), make_measured(make_turn()))

    assert tuple(pickle.loads(pickle.dumps(value)) for value in values) == values
