"""Settings of verl that a method owns: each is refused with its remedy where it does nothing, and read elsewhere."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from verl_pivot.configuration import config_groups, configs_dir
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.objective import LOSS_MODULE
from verl_pivot.launch_checks.owned_setting import OwnedSetting, default_keys, verl_defaults
from verl_pivot.launch_checks.owned_settings import (
    OWNED_SETTINGS,
    READ_LOW_AND_HIGH,
    check_owned_settings,
    owning_parts,
)

METHODS = tuple(f"+method={name}" for name in config_groups()["method"])
SECTIONS_OF_CLASSES = {
    "data.custom_cls", "reward.reward_manager", "trainer.v1.sampler.custom_sampler",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
}  # fmt: skip
CHECKED_BY_OTHERS = ("actor_rollout_ref.model.external_lib",)
"""Keys that methods set to a name in this package, and that another launch check owns."""
FREE = ("reward.custom_reward_function.path",)
"""Keys that methods set to a name in this package, and that users may change, as for a reward function of theirs."""
VOID_SECTIONS = (
    "algorithm.filter_groups", "actor_rollout_ref.rollout.multi_turn", "trainer.v1.sampler.sync_refill_failed_groups",
    "custom_reward_function", "reward_model", "sandbox_fusion",
)  # fmt: skip


@cache
def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def launch_config(*overrides: str) -> DictConfig:
    """verl's config with these overrides; Hydra composes only those that begin with +, since composing takes long."""
    config = composed(*(each for each in overrides if each.startswith("+"))).copy()
    for key, _, value in (each.partition("=") for each in overrides if not each.startswith("+")):
        OmegaConf.update(config, key, yaml.safe_load(value))
    return config


