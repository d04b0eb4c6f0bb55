"""Every shipped config composes with the stock ppo_trainer and sets only known keys."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from verl_pivot.configuration import config_groups, configs_dir, router_file
from verl_pivot.data.curriculum import CurriculumOptions, parse_options
from verl_pivot.errors import ConfigError
from verl_pivot.launch import check_config
from verl_pivot.launch_checks.groups import check_choices, chosen_groups, shipped_settings
from verl_pivot.launch_checks.owned_settings import check_owned_settings, owning_parts
from verl_pivot.launch_checks.rewards import check_rewards
from verl_pivot.launch_checks.void_settings import check_void_settings
from verl_pivot.resampling.settings import ResamplingSettings, parse_resampling
from verl_pivot.rewards.process_settings import ProcessSettings, parse_process
from verl_pivot.rewards.rubric_settings import RubricSettings, parse_rubrics
from verl_pivot.rewards.ruler_settings import RulerSettings, parse_ruler
from verl_pivot.rollout.notebook_settings import NotebookSettings, parse_notebook_settings
from verl_pivot.rollout.settings import RolloutSettings, parse_settings
from verl_pivot.rollout.tree_search_settings import TreeSearchSettings, parse_tree_search
from verl_pivot.routing.settings import RouterSettings, parse_router

NEW_KEYS = (
    "hydra.callbacks.",
    "hydra.run.dir",
    "pivot.",
    "data.curriculum",
    "data.pivot_agent_name",
    "ray_kwargs.ray_init.address",
    "ray_kwargs.ray_init.num_gpus",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.runtime_env.env_vars.",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.",
    "actor_rollout_ref.model.override_config.attn_implementation",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.engine_kwargs.sglang.",
    "critic.fsdp.mixed_precision.",
    "actor_rollout_ref.rollout.router_config_path",
    "trainer.v1.sampler.sampler_kwargs.",
)
"""Prefixes of keys that we add to verl's config on purpose; any other key that verl does not have is a typo."""

THE_METHODS_OWN = {
    "clip_ratio_low", "clip_ratio_high", "kl_loss_coef", "kl_loss_type", "use_kl_loss", "entropy_coeff",
    "loss_agg_mode", "optim.lr", "optim.lr_warmup_steps",
}  # fmt: skip
"""Keys of the actor that a method sets, whatever verl's default is."""

GROUPS = [(group, option) for group, options in config_groups().items() for option in options]


def stock(*overrides: str) -> DictConfig:
    """Copy of a composed config, since tests change it and composing takes half a second."""
    return deepcopy(composed(overrides))


@cache
def composed(overrides: tuple[str, ...]) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def leaves(node: object, path: str = "") -> Iterator[str]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path


def value_at(node: object, path: str) -> object:
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def has_key(config: object, path: str) -> bool:
    parent, _, key = path.rpartition(".")
    node = value_at(config, parent)
    return isinstance(node, dict) and key in node


def shipped(group: str, option: str) -> Path:
    return configs_dir() / group / f"{option}.yaml"


def set_by_us(group: str, option: str) -> dict[str, Any]:
    """Keys that an option sets itself, without those of the options that it builds on."""
    ours: dict[str, Any] = yaml.safe_load(shipped(group, option).read_text())
    ours.pop("defaults", None)
    return ours


def test_the_groups_are_those_of_the_documentation() -> None:
    assert config_groups() == {
        "method": [
            "grpo_roc", "l0", "mcp_rl", "pivotrl", "ppr", "research", "retool", "rubrics", "search_r1",
            "search_r1_grpo", "tool_rollout", "torl", "tree_search", "web_agent", "zerotir",
        ],
        "local": ["cpu"],
        "router": ["cache_aware", "kv_admission", "kv_forecast"],
        "stage": ["rstar2_1", "rstar2_2", "rstar2_3"],
        "tail": ["partial"],
        "tool_format": ["research", "retool", "rstar2", "search_r1", "torl", "verl_tool", "zerotir"],
    }  # fmt: skip


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_every_key_that_we_set_exists_in_verl(group: str, option: str) -> None:
    config = OmegaConf.to_container(stock())
    ours = set_by_us(group, option)

    unknown = [path for path in leaves(ours) if not path.startswith(NEW_KEYS) and not has_key(config, path)]

    assert unknown == [], f"typo in configs/{group}/{option}.yaml, or verl moved the key"


