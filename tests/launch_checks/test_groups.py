"""Chosen config groups: found in every spelling, complete, and without settings of groups that were not chosen."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_pivot.configuration import config_groups
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.groups import check_settings_of_groups, chosen_groups, shipped_settings

METHODS = config_groups()["method"]


@cache
def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def refusal(config: DictConfig, chosen: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        check_settings_of_groups(config, chosen)
    return str(caught.value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "choices",
    [
        lambda method: {"method": method},
        lambda method: {"/method@_global_": method},
        lambda method: {"method": [method]},
        lambda method: {"method": "mine"},  # a user's own config that builds on the method
        lambda method: {},
    ],
)
def test_a_method_is_told_however_the_launch_names_it(method: str, choices: Any) -> None:
    named = choices(method)
    builds_on_it = ("search_r1", "search_r1_grpo", "research", "retool", "torl", "zerotir")
    has_no_section_of_its_own = method in builds_on_it and method not in named.values()
    told = "tool_rollout" if has_no_section_of_its_own else method

    assert chosen_groups({"model_engine": "dp", **named}, composed(f"+method={method}")) == {"method": told}


def test_a_router_is_told_and_stock_verl_has_neither() -> None:
    assert chosen_groups({}, composed("+router=cache_aware"))["router"] == "kv_forecast"
    assert chosen_groups({"router": "cache_aware"}, composed("+router=cache_aware")) == {"router": "cache_aware"}
    assert chosen_groups({"model_engine": "dp"}, composed()) == {}


def test_a_stage_of_the_users_own_keeps_its_name() -> None:
    config = composed("+method=grpo_roc")

    assert chosen_groups({"method": "grpo_roc", "stage": "mine"}, config) == {"method": "grpo_roc", "stage": "mine"}


@pytest.mark.parametrize("group", sorted(config_groups()))
def test_a_group_alone_has_all_its_settings_and_no_others(group: str) -> None:
    beside = {"stage": "grpo_roc", "tool_format": "tool_rollout", "local": "pivotrl", "tail": "tool_rollout"}
    for option in config_groups()[group]:
        chosen = {**({"method": beside[group]} if group in beside else {}), group: option}
        check_settings_of_groups(composed(*(f"+{each}={name}" for each, name in chosen.items())), chosen)


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_of_a_method_that_is_taken_out_is_refused(method: str) -> None:
    config, chosen = composed(f"+method={method}").copy(), {"method": method}
    for key in shipped_settings("method", method):
        section, _, name = key.rpartition(".")
        parent = OmegaConf.select(config, section)
        with open_dict(parent):
            node = parent._get_node(name)
            del parent[name]
            assert refusal(config, chosen).startswith(f"{key} is removed or null, but +method={method} needs {key}: ")
            parent._set_item_impl(name, node)
    check_settings_of_groups(config, chosen)


@pytest.mark.parametrize("method", METHODS)
def test_a_section_of_a_method_that_is_null_is_refused(method: str) -> None:
    sections = {key.rpartition(".")[0] for key in shipped_settings("method", method)}
    config, chosen = composed(f"+method={method}").copy(), {"method": method}
    for section in sorted(sections):
        parent_key, _, name = section.rpartition(".")
        parent = OmegaConf.select(config, parent_key) if parent_key else config
        node = parent._get_node(name)
        OmegaConf.update(config, section, None)
        assert refusal(config, chosen).startswith(f"{section} is removed or null, but +method={method} needs ")
        parent._set_item_impl(name, node)
    check_settings_of_groups(config, chosen)


@pytest.mark.parametrize(
    ("method", "foreign", "owners"),
    [
        ("tool_rollout", "curriculum", "+method=pivotrl"),
        ("tool_rollout", "objective", "+method=pivotrl"),
        ("tool_rollout", "max_turn_tokens", "+method=pivotrl"),
        ("grpo_roc", "allow_other_sampling", "+method=pivotrl and +local=cpu"),
        ("pivotrl", "resampling", "+method=grpo_roc and +method=l0"),
        ("pivotrl", "trial_steps", "+local=cpu"),
    ],
)
def test_a_setting_of_a_group_that_was_not_chosen_is_refused(method: str, foreign: str, owners: str) -> None:
    config = composed(f"+method={method}").copy()
    OmegaConf.update(config, f"pivot.{foreign}", 1, force_add=True)

    assert refusal(config, {"method": method}) == (
        f"pivot.{foreign} does nothing here, since it is a setting of {owners}: leave it out"
    )


@pytest.mark.parametrize(
    ("method", "key", "source"),
    [
        ("grpo_roc", "trainer.v1.sampler.sampler_kwargs.resampling.oversample", "pivot.resampling"),
        ("grpo_roc", "trainer.v1.sampler.sampler_kwargs.group_size", "actor_rollout_ref.rollout.n"),
        ("tool_rollout", "trainer.v1.sampler.sampler_kwargs.max_undecided_batches", "pivot.max_undecided_batches"),
        ("pivotrl", "data.curriculum.enabled", "pivot.curriculum"),
    ],
)
def test_a_key_that_hands_on_another_is_refused_with_a_value_of_its_own(method: str, key: str, source: str) -> None:
    config = composed(f"+method={method}", f"++{key}=7")

    assert refusal(config, {"method": method}).endswith(
        f"must equal {source}, but the launch gives it another value: set only {source}"
    )


def test_two_methods_at_once_are_refused() -> None:
    config = composed("+method=[pivotrl,grpo_roc]")

    assert "does nothing here, since it is a setting of +method=pivotrl" in refusal(
        config, chosen_groups({"method": ["pivotrl", "grpo_roc"]}, config)
    )


def test_settings_of_whole_tasks_beside_single_turns_are_those_of_the_method_with_tools() -> None:
    config = composed("+method=pivotrl", "+pivot.rollout.tools=tools.yaml")

    check_settings_of_groups(config, {"method": "pivotrl"})