def check(*overrides: str) -> None:
    choices = dict(each[1:].split("=") for each in overrides if each.startswith("+"))
    check_owned_settings(launch_config(*overrides), owning_parts(choices), overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(*overrides)
    return str(caught.value)


def other_value(default: Any) -> Any:
    """A value of the same type that is not the default."""
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else "other"


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def set_by_methods() -> dict[str, Any]:
    """{key of verl: value} for all keys of verl that the methods' configs set."""
    configs = [yaml.safe_load((configs_dir() / "method" / f"{each[8:]}.yaml").read_text()) for each in METHODS]
    found = {key: value for config in configs for key, value in leaves(config)}
    return {key: value for key, value in found.items() if not key.startswith(("hydra.", "pivot.", "defaults"))}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_and_a_router_alone_set_nothing_in_vain(method: str) -> None:
    check(method)
    check(method, "+router=kv_forecast")
    check("+router=kv_forecast", "algorithm.filter_groups.enable=True")  # stock verl, without a method


@pytest.mark.heavy
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("section", VOID_SECTIONS)
def test_every_key_of_a_void_section_is_refused_with_its_remedy(method: str, section: str) -> None:
    config = composed(method).copy()
    (setting,) = (each for each in OWNED_SETTINGS if each.key == section and method in each.parts)
    keys = list(default_keys(section))
    assert keys

    for key in keys:
        default = OmegaConf.select(verl_defaults(), key)
        value = other_value(default)
        OmegaConf.update(config, key, value, force_add=True)
        with pytest.raises(ConfigError) as caught:
            check_owned_settings(config, [method], [])
        OmegaConf.update(config, key, default, force_add=True)
        assert str(caught.value) == f"{key}={value} {setting.effect}: {setting.remedy}"


def test_a_setting_that_equals_verls_default_is_not_refused() -> None:
    check(
        "+method=pivotrl", "algorithm.filter_groups.enable=False", "actor_rollout_ref.rollout.multi_turn.enable=False"
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_class_that_a_method_names_cannot_be_switched_off(method: str) -> None:
    for key, value in set_by_methods().items():
        is_class = str(value).startswith(
            ("pkg://verl_pivot", "verl_pivot.", "${verl_pivot.replay", "${verl_pivot.config")
        )
        if not is_class or key in (*CHECKED_BY_OTHERS, *FREE):
            continue
        assert key.startswith(tuple(SECTIONS_OF_CLASSES)), f"{key} is not among the owned settings"
        if OmegaConf.select(composed(method), key) is not None:  # else the class belongs to another method
            assert refusal(method, f"{key}=null").startswith(f"{key}=null ")


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_that_a_method_changes_and_does_not_own_is_the_users_to_change(method: str) -> None:
    owned = (
        *SECTIONS_OF_CLASSES,
        "actor_rollout_ref.rollout.agent.default_agent_loop",
        "trainer.v1.sampler.",
        "data.curriculum",
        *(["algorithm.adv_estimator"] if method == "+method=l0" else []),
    )
    free = {
        key: value for key, value in set_by_methods().items() if not key.startswith(owned) and "$" not in str(value)
    }
    known = composed(method)
    values = {key: 0.25 if isinstance(value, float) else other_value(value) for key, value in free.items()}

    overrides = [f"{key}={value}" for key, value in values.items() if OmegaConf.select(known, key) is not None]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[method, *overrides])

    check_owned_settings(config, [method], overrides)
    assert len(overrides) > 10
    for override in overrides:
        key, _, value = override.partition("=")
        assert str(OmegaConf.select(config, key)) == value


def test_classes_of_the_users_own_may_replace_those_of_a_method() -> None:
    check(
        "+method=grpo_roc", "data.custom_cls.path=mine.py", "data.custom_cls.name=Mine",
        "trainer.v1.sampler.custom_sampler.path=mine.py", "trainer.v1.sampler.custom_sampler.name=Sampler",
        "reward.reward_manager.module.path=mine.py", "reward.reward_manager.name=Manager",
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class=mine.Manager",
    )  # fmt: skip


def test_the_reward_manager_of_verl_is_refused() -> None:
    assert refusal("+method=pivotrl", "reward.reward_manager.source=register", "reward.reward_manager.name=dapo") == (
        "reward.reward_manager.source=register switches off the reward manager that asks verifiers and environments, "
        "and keeps undecided rollouts apart from wrong ones: leave it out, or name the class of this package, or your "
        "own subclass of it"
    )


def test_without_oversampling_the_manager_of_verl_generates_the_groups() -> None:
    none = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null"

    assert "switches off oversampling" in refusal("+method=grpo_roc", none)
    check("+method=grpo_roc", none, "pivot.resampling.oversample=1")


def test_agent_loops_of_ones_own_stand_beside_those_of_the_method(tmp_path: Path) -> None:
    own = configs_dir() / "agent_loops.yaml"
    mine = [{"name": "mine", "_target_": "mine.Loop"}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump([*mine, *yaml.safe_load(own.read_text())]))
    key = "actor_rollout_ref.rollout.agent.agent_loop_config_path"

    assert "removes the method's agent loops" in refusal("+method=tool_rollout", f"{key}={tmp_path}/mine.yaml")
    check("+method=tool_rollout", f"{key}={tmp_path}/all.yaml")


def test_verls_own_agent_loop_may_read_multi_turn() -> None:
    chosen = "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent"
    enabled = "actor_rollout_ref.rollout.multi_turn.enable=True"

    check("+method=pivotrl", chosen, enabled)
    assert "an agent loop that keeps no record" in refusal("+method=grpo_roc", chosen)


@pytest.mark.parametrize("method", METHODS)
def test_clip_ratio_is_refused_where_low_and_high_are_read(method: str) -> None:
    actor = "actor_rollout_ref.actor"

    assert refusal(method, f"{actor}.clip_ratio=0.3") == (
        f"{actor}.clip_ratio=0.3 does nothing, since the policy loss reads clip_ratio_low and clip_ratio_high where "
        f"they are set: set {actor}.clip_ratio_low and {actor}.clip_ratio_high"
    )
    # 0.2 is verl's default, so that only the command line tells that somebody set it
    assert "does nothing" in refusal(method, f"{actor}.clip_ratio=0.2", f"{actor}.clip_ratio_high=0.3")
    check(method, f"{actor}.clip_ratio=0.3", f"{actor}.clip_ratio_low=0.3", f"{actor}.clip_ratio_high=0.3")
    check(method, f"{actor}.clip_ratio=0.3", f"{actor}.clip_ratio_low=null", f"{actor}.clip_ratio_high=null")
    check(method, f"{actor}.clip_ratio=0.3", f"{actor}.policy_loss.loss_mode=my_loss")


def test_a_reward_model_is_refused_unless_a_function_asks_it_before_the_sampling() -> None:
    enable, pool = "reward.reward_model.enable=True", "reward.reward_model.enable_resource_pool=True"
    function = "reward.custom_reward_function.path=mine.py"

    assert refusal("+method=tool_rollout", enable).startswith("reward.reward_model.enable=True bypasses the rewards")
    assert "bypasses the rewards" in refusal("+method=tool_rollout", enable, function)
    assert "bypasses the rewards" in refusal("+method=tool_rollout", enable, pool)
    check("+method=tool_rollout", enable, pool, function)


@pytest.mark.parametrize("method", METHODS)
def test_the_old_trainer_is_refused(method: str) -> None:
    assert refusal(method, "trainer.use_v1=False").startswith("trainer.use_v1=False chooses verl's old trainer")


def test_a_router_file_of_ones_own_beside_the_routers_of_this_package_is_refused() -> None:
    key = "actor_rollout_ref.rollout.router_config_path"

    assert refusal("+router=kv_forecast", f"{key}=mine.yaml").startswith(f"{key}=mine.yaml switches off +router and ")
    assert refusal("+router=kv_forecast", f"{key}=null").startswith(f"{key}=null switches off +router and ")
    check("+method=pivotrl", f"{key}=mine.yaml")


@pytest.mark.parametrize("method", METHODS)
def test_partial_rollouts_go_with_every_method_and_with_other_bounds(method: str) -> None:
    check(method, "+tail=partial", "+router=kv_forecast")
    check(method, "+tail=partial", "trainer.v1.colocate_async.num_warmup_batches=1")
    check(method, "+tail=partial", "trainer.v1.sampler.max_off_policy_threshold=2")


@pytest.mark.parametrize(
    ("key", "value", "effect"),
    [
        ("trainer.v1.trainer_mode", "sync", "chooses a trainer that"),
        ("trainer.v1.trainer_mode", "separate_async", "chooses a trainer that"),
        ("trainer.v1.sampler.max_off_policy_strategy", "drop", "throws away groups"),
        ("trainer.v1.sampler.max_off_policy_threshold", "1", "does not limit"),
        ("trainer.v1.sampler.max_off_policy_threshold", "null", "does not limit"),
        ("trainer.v1.colocate_async.num_warmup_batches", "0", "leaves no rollout"),
        ("trainer.v1.colocate_async.num_warmup_batches", "3.5", "leaves no rollout"),
    ],
)
def test_what_partial_rollouts_cannot_work_with_is_refused(key: str, value: str, effect: str) -> None:
    assert refusal("+method=grpo_roc", "+tail=partial", f"{key}={value}").startswith(f"{key}={value} {effect}")
    check("+method=grpo_roc", f"{key}={value}")  # allowed without +tail=partial


# ---- what makes the settings void, shown by verl's own code


def test_the_defaults_are_those_that_verl_composes() -> None:
    stock = composed()

    for key in {each.key for each in OWNED_SETTINGS}:
        for leaf in default_keys(key):
            assert OmegaConf.select(stock, leaf) == OmegaConf.select(verl_defaults(), leaf), leaf


def test_verl_hands_neither_filter_nor_refill_to_a_custom_sampler(tmp_path: Path) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    def sampler(*overrides: str) -> Any:
        config = launch_config(
            "algorithm.filter_groups.enable=True", "trainer.v1.sampler.sync_refill_failed_groups=True", *overrides
        )
        trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=len)
        trainer._resolve_filter_groups_metric = lambda: PPOTrainer._resolve_filter_groups_metric(trainer)
        return PPOTrainer._build_replay_buffer(trainer)

    stock, ours = sampler(), sampler("+method=pivotrl")

    assert (stock.filter_groups_metric, stock.sync_refill_failed_groups) == ("reward", True)
    assert (ours.filter_groups_metric, ours.sync_refill_failed_groups) == (None, False)