@pytest.mark.parametrize("method", ["pivotrl", "l0", "grpo_roc"])
def test_the_replay_buffer_is_told_whose_texts_are_recorded(method: str) -> None:
    config = stock(f"+method={method}", "pivot.record=kept", "data.train_files=a.parquet")

    assert config.trainer.v1.sampler.sampler_kwargs.record == "kept"


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_what_methods_set_are_keys_of_each_engine_of_training_and_the_launch_is_checked_with_it(engine: str) -> None:
    config = OmegaConf.to_container(stock(f"model_engine={engine}"))
    unknown = {
        method: [
            path
            for path in leaves(set_by_us("method", method))
            if not path.startswith(NEW_KEYS) and not has_key(config, path)
        ]
        for method in config_groups()["method"]
    }
    chosen = stock("+method=grpo_roc", f"model_engine={engine}", "data.train_files=a.parquet")

    assert {method: paths for method, paths in unknown.items() if paths} == {}
    assert (chosen.actor_rollout_ref.actor.strategy, chosen.critic.strategy) == (engine, engine)
    check_config(chosen, ["+method=grpo_roc"])
    check_owned_settings(chosen, owning_parts({"method": "grpo_roc"}), ["+method=grpo_roc"])
    check_void_settings(chosen, ["+method=grpo_roc"])


def test_the_precision_of_fsdp_is_a_field_of_verls_engine_config_which_its_yaml_leaves_out() -> None:
    from verl.workers.config import FSDPEngineConfig

    assert FSDPEngineConfig(strategy="fsdp2").mixed_precision is None


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_no_key_repeats_verls_default(group: str, option: str) -> None:
    config = OmegaConf.to_container(stock())
    ours = set_by_us(group, option)

    same = {path for path in leaves(ours) if has_key(config, path) and value_at(config, path) == value_at(ours, path)}

    assert {path.removeprefix("actor_rollout_ref.actor.") for path in same} <= THE_METHODS_OWN | _taken_back(
        group, option
    )


def _taken_back(group: str, option: str) -> set[str]:
    """Keys in which a method that builds on tool_rollout goes back to verl's default."""
    builds_on = yaml.safe_load(shipped(group, option).read_text()).get("defaults", ())
    taken_back = {"algorithm.adv_estimator", "actor_rollout_ref.rollout.n", "data.max_prompt_length"}
    return taken_back if "tool_rollout" in builds_on else set()


def test_method_and_local_combine_and_the_command_line_wins() -> None:
    config = stock("+method=pivotrl", "+local=cpu", "data.train_files=a/pivots.parquet", "data.train_batch_size=8")

    assert config.data.train_batch_size == 8
    assert config.data.val_files == "a/pivots.validation.parquet"
    assert config.trainer.v1.sampler.custom_sampler.name == "PivotReplayBuffer"
    assert Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).is_file()
    assert config.trainer.device == "cpu"


def test_the_curriculum_is_off_by_default_and_its_options_are_those_of_the_config() -> None:
    off, on = stock("+method=pivotrl"), stock("+method=pivotrl", "pivot.curriculum.enabled=True")

    assert parse_options(off.data.curriculum) == CurriculumOptions()
    assert parse_options(on.data.curriculum) == CurriculumOptions(enabled=True)
    assert set(off.pivot.curriculum) == set(CurriculumOptions.model_fields)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pivot.curriculum.retire_visit=3", "Could not override 'pivot.curriculum.retire_visit'"),
        ("+pivot.curriculum.retire_visit=3", "did you mean pivot.curriculum.retire_visits, without the"),
        ("+pivot.curiculum.enabled=True", "unknown key pivot.curiculum"),
    ],
)
def test_a_misspelt_option_of_the_curriculum_stops_the_launch(override: str, message: str) -> None:
    with pytest.raises((ConfigCompositionException, ConfigError), match=message):
        check_config(stock("+method=pivotrl", override), [override])


@pytest.mark.parametrize("option", config_groups()["router"])
def test_a_routers_settings_reach_verl_as_a_file_with_the_limits_of_the_launch(option: str) -> None:
    config = stock("+method=grpo_roc", f"+router={option}", "+stage=rstar2_2", "pivot.router.kv_forecast.fill=0.7")
    check_config(config, [])

    written = yaml.safe_load(Path(config.actor_rollout_ref.rollout.router_config_path).read_text())

    settings = parse_router(written, "file")
    assert (settings.policy, settings.max_response_tokens, settings.kv_forecast.fill) == (option, 12_288, 0.7)
    assert set(written) == set(RouterSettings.model_fields)


def test_a_folder_for_the_routers_settings_to_which_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"verl-pivot-{os.getuid()}"
    said = f"{folder} is not a folder to which only you can write, and verl would read the router's settings from it: "
    section = OmegaConf.create({"policy": "kv_forecast", "max_response_tokens": 64})

    path = Path(router_file(section))
    assert (path.parent, folder.stat().st_mode & 0o777) == (folder, 0o700)
    assert Path(router_file(section)) == path
    for mode in (0o777, 0o720):
        folder.chmod(mode)
        with pytest.raises(ConfigError, match=f"^{re.escape(said)}remove it, or set TMPDIR to a folder of your own$"):
            router_file(section)
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=re.escape(said)):
        router_file(section)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_config(OmegaConf.create({"pivot": {"router": section}}), [])


def test_a_folder_for_the_routers_settings_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)

    with pytest.raises(ConfigError, match="is not a folder to which only you can write"):
        router_file(OmegaConf.create({"policy": "kv_forecast"}))


