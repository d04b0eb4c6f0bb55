"""Two of verl's workers have the gradient of one, for the objective of each method and for each cut into batches."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.contract.test_configs import stock
from tests.support.paths import ROOT
from tests.support.tiny_model import write_model
from verl_pivot.configuration import config_groups

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ACTOR = "actor_rollout_ref.actor"
ROW_BY_ROW = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1}
FOUR_AT_ONCE = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}
BY_TOKENS = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 160}
PACKED = "actor_rollout_ref.model.use_remove_padding=True"


class Cases:
    """Configs of verl in a folder, for `gradient_worker.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = write_model(folder / "model")
        self._cases: dict[str, Any] = {}
        self._variables: dict[str, str] = {}

    def add(
        self,
        name: str,
        *overrides: str,
        kind: str = "plain",
        micro_batches: Mapping[str, object] = ROW_BY_ROW,
        world_sizes: Collection[int] = (1, 2),
    ) -> None:
        """Add a case; cases of the same `kind` share a model."""
        config = stock(
            "+local=cpu", f"actor_rollout_ref.model.path={self._model}", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", *overrides,
        )  # fmt: skip
        self._variables.update(config.ray_kwargs.ray_init.runtime_env.env_vars)
        OmegaConf.resolve(config)
        OmegaConf.save(config.actor_rollout_ref, self._folder / f"{name}.yaml")
        self._cases[name] = {
            "kind": kind, "micro_batches": dict(micro_batches), "world_sizes": list(world_sizes),
            "multiple": 8 if micro_batches is FOUR_AT_ONCE else 2,
        }  # fmt: skip

    def run(self, world_size: int) -> None:
        """Let `world_size` workers write the gradient of each case."""
        (self._folder / "cases.json").write_text(json.dumps({"variables": self._variables, "cases": self._cases}))
        script = str(Path(__file__).parent / "gradient_worker.py")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        workers, logs = [], [self._folder / f"{world_size}-{rank}.log" for rank in range(world_size)]
        try:
            for rank, log in enumerate(logs):
                command = [sys.executable, script, str(self._folder), str(rank), str(world_size)]
                with log.open("wb") as file:
                    workers.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:  # a worker waits for minutes for another one that has failed
                worker.kill()
        assert codes == [0] * world_size, "\n".join(log.read_text()[-3000:] for log in logs)

    def difference(self, name: str, other: str) -> float:
        """Largest difference between the components of two gradients, as a share of the largest component."""
        import torch

        one, two = torch.load(self._folder / f"{name}.pt"), torch.load(self._folder / f"{other}.pt")
        assert one.keys() == two.keys()
        largest = max(float(each.abs().max()) for each in one.values())
        assert largest > 0.0
        return max(float((one[key] - two[key]).abs().max()) for key in one) / largest


def test_two_workers_have_the_gradient_of_one_with_the_objective_of_each_method(tmp_path: Path) -> None:
    cases, methods = Cases(tmp_path), config_groups()["method"]
    for method in methods:
        cases.add(method, f"+method={method}")

    for world_size in (1, 2):
        cases.run(world_size)

    found = {method: cases.difference(f"1-{method}", f"2-{method}") for method in methods}
    assert {method: difference for method, difference in found.items() if difference > 1e-5} == {}


def test_the_gradient_does_not_depend_on_how_rows_are_cut_except_where_verl_cannot_split_the_attention(
    tmp_path: Path,
) -> None:
    cases, cuts = Cases(tmp_path), ("four_at_once", "by_tokens", "packed")
    cases.add("row_by_row", "+method=grpo_roc")
    cases.add("four_at_once", "+method=grpo_roc", micro_batches=FOUR_AT_ONCE)
    cases.add("by_tokens", "+method=grpo_roc", micro_batches=BY_TOKENS)
    cases.add("adapter", "+method=grpo_roc", "actor_rollout_ref.model.lora_rank=4", kind="adapter")
    cases.add("packed", "+method=grpo_roc", PACKED, kind="packed", micro_batches=BY_TOKENS)
    cases.add(
        "sequence_parallel", "+method=grpo_roc", PACKED, f"{ACTOR}.ulysses_sequence_parallel_size=2",
        kind="sequence_parallel", world_sizes=(2,),
    )  # fmt: skip

    for world_size in (1, 2):
        cases.run(world_size)

    found = {
        **{f"two workers, {name}": cases.difference(f"1-{name}", f"2-{name}") for name in (*cuts, "adapter")},
        **{f"one worker, {name}": cases.difference("1-row_by_row", f"1-{name}") for name in cuts},
    }
    assert {name: difference for name, difference in found.items() if difference > 1e-5} == {}
    # verl splits sequences inside flash attention; with torch's attention each worker reads only its half of them.
    assert cases.difference("1-row_by_row", "2-sequence_parallel") > 0.1