def test_verls_agent_loop_tool_agent_alone_reads_multi_turn() -> None:
    readers = {path.name for path in python_files("verl") if "rollout_config.multi_turn" in path.read_text()}

    # agent_loop.py loads the tools of tool_agent_loop.py, and ray_trainer.py is the old trainer
    assert readers == {"tool_agent_loop.py", "agent_loop.py", "ray_trainer.py"}


def test_verls_main_ppo_does_not_read_the_sections_of_earlier_releases() -> None:
    readers = {
        path.relative_to(str(files("verl"))).as_posix()
        for path in python_files("verl")
        if "migrate_legacy_reward_impl(" in path.read_text()
    }

    assert readers == {
        "experimental/reward_loop/reward_loop.py", "experimental/fully_async_policy/fully_async_main.py"
    }  # fmt: skip


def test_the_losses_that_read_low_and_high_are_those_of_verl() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    import_module(LOSS_MODULE)

    readers = {name for name, loss in POLICY_LOSS_REGISTRY.items() if reads(loss, "clip_ratio_low")}
    assert readers == set(READ_LOW_AND_HIGH)


def reads(function: Any, name: str) -> bool:
    tree = ast.parse(inspect.getsource(function))
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(tree))


def python_files(package: str) -> list[Path]:
    return sorted(Path(str(files(package))).rglob("*.py"))


@pytest.mark.parametrize("setting", OWNED_SETTINGS, ids=lambda setting: setting.key)
def test_a_setting_belongs_to_parts_that_exist_and_is_a_key_of_verl(setting: OwnedSetting) -> None:
    assert set(setting.parts) <= {*METHODS, "+router", "+tail=partial"}
    assert list(default_keys(setting.key))