def test_the_defaults_of_a_router_are_those_of_its_config() -> None:
    config = stock("+router=kv_forecast")

    chosen = parse_router(OmegaConf.to_container(config.pivot.router, resolve=True), "pivot.router")

    assert chosen == RouterSettings(max_response_tokens=config.data.max_response_length)


@pytest.mark.parametrize("tool_format", config_groups()["tool_format"])
def test_the_options_of_the_tool_loop_are_those_of_the_config(tool_format: str) -> None:
    plain, formatted = stock("+method=tool_rollout"), stock("+method=tool_rollout", f"+tool_format={tool_format}")

    assert set(plain.pivot.rollout) == set(RolloutSettings.model_fields)
    assert parse_settings(plain).model_dump(exclude={"tools"}) == RolloutSettings(tools="").model_dump(
        exclude={"tools"}
    )
    assert parse_settings(formatted) != parse_settings(plain)
    if tool_format not in ("search_r1", "research", "verl_tool"):  # these formats need other tools
        check_config(formatted, ["+method=tool_rollout", f"+tool_format={tool_format}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+pivot.rollout.max_turn=3", r"pivot\.rollout\.max_turn: unknown key; known: .*max_turns"),
        ("pivot.rollout.max_turns=0", r"pivot\.rollout\.max_turns: Input should be greater"),
        ("pivot.rollout.parser=tags", "parser=tags needs tags"),
        ("pivot.rollout.observation_template=x", "must hold {text} exactly once, got 'x'"),
        ("pivot.rollout.tools=nowhere.yaml", r"nowhere\.yaml cannot be read in /"),
        ("+tool_format=search_r1", "has no tool 'search', only python_code_with_standard_io, jupyter_code"),
        (
            "pivot.rollout={parser: tags, tools: ${verl_pivot.config:tools/python.yaml}, "
            "tags: [{open: a, close: b, tool: jupyter_code, argument: query}]}",
            "tool 'jupyter_code' has no argument 'query'",
        ),
    ],
)
def test_an_option_of_the_tool_loop_that_is_wrong_stops_the_launch(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(stock("+method=tool_rollout", override), [])


def test_the_asynchronous_trainers_get_their_replay_buffer() -> None:
    config = stock("+method=pivotrl", "trainer.v1.trainer_mode=separate_async")

    assert config.trainer.v1.sampler.custom_sampler.name == "PivotReplayBufferAsync"


@pytest.mark.parametrize("method", config_groups()["method"])
def test_partial_rollouts_choose_the_asynchronous_buffer_wherever_they_stand(method: str) -> None:
    behind, before = stock(f"+method={method}", "+tail=partial"), stock("+tail=partial", f"+method={method}")

    assert behind.trainer.v1 == before.trainer.v1
    assert behind.trainer.v1.sampler.custom_sampler.name.endswith("ReplayBufferAsync")


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_every_class_that_a_config_names_can_be_imported(group: str, option: str) -> None:
    from importlib import import_module

    ours = yaml.safe_load(shipped(group, option).read_text())
    targets = [OmegaConf.select(OmegaConf.create(ours), path) for path in leaves(ours) if path.endswith("_target_")]
    if group == "method":
        config = stock(f"+method={option}")
        for section in (config.data.custom_cls, config.reward.reward_manager, config.trainer.v1.sampler.custom_sampler):
            path = section.get("path") or section["module"]["path"]
            targets.append(f"{path.removeprefix('pkg://')}.{section['name']}")
        targets += [loop["_target_"] for loop in yaml.safe_load((configs_dir() / "agent_loops.yaml").read_text())]
        if manager := config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class"):
            targets.append(manager)

    assert targets or group in ("tool_format", "stage", "router", "tail")
    for target in targets:
        module, _, name = target.rpartition(".")
        assert hasattr(import_module(module), name), target


def test_grpo_roc_is_the_papers_recipe_over_the_tool_loop() -> None:
    config = stock("+method=grpo_roc", "data.train_files=a.parquet")

    check_config(config, ["+method=grpo_roc"])
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.28, "token-mean")
    assert (actor.use_kl_loss, actor.entropy_coeff, config.algorithm.use_kl_in_reward) == (False, 0, False)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (512, 16)
    assert parse_resampling(config) == ResamplingSettings(group_size=16)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "pivot_tools"
    assert config.trainer.v1.sampler.custom_sampler.name == "RocReplayBuffer"


def test_ppr_is_the_released_ppo_with_a_critic_over_the_tool_loop() -> None:
    config = stock("+method=ppr", "+tool_format=search_r1", "data.train_files=a.parquet", *JUDGE)

    actor, critic, algorithm = config.actor_rollout_ref.actor, config.critic, config.algorithm
    assert (algorithm.adv_estimator, algorithm.gamma, algorithm.lam) == ("gae", 1.0, 1.0)
    assert (algorithm.use_kl_in_reward, algorithm.kl_ctrl.kl_coef, actor.use_kl_loss) == (True, 0.001, False)
    assert (actor.optim.lr, actor.optim.lr_warmup_steps_ratio) == (1e-6, 0.285)
    assert (critic.optim.lr, critic.optim.lr_warmup_steps_ratio) == (1e-5, 0.015)
    assert (actor.entropy_coeff, actor.clip_ratio) == (0.001, 0.2)
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n) == (
        512,
        256,
        1,
    )
    assert critic.model.path == config.actor_rollout_ref.model.path
    assert (config.pivot.rollout.max_turn_tokens, config.pivot.rollout.max_observation_tokens) == (500, 500)
    assert config.pivot.process.cache_dir == f"{config.trainer.default_local_dir}/judge_answers"


