"""Smoke runs: a case for each method, and what is reported about the metrics that a launch logged."""

import importlib.util
import math
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_module

from tests.support.rollout_records import make_record
from verl_pivot.configuration import configs_dir
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import ConfigError
from verl_pivot.hooks import HOOKS
from verl_pivot.launch_checks.gpus import check_gpus
from verl_pivot.rollout.rollout_metrics import rollout_metrics
from verl_pivot.smoke import composing
from verl_pivot.smoke.composing import SmokeMachine, compose, this_machine
from verl_pivot.smoke.methods import CASES, case_of
from verl_pivot.smoke.smoke_run import complaint_of, failure_of, smoke
from verl_pivot.smoke.trial_launch import missing_of_steps

FINE = {"critic/score/mean": 0.5, "actor/pg_loss": 0.0, "actor/grad_norm": 0.1, "rollout/calls_per_trajectory": 0.3}


def test_every_method_has_a_case() -> None:
    assert set(CASES) == {path.stem for path in (configs_dir() / "method").glob("*.yaml")}
    assert set(CASES) <= {method for hook in HOOKS for method in hook.needed_by}


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown method 'pivotlr'; known: grpo_roc, l0, "):
        case_of("pivotlr")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"rollout/calls_per_trajectory": 0.0}, "no rollout called a tool, though the policy writes calls"),
        ({"pivot/undecided_rows": 3.0}, "the rewards of 3 rollouts could not be decided"),
        (
            {
                "rollout/masked_rate": 0.25,
                "rollout/stop_reason/tool_failure": 0.25,
                "rollout/stop_reason/answered": 0.0,
            },
            "25% of the rollouts were masked, since the system failed in them: rollout/stop_reason/tool_failure",
        ),
    ],
)
def test_a_complaint_names_what_the_system_got_wrong(changes: dict[str, float], complaint: str | None) -> None:
    assert complaint_of(CASES["torl"], [{**FINE, **changes}]) == complaint


def test_what_failed_is_found_by_the_names_that_the_metrics_have() -> None:
    """The policy may have random weights, and so a launch without tool calls is no failure."""
    metrics = rollout_metrics([make_record(stop_reason=StopReason.ENGINE_FAILURE), make_record()])

    assert failure_of([FINE, metrics]) == (
        "50% of the rollouts were masked, since the system failed in them: rollout/stop_reason/engine_failure"
    )
    assert (failure_of([rollout_metrics([make_record()], num_failed=1)]) or "").endswith("loop raised an error")
    assert failure_of([{**FINE, "rollout/calls_per_trajectory": 0.0}]) is None


def test_calls_in_one_of_the_steps_are_enough_and_single_turns_need_none() -> None:
    idle = FINE | {"rollout/calls_per_trajectory": 0.0}

    assert complaint_of(CASES["torl"], [idle, FINE]) is None
    assert complaint_of(CASES["pivotrl"], [idle]) is None


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({1: FINE, 2: FINE}, None),
        ({1: FINE}, "the launch ended without an error, but logged the steps [1] instead of 2 steps"),
        (
            {1: FINE, 2: FINE | {"actor/grad_norm": math.nan}},
            "step 2 has actor/grad_norm=nan, which is not a finite number",
        ),
        ({1: FINE, 2: {"critic/score/mean": 0.5}}, "step 2 has actor/pg_loss=None, which is not a finite number"),
    ],
)
def test_a_launch_that_ends_well_must_have_learnt_from_numbers(
    metrics: dict[int, dict[str, float]], said: str | None
) -> None:
    assert missing_of_steps(metrics) == said


def test_a_folder_that_no_smoke_made_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "pivotrl").mkdir()
    machine = SmokeMachine(has_accelerator=False, num_workers=1, engine="sglang")

    with pytest.raises(ConfigError, match="exists and is not the folder of an earlier smoke: give another --out"):
        smoke("pivotrl", tmp_path / "pivotrl", machine, None, print)


def test_paths_with_spaces_reach_hydra_whole(tmp_path: Path) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    folder, machine = tmp_path / "my runs, a=b", SmokeMachine(has_accelerator=False, num_workers=1, engine="sglang")
    folder.mkdir()

    words = compose("mcp_rl", CASES["mcp_rl"], folder, folder / "model", machine, "http://127.0.0.1:1")

    parsed = OverridesParser.create().parse_overrides([word for word in words if not word.startswith("+")])
    values = {each.key_or_group: each.value() for each in parsed}
    assert values["data.train_files"] == str(folder / "rows.parquet")
    assert values["pivot.rollout.tools"] == str(folder / "tools.yaml")
    assert values["actor_rollout_ref.model.path"] == str(folder / "model")
    assert values["pivot.ruler.base_url"] == "http://127.0.0.1:1/v1"
    assert (values["data.train_batch_size"], values["actor_rollout_ref.rollout.n"]) == (4, 4)


@pytest.mark.parametrize(("programs", "file"), [((), "cpu"), (("nvidia-smi",), "sglang")])
def test_without_an_engine_the_versions_for_this_machine_are_named(
    programs: tuple[str, ...], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(composing, "num_accelerators", lambda: 0)
    monkeypatch.setattr(composing, "installed_engine", lambda: None)

    with pytest.raises(
        ConfigError, match=rf"SGLang is not installed: pip install --no-deps -r requirements/{file}\.txt,"
    ):
        this_machine(1)


def test_on_gpus_a_smoke_starts_a_cluster_of_its_own_also_where_one_runs() -> None:
    machine = SmokeMachine(has_accelerator=True, num_workers=1, engine="vllm")

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("ppo_trainer", overrides=["+method=tool_rollout", *machine.overrides])

    assert config.ray_kwargs.ray_init.address == "local"
    check_gpus(config, 1, {"RAY_ADDRESS": "head:6379"})
    with pytest.raises(ConfigError, match="this machine has none, and no Ray cluster runs here"):
        check_gpus(config, 0, {"RAY_ADDRESS": "head:6379"})


@pytest.mark.parametrize(("engine", "installed", "backends"), [
    ("sglang", None, ["fa3", "pytorch"]),
    ("sglang", object(), []),
    ("vllm", None, []),
])  # fmt: skip
def test_on_a_gpu_without_compiled_flashinfer_kernels_sglang_takes_its_own(
    engine: str, installed: object, backends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed)
    machine = SmokeMachine(has_accelerator=True, num_workers=1, engine=engine)

    assert [word.partition("=")[2] for word in machine.overrides if "engine_kwargs" in word] == backends


@pytest.mark.parametrize(("capability", "backends"), [
    (7.5, []),
    (8.0, ["fa3", "pytorch"]),
    (9.0, ["fa3", "pytorch"]),
    (10.0, []),
    (None, ["fa3", "pytorch"]),
])  # fmt: skip
def test_sglang_takes_its_own_kernels_only_on_gpus_on_which_it_runs_them(
    capability: float | None, backends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    machine = SmokeMachine(has_accelerator=True, num_workers=1, engine="sglang", compute_capability=capability)

    assert [word.partition("=")[2] for word in machine.overrides if "engine_kwargs" in word] == backends
