"""A misspelt launch command stops with one sentence before anything starts."""

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.verl_pivot_search_path import VerlPivotSearchPathPlugin
from verl_pivot.configuration import config_groups
from verl_pivot.errors import ConfigError
from verl_pivot.launch import LaunchCheck, check_config, check_groups
from verl_pivot.launch_checks.groups import config_folders

CONFIG = {
    "pivot": {"verifier_modules": [], "max_undecided_batches": 3},
    "data": {"train_files": "pivots.parquet", "top_k": 1},
    "ray_kwargs": {"ray_init": {"num_cpus": 2}},
}


@pytest.mark.parametrize(
    ("argument", "meant"),
    [("+methd=pivotrl", "+method=pivotrl"), ("+algo=pivotrl", "+method=pivotrl"), ("+locale=cpu", "+local=cpu")],
)
def test_a_misspelt_group_is_refused_with_what_was_meant(argument: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"'\{argument}' names no config group: did you mean \{meant}\?"):
        check_groups(["data.seed=1", argument], config_groups())


@pytest.mark.parametrize("argument", ["+method=pivotrl", "+local=cpu", "trainer.device=cpu", "+data.a=cpu", "+x=1"])
def test_other_arguments_pass(argument: str) -> None:
    check_groups([argument], config_groups())


@pytest.mark.parametrize("argument", ["+experiment=retool", "+experiment@_global_=pivotrl", "+lab/mine=cpu"])
def test_a_group_of_ones_own_may_have_options_with_the_names_of_ours(argument: str, tmp_path: Path) -> None:
    for group in ("experiment", "lab/mine"):
        (tmp_path / group).mkdir(parents=True)

    check_groups([argument], config_groups(), [tmp_path / "none", tmp_path])
    with pytest.raises(ConfigError, match="names no config group"):
        check_groups([argument], config_groups(), [tmp_path / "none"])
    with pytest.raises(ConfigError, match=r"did you mean \+method=pivotrl\?"):
        check_groups(["+methd=pivotrl"], config_groups(), [tmp_path])


def test_folders_of_configs_are_those_that_the_command_line_names() -> None:
    words = [
        "--config-dir",
        "a",
        "-cd=b",
        "--config-dir=c",
        "hydra.searchpath=[file:///d/e,'file://f',pkg://mine]",
        "-cd",
    ]

    assert config_folders(words) == [*map(Path, ("a", "b", "c", "/d/e", "f", "pkg://mine")), Path()]


def test_a_group_in_a_folder_of_hydras_search_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment").mkdir()
    monkeypatch.setattr(sys, "argv", ["main_ppo", "+experiment=retool"])
    search_path = ConfigSearchPathImpl()
    search_path.append("main", "file:///packages/verl/trainer/config")

    with pytest.raises(SystemExit, match="names no config group"):
        VerlPivotSearchPathPlugin().manipulate_search_path(search_path)
    search_path.append("schema", f"file://{tmp_path}")
    VerlPivotSearchPathPlugin().manipulate_search_path(search_path)


@pytest.mark.parametrize(
    ("key", "override", "meant"),
    [
        ("data.train_flies", "+data.train_flies=a", "data.train_files"),
        ("rya_kwargs", "+rya_kwargs=a", "ray_kwargs"),
    ],
)
def test_an_added_key_that_misspells_another_is_refused(key: str, override: str, meant: str) -> None:
    config = OmegaConf.create(CONFIG)
    OmegaConf.update(config, key, "a", force_add=True)

    with pytest.raises(ConfigError, match=rf"adds a key that nothing reads: did you mean {meant}, without the \+\?"):
        check_config(config, [override])


def test_a_key_of_verl_may_be_forced_also_where_it_is_like_another() -> None:
    config = composed("+method=pivotrl")

    check_config(config, ["++actor_rollout_ref.actor.clip_ratio=0.3", "++trainer.val_only=True"])
    with pytest.raises(ConfigError, match=r"did you mean actor_rollout_ref\.actor\.clip_ratio"):
        check_config(config, ["++actor_rollout_ref.actor.clip_rato=0.3"])


def composed(*overrides: str) -> DictConfig:
    """verl's whole config with Hydra's own, which a launch has as well."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config


def test_a_check_that_breaks_stops_the_launch_which_hydra_would_start_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = composed("+method=pivotrl", "actor_rollout_ref.rollout.name=sglang", "ray_kwargs=null")

    with pytest.raises(SystemExit, match="verl-pivot: the check of this launch failed, see above, so nothing was"):
        LaunchCheck().on_job_start(config)
    assert "ray_init" in capsys.readouterr().err


def test_a_key_that_is_like_no_other_may_be_added() -> None:
    config = OmegaConf.create(CONFIG)
    config.ray_kwargs.ray_init.num_gpus = 1
    config.data.top_p = 1

    check_config(config, ["+ray_kwargs.ray_init.num_gpus=1", "+data.top_p=1", "data.train_files=a"])


def test_an_unknown_key_of_ours_is_refused() -> None:
    config = OmegaConf.create(CONFIG)
    config.pivot.verifer_modules = []

    with pytest.raises(ConfigError, match=r"unknown key pivot\.verifer_modules; known: "):
        check_config(config, [])