@pytest.mark.parametrize("method", ["search_r1", "search_r1_grpo", "research"])
def test_a_method_that_searches_asks_the_service_of_this_machine_unless_it_is_told_otherwise(method: str) -> None:
    config = stock(f"+method={method}", "data.train_files=a.parquet")

    check_config(config, [f"+method={method}"])
    tools = yaml.safe_load(Path(config.pivot.rollout.tools).read_text())
    own = {"num_documents": 5, "form": "research", "protocol": "research"} if method == "research" else {}
    assert tools == [{"tool": "search", "url": "http://127.0.0.1:8000", **own}]
    assert shipped_settings("method", method)["pivot.rollout.parser"] == "tags"
    check_choices(chosen_groups({"method": method, "tool_format": method.removesuffix("_grpo")}, config))


def test_search_r1_is_the_released_ppo_or_grpo_and_research_the_released_grpo() -> None:
    ppo, grpo, research = (stock(f"+method={name}") for name in ("search_r1", "search_r1_grpo", "research"))

    for config in (ppo, grpo, research):
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        assert (actor.optim.lr, actor.ppo_mini_batch_size, rollout.temperature) == (1e-6, 256, 1.0)
        assert (actor.entropy_coeff, actor.clip_ratio) == (0.001, 0.2)
        assert config.algorithm.kl_ctrl.kl_coef == 0.001
    for config in (ppo, grpo):
        limits = config.pivot.rollout
        assert (limits.max_turns, limits.max_turn_tokens, limits.max_observation_tokens) == (3, 500, 500)
        assert (config.data.train_batch_size, config.data.max_prompt_length) == (512, 2048)
        assert config.actor_rollout_ref.actor.optim.lr_warmup_steps_ratio == 0.285
    algorithm, critic = ppo.algorithm, ppo.critic
    assert (algorithm.adv_estimator, algorithm.use_kl_in_reward, ppo.actor_rollout_ref.rollout.n) == ("gae", True, 1)
    assert (algorithm.gamma, algorithm.lam, ppo.actor_rollout_ref.actor.use_kl_loss) == (1.0, 1.0, False)
    assert (critic.optim.lr, critic.optim.lr_warmup_steps_ratio) == (1e-5, 0.015)
    for config in (grpo, research):
        actor = config.actor_rollout_ref.actor
        assert (config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n) == ("grpo", 5)
        assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.001, "low_var_kl")
        assert config.algorithm.use_kl_in_reward is False
    data = research.data
    assert (data.train_batch_size, data.max_prompt_length, data.max_response_length) == (256, 512, 8192)
    assert research.reward.custom_reward_function.name == "research"


def test_retool_is_the_papers_ppo_and_torl_and_zerotir_are_the_released_scripts() -> None:
    retool, torl, zerotir = (stock(f"+method={name}") for name in ("retool", "torl", "zerotir"))

    for name, config in {"retool": retool, "torl": torl, "zerotir": zerotir}.items():
        check_config(config, [f"+method={name}"])
        check_choices(chosen_groups({"method": name, "tool_format": name}, config))
        actor, function = config.actor_rollout_ref.actor, config.reward.custom_reward_function
        assert (actor.optim.lr, actor.use_kl_loss, actor.entropy_coeff) == (1e-6, False, 0)
        assert (config.algorithm.use_kl_in_reward, config.actor_rollout_ref.rollout.temperature) == (False, 1.0)
        assert (function.path, function.name) == ("pkg://verl_pivot.rewards.math_rewards", name)
        assert yaml.safe_load(Path(config.pivot.rollout.tools).read_text()) == [
            {"tool": "jupyter_code", "tell_seconds": False}
        ]
    algorithm, data = retool.algorithm, retool.data
    assert (algorithm.adv_estimator, algorithm.gamma, algorithm.lam, retool.actor_rollout_ref.rollout.n) == (
        "gae", 1.0, 1.0, 1,
    )  # fmt: skip
    assert retool.actor_rollout_ref.actor.ppo_mini_batch_size == 512
    assert data.max_prompt_length + data.max_response_length == 16_384
    assert (torl.algorithm.adv_estimator, zerotir.algorithm.adv_estimator) == ("grpo", "reinforce_plus_plus_baseline")
    for config, prompt, response, turns in ((torl, 400, 3072, 2), (zerotir, 1024, 8192, 3)):
        data, rollout = config.data, config.actor_rollout_ref.rollout
        assert (data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size, rollout.n) == (128, 128, 16)
        assert (data.max_prompt_length, data.max_response_length) == (prompt, response)
        assert config.pivot.rollout.max_turns == turns  # one run of code or two, and then the answer
    actor = zerotir.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, zerotir.pivot.rollout.max_observation_tokens) == (
        0.22, 0.28, 256,
    )  # fmt: skip


def test_the_rewards_of_searches_are_found_by_verl_with_their_numbers() -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    where = "reward.custom_reward_function"
    config = stock(
        "+method=search_r1", f"{where}.path=pkg://verl_pivot.rewards.search_rewards", f"{where}.name=search_r1_format",
        f"+{where}.reward_kwargs.form=0.4",
    )  # fmt: skip

    given = get_custom_reward_fn(config)

    record = {
        "prompt_id": "p", "stop_reason": "answered", "calls": [], "turn_tokens": [9], "prompt_tokens": 9,
        "response_tokens": 9, "generate_seconds": 0.0, "tool_seconds": 0.0,
    }  # fmt: skip
    text = "<think>so</think><answer>Lyon</answer>"
    assert given is not None
    assert given("nq", text, {"target": ["Paris"]}, {"rollout": record}) == 0.4
    assert get_custom_reward_fn(stock("+method=research")) is not None


def test_the_defaults_of_the_process_rewards_are_those_of_their_config() -> None:
    config = stock("+method=ppr", *JUDGE)

    settings = parse_process(config)

    given = {"base_url": "http://judge:1/v1", "model": "j", "principles": settings.principles}
    assert settings == ProcessSettings(**given, cache_dir=settings.cache_dir)
    assert set(config.pivot.process) == set(ProcessSettings.model_fields)


JUDGE = ("pivot.process.base_url=http://judge:1/v1", "pivot.process.model=j")


RULER_JUDGE = ("pivot.ruler.base_url=http://judge:1/v1", "pivot.ruler.model=j")


def test_mcp_rl_is_the_released_notebooks_grpo_over_rollouts_that_a_judge_compares() -> None:
    config = stock("+method=mcp_rl", "data.train_files=a.parquet", *RULER_JUDGE)

    check_config(config, ["+method=mcp_rl"])
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.algorithm.adv_estimator, rollout.n, config.data.train_batch_size) == ("grpo", 4, 2)
    assert (actor.ppo_mini_batch_size, actor.optim.lr, config.pivot.rollout.max_turns) == (2, 1e-5, 10)
    settings = parse_ruler(config)
    assert settings == RulerSettings(base_url="http://judge:1/v1", model="j", cache_dir=settings.cache_dir)
    assert settings.cache_dir == f"{config.trainer.default_local_dir}/judge_answers"
    assert set(config.pivot.ruler) == set(RulerSettings.model_fields)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (RULER_JUDGE[1:], "pivot.ruler: pivot.ruler.base_url is missing: set it to the value for the judge's OpenAI-"),
        (RULER_JUDGE[:1], "pivot.ruler: pivot.ruler.model is missing: set it to the value for the judge"),
        (("pivot.ruler.base_url=judge:1", RULER_JUDGE[1]), "pivot.ruler.base_url=judge:1: give it as http://"),
        ((*RULER_JUDGE, "actor_rollout_ref.rollout.n=1"), "actor_rollout_ref.rollout.n=1 gives groups of one rollout"),
        ((*RULER_JUDGE, "pivot.ruler.wait_seconds=60"), "pivot.ruler.wait_seconds=60 is less than pivot.rollout.max_"),
        ((*RULER_JUDGE, "pivot.ruler.wait_seconds=inf"), "pivot.ruler.wait_seconds: Input should be a finite number"),
        ((*RULER_JUDGE, "pivot.ruler.rubric=''"), "pivot.ruler.rubric: String should have at least 1 character"),
        ((*RULER_JUDGE, "pivot.ruler.api_key_variable=NO_KEY"), "pivot.ruler.api_key_variable=NO_KEY: the"),
        ((*RULER_JUDGE, "+pivot.ruler.mode=mean"), "pivot.ruler.mode: unknown key; known: answer_format, api_key_v"),
        (
            (
                *(*RULER_JUDGE, "pivot.ruler.max_question_tokens=8192"),
                *("actor_rollout_ref.rollout.n=16", "pivot.rollout.max_turns=20"),
            ),
            "pivot.ruler.max_question_tokens=8192 is too low for questions about 16 rollouts of "
            "pivot.rollout.max_turns=20 turns: raise it to 21760 or more",
        ),
        (
            (
                *(*RULER_JUDGE, "pivot.ruler.max_question_tokens=3200"),
                "actor_rollout_ref.rollout.val_kwargs.n=5",
            ),
            "pivot.ruler.max_question_tokens=3200 is too low for questions about 5 rollouts of pivot.rollout.max_turns",
        ),
    ],
)
def test_a_group_that_could_not_be_compared_stops_the_launch(overrides: tuple[str, ...], message: str) -> None:
    config = stock("+method=mcp_rl", "data.train_files=a.parquet", *overrides)

    with pytest.raises(ConfigError) as caught:
        check_config(config, ["+method=mcp_rl"])

    assert str(caught.value).startswith(message)


RUBRIC_JUDGE = ("pivot.rubrics.base_url=http://judge:1/v1", "pivot.rubrics.model=j")


def test_rubrics_is_rler_with_the_released_buffer_of_five_and_the_score_by_criteria_as_the_reward() -> None:
    config = stock("+method=rubrics", "data.train_files=a.parquet", *RUBRIC_JUDGE)

    check_config(config, ["+method=rubrics"])
    settings = parse_rubrics(config)
    assert settings == RubricSettings(base_url="http://judge:1/v1", model="j", cache_dir=settings.cache_dir)
    assert (settings.max_active, settings.scale, settings.evolve, settings.strictness) == (5, "dr_tulu", True, None)
    assert (config.algorithm.adv_estimator, config.pivot.rewards) == ("grpo", "rubric")
    assert set(config.pivot.rubrics) == set(RubricSettings.model_fields)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (RUBRIC_JUDGE[1:], "pivot.rubrics: pivot.rubrics.base_url is missing: set it to the value for the judge"),
        (
            (*RUBRIC_JUDGE, "actor_rollout_ref.rollout.n=1"),
            "actor_rollout_ref.rollout.n=1 gives groups of one rollout, but pivot.rubrics.evolve",
        ),
        ((*RUBRIC_JUDGE, "pivot.rubrics.wait_seconds=60"), "pivot.rubrics.wait_seconds=60 is less than pivot.rollout."),
        (
            (*RUBRIC_JUDGE, "pivot.rubrics.scale=overall"),
            "pivot.rubrics: evolve needs points for each criterion, which",
        ),
        (
            (*RUBRIC_JUDGE, "pivot.rubrics.max_question_tokens=319"),
            "pivot.rubrics.max_question_tokens=319 is too low for questions about 8 reports: raise it to 320 or more",
        ),
        ((*RUBRIC_JUDGE, "pivot.rubrics.scale=binary"), "pivot.rubrics: evolve adds criteria of weight -1, with which"),
        ((*RUBRIC_JUDGE, "pivot.rubrics.strictness=[9,3]"), "pivot.rubrics: strictness must be the first step and a"),
        ((*RUBRIC_JUDGE, "pivot.rewards=null"), "pivot.rewards=null gives no reward for the scores of pivot.rubrics"),
        ((*RUBRIC_JUDGE, "pivot.rewards=course"), "pivot.rewards=course has no term with the value rubric, so the"),
        ((*RUBRIC_JUDGE, "pivot.rewards=coarse"), "pivot.rewards=coarse: there is no such file"),
        (
            (*RUBRIC_JUDGE, "+ray_kwargs.ray_init.address=ray://a:1"),
            "pivot.rubrics.evolve keeps criteria beside the ch",
        ),
    ],
)
def test_rubrics_that_could_not_be_asked_or_paid_stop_the_launch(overrides: tuple[str, ...], message: str) -> None:
    config = stock("+method=rubrics", "data.train_files=a.parquet", *overrides)

    with pytest.raises(ConfigError) as caught:
        check_config(config, ["+method=rubrics"])

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (
            "dr_tulu",
            "pivot.rewards=dr_tulu: terms.rubric has the value rubric, but the launch has no section pivot.rubrics",
        ),
        ("x.yaml", "pivot.rewards=x.yaml: there is no such file"),
    ],
)
def test_rewards_that_nobody_gives_stop_the_launch(rewards: str, message: str) -> None:
    config = stock("+method=tool_rollout", "data.train_files=a.parquet", f"pivot.rewards={rewards}")

    with pytest.raises(ConfigError) as caught:
        check_config(config, ["+method=tool_rollout"])

    assert str(caught.value).startswith(message)


def test_a_reward_by_judged_turns_needs_them_judged_and_in_validation_too(tmp_path: Path) -> None:
    (tmp_path / "sum.yaml").write_text("terms: {paid: {value: outcome}, turns: {value: process}}\n")
    rewards = f"pivot.rewards={tmp_path / 'sum.yaml'}"
    judge = ("pivot.process.base_url=http://judge:30000", "pivot.process.model=PPRM")
    config = stock("+method=ppr", "data.train_files=a.parquet", rewards, *judge)

    assert check_rewards(config) is not None
    config.pivot.process.judge_validation = False
    with pytest.raises(ConfigError, match=r"judge_validation=False leaves .* without its value process"):
        check_rewards(config)
    config.pivot.process.mode = "outcome"
    with pytest.raises(ConfigError, match=r"mode=outcome asks no judge, so that the value process of .* always be 0"):
        check_rewards(config)


def test_a_sum_that_leaves_0_to_1_is_refused_where_renorm_would_mask_the_rollouts_beyond(tmp_path: Path) -> None:
    judge = ("pivot.process.base_url=http://judge:30000", "pivot.process.model=PPRM")

    def launch(rewards: object, *overrides: str) -> str | None:
        return check_rewards(
            stock("+method=ppr", "data.train_files=a.parquet", f"pivot.rewards={rewards}", *judge, *overrides)
        )

    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    above = "terms: {task: {value: outcome}, form: {value: format, weight: 0.2}}\n"
    below = "terms: {task: {value: outcome}, turns: {value: turns, scale: max_turns, weight: -0.1, paid_on: all}}\n"
    for name, text, paid in (("above.yaml", above, "0 to 1.2"), ("below.yaml", below, "-0.1 to 0.966667")):
        path = written(name, text)
        with pytest.raises(ConfigError, match=rf"pays from {paid}, but pivot\.process\.mode=renorm takes sums in"):
            launch(path)
        assert launch(path, "pivot.process.mode=sum") is not None
        assert launch(written(f"held_{name}", f"{text}bounds: [0, 0.9]\n")) is not None
    for preset in ("course", "dimensions", "l0", "outcome", "search_r1"):
        assert launch(preset) is not None
    assert launch("search_cost", "+tool_format=search_r1") is not None
    for preset, paid in (("toolrl", "-3 to 4"), ("search_cost", "-1.4 to 1")):  # with 48 calls, one pays less than 0
        with pytest.raises(ConfigError, match=rf"pays from {paid}, but pivot\.process\.mode=renorm"):
            launch(preset)


def test_a_reward_function_of_ones_own_without_a_term_for_the_outcome_stops_the_launch() -> None:
    def launch(method: str, *overrides: str) -> DictConfig:
        return stock(f"+method={method}", "data.train_files=a.parquet", "pivot.rewards=toolrl", *overrides)

    with pytest.raises(ConfigError, match=r"^reward\.custom_reward_function\.path=mine\.py does nothing, since "):
        check_rewards(launch("tool_rollout", "reward.custom_reward_function.path=mine.py"))
    assert check_rewards(launch("search_r1")) == "pivot.rewards=toolrl: a rollout's reward is -3 at worst and 4 at best"


def test_rewards_above_0_for_failures_are_refused_where_resampling_takes_them_for_successes() -> None:
    def launch(rewards: str, *overrides: str) -> DictConfig:
        return stock("+method=grpo_roc", "data.train_files=a.parquet", f"pivot.rewards={rewards}", *overrides)

    for rewards, best in (("dimensions", "0.3"), ("l0", "0.28")):
        with pytest.raises(ConfigError, match=rf"^pivot\.rewards={rewards} pays .* whose outcome is 0 up to {best}, "):
            check_rewards(launch(rewards))
    for rewards in ("course", "outcome", "search_cost", "toolrl"):
        assert check_rewards(launch(rewards)) is not None
    for override in ("pivot.resampling.mode=farthest", "pivot.resampling.oversample=1"):
        assert check_rewards(launch("dimensions", override)) is not None


def test_comparisons_that_no_term_reads_stop_the_launch() -> None:
    judge = ("pivot.ruler.base_url=http://judge:30000", "pivot.ruler.model=strong")
    config = stock("+method=mcp_rl", "data.train_files=a.parquet", "pivot.rewards=course", *judge)

    with pytest.raises(ConfigError, match=r"^pivot\.rewards=course has no term with the value ruler, so the scores"):
        check_rewards(config)


@pytest.mark.parametrize("rewards", ["course", "outcome"])
def test_an_environments_rewards_on_turns_are_refused_beside_composed_ones(rewards: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- environment: gymnasium:FrozenLake-v1\n  reward: turns\n")
    tools = f"pivot.rollout.tools={tmp_path / 'tools.yaml'}"
    config = stock("+method=tool_rollout", "data.train_files=a.parquet", tools, f"pivot.rewards={rewards}")

    with pytest.raises(
        ConfigError, match=r"`reward: turns` cannot be used with pivot\.rewards, which pays for rollouts"
    ):
        check_config(config, ["+method=tool_rollout"])


def test_the_launch_says_the_worst_and_the_best_sum() -> None:
    config = stock("+method=tool_rollout", "data.train_files=a.parquet", "pivot.rewards=course")

    assert check_rewards(config) == "pivot.rewards=course: a rollout's reward is 0 at worst and 1 at best"


def search_tools(folder: Path, *entries: str) -> str:
    (folder / "tools.yaml").write_text("".join(f"- {entry}\n" for entry in entries) or "[]\n")
    return f"pivot.rollout.tools={folder / 'tools.yaml'}"


TALLY = "environment: tests.support.tallies:Tally"


def test_tree_search_is_grpo_with_tools_whose_rollouts_tsr_chooses(tmp_path: Path) -> None:
    config = stock("+method=tree_search", "data.train_files=a.parquet", search_tools(tmp_path, TALLY))

    check_config(config, ["+method=tree_search"])
    assert parse_tree_search(config) == TreeSearchSettings()
    assert (config.algorithm.adv_estimator, config.pivot.rollout.max_turns) == ("grpo", 10)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "pivot_tree_search"
    assert set(config.pivot.tree_search) == set(TreeSearchSettings.model_fields)


@pytest.mark.parametrize(
    ("entries", "overrides", "message"),
    [
        ((), (), "has no environment with a method `progress`, which pivot.tree_search.scored_by=progress needs"),
        (("environment: tests.tools.test_toolset:Counter",), (), "has no environment with a method `progress`"),
        ((TALLY, "tool: jupyter_code"), (), "has `- tool: jupyter_code`, which cannot be copied for each branch"),
        ((TALLY, "tool_server: {url: 'http://h:1/x'}"), (), "has `- tool_server:`, which cannot be copied"),
        ((TALLY,), ("num_candidates=1",), "num_candidates: Input should be greater than or equal to 2"),
        ((TALLY,), ("beam=0",), "beam: Input should be greater than or equal to 1"),
        ((TALLY,), ("lookahead=11",), "lookahead=11 is more than pivot.rollout.max_turns=10"),
        ((TALLY,), ("scored_by=judge",), "scored_by=judge is not offered: no judge is asked between turns"),
        ((TALLY,), ("scored_by=verifier",), "scored_by=verifier is not offered: a verifier compares one action"),
        ((TALLY,), ("scored_by=continuations",), "scored_by=continuations is not offered: set outcome, and lookahead"),
        ((TALLY,), ("scored_by=luck",), "scored_by: Input should be 'progress' or 'outcome'"),
    ],
)
def test_tools_that_could_not_be_searched_stop_the_launch(
    tmp_path: Path, entries: tuple[str, ...], overrides: tuple[str, ...], message: str
) -> None:
    chosen = [f"pivot.tree_search.{override}" for override in overrides]
    config = stock("+method=tree_search", "data.train_files=a.parquet", search_tools(tmp_path, *entries), *chosen)

    with pytest.raises(ConfigError) as caught:
        check_config(config, ["+method=tree_search"])

    assert message in str(caught.value)


def test_a_search_by_outcome_needs_a_score_and_no_progress(tmp_path: Path) -> None:
    tools = search_tools(
        tmp_path, "environment: tests.tools.test_toolset:Counter", "function: tests.support.tool_functions:add"
    )
    by_outcome = "pivot.tree_search.scored_by=outcome"

    check_config(stock("+method=tree_search", "data.train_files=a.parquet", tools, by_outcome), ["+method=tree_search"])


def test_l0_is_the_released_recipe_in_a_notebook() -> None:
    config = stock("+method=l0", "data.train_files=a.parquet")

    check_config(config, ["+method=l0"])
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.25, "token-mean")
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.001, "low_var_kl")
    assert (actor.optim.lr, actor.optim.lr_warmup_steps, actor.entropy_coeff) == (1e-6, -1, 0)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (64, 4)
    assert config.algorithm.adv_estimator == "step_reinforce_pp"
    assert parse_notebook_settings(config) == NotebookSettings()
    assert set(config.pivot.notebook) == set(NotebookSettings.model_fields)
    assert parse_resampling(config) == ResamplingSettings(group_size=4, oversample=1, equal_rewards="keep_half")
    assert config.trainer.v1.sampler.custom_sampler.name == "StepReplayBuffer"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pivot.notebook.trim=soft"], r"pivot\.notebook\.trim: Input should be 'hard' or 'oldest'"),
        (["pivot.notebook.weights.answer=-1"], r"pivot\.notebook\.weights\.answer: Input should be greater"),
        (["pivot.notebook.max_step_tokens=20000"], "max_step_tokens=20000 leaves no room for a task within"),
        (["data.max_response_length=2048"], "max_step_tokens=3072 is more than data.max_response_length=2048"),
        (
            ["actor_rollout_ref.rollout.max_model_len=8192"],
            "max_context_tokens=19456 is more than the engine's context",
        ),
    ],
)
def test_an_option_of_the_notebook_that_is_wrong_stops_the_launch(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(stock("+method=l0", *overrides), [])


@pytest.mark.parametrize(("stage", "tokens", "turns"), [(1, 8192, 10), (2, 12288, 10), (3, 12288, 15)])
def test_the_three_stages_are_the_published_ones(stage: int, tokens: int, turns: int) -> None:
    config = stock("+method=grpo_roc", f"+stage=rstar2_{stage}")

    assert (config.data.max_response_length, config.pivot.rollout.max_turns) == (tokens, turns)


def choices(*overrides: str) -> dict[str, str]:
    """{config group: option} as a launch gets them from Hydra."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides), return_hydra_config=True)
    return chosen_groups(config.hydra.runtime.choices, config)


@pytest.mark.parametrize("later", ["stage=rstar2_3", "tool_format=rstar2"])
def test_a_group_before_its_method_would_be_undone_and_is_refused(later: str) -> None:
    check_choices(choices("+method=grpo_roc", f"+{later}"))
    with pytest.raises(ConfigError, match=rf"\+{later} must come after \+method=grpo_roc, which would undo it"):
        check_choices(choices(f"+{later}", "+method=grpo_roc"))
