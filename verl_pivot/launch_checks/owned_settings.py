"""Settings of verl that a method owns, and a launch that sets one of them in vain -> an error with the remedy."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_pivot.configuration import configs_dir, router_file
from verl_pivot.errors import ConfigError
from verl_pivot.hooks import TOOL_METHODS
from verl_pivot.launch_checks.given_keys import given_keys
from verl_pivot.launch_checks.owned_setting import Launch, OwnedSetting, changed, is_changed, other_than
from verl_pivot.launch_checks.step_settings import STEP_SETTINGS
from verl_pivot.objective.settings import ACTION_LOSS

_PIVOTRL = "+method=pivotrl"
_GRPO_ROC = "+method=grpo_roc"
_L0 = "+method=l0"
_MCP_RL = "+method=mcp_rl"
_RUBRICS = "+method=rubrics"
_TREE_SEARCH = "+method=tree_search"
_TOOLS = tuple(f"+method={each}" for each in TOOL_METHODS)
_EVERY = (_PIVOTRL, *_TOOLS, _L0)
_ROUTER = "+router"
_TAIL = "+tail=partial"

_ACTOR = "actor_rollout_ref.actor"
_AGENT = "actor_rollout_ref.rollout.agent"
_SAMPLER = "trainer.v1.sampler"
_LOOPS_WITHOUT_MULTI_TURN = ("pivot_turn", "pivot_tools", "pivot_tree_search", "pivot_notebook", "single_turn_agent")
READ_LOW_AND_HIGH = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "clip_cov", "geo_mean", "cispo", ACTION_LOSS)
"""Policy losses that read clip_ratio_low and clip_ratio_high, and clip_ratio only where these are null."""


def check_owned_settings(config: DictConfig, parts: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse settings of verl that would do nothing, or would switch off what the method consists of.

    A setting in the user's own YAML counts like one of the command line if it differs from verl's default.

    Args:
        config: verl's whole config.
        parts: Parts of the command line that own settings: "+method=...", "+router" and "+tail=partial".
        overrides: Overrides of the command line.

    Raises:
        ConfigError: Naming the key, what would happen, and the remedy.
    """
    launch = Launch(config, given_keys(overrides))
    for setting in OWNED_SETTINGS:
        if set(setting.parts) & set(parts) and (key := setting.misused(launch, setting.key)) is not None:
            raise ConfigError(f"{key}={_written(launch.value(key))} {setting.effect}: {setting.remedy}")


def owning_parts(chosen: Mapping[str, str]) -> list[str]:
    """The parts of a launch that own settings, from {config group: chosen option}."""
    method = [f"+method={chosen['method']}"] if "method" in chosen else []
    router = [_ROUTER] if "router" in chosen else []
    tail = [f"+tail={chosen['tail']}"] if "tail" in chosen else []
    return [*method, *router, *tail]


def _multi_turn(launch: Launch, key: str) -> str | None:
    is_unread = launch.value(f"{_AGENT}.default_agent_loop") in _LOOPS_WITHOUT_MULTI_TURN
    return changed(launch, key) if is_unread else None


def _clip_ratio(launch: Launch, key: str) -> str | None:
    clip, low, high = (launch.value(f"{key}{end}") for end in ("", "_low", "_high"))
    is_read = low is None or high is None or launch.value(f"{_ACTOR}.policy_loss.loss_mode") not in READ_LOW_AND_HIGH
    is_set = key in launch.given or is_changed(launch, key)
    return key if is_set and not is_read and not clip == low == high else None


def _reward_model(launch: Launch, key: str) -> str | None:
    model, function = launch.value(key), launch.value("reward.custom_reward_function.path")
    return f"{key}.enable" if model.enable and not (function and model.enable_resource_pool) else None


def _first_null(*names: str) -> Callable[[Launch, str], str | None]:
    """Function for `misused` that returns the first null key with such a name in a section, or the section itself."""

    def misused(launch: Launch, key: str) -> str | None:
        keys = [f"{key}.{name}" for name in names] or [key]
        return next((each for each in keys if launch.value(each) is None), None)

    return misused


def _reward_manager(launch: Launch, key: str) -> str | None:
    return f"{key}.source" if launch.value(f"{key}.source") != "importlib" else _first_null("module.path")(launch, key)


def _agent_loops(launch: Launch, key: str) -> str | None:
    path = launch.value(key)
    if path is None:
        return key
    own = {str(entry.name) for entry in OmegaConf.load(configs_dir() / "agent_loops.yaml")}
    found = {str(entry.name) for entry in OmegaConf.load(path)} if Path(path).is_file() else own
    return None if own <= found else key


def _oversampling(launch: Launch, key: str) -> str | None:
    return key if launch.value("pivot.resampling.oversample") != 1 and launch.value(key) is None else None


def _router(launch: Launch, key: str) -> str | None:
    return None if launch.value(key) == router_file(launch.config.pivot.router) else key


def _no_later_step(launch: Launch, key: str) -> str | None:
    return key if launch.value(key) is None or launch.value(key) < 2 else None


def _extra_prompts(launch: Launch, key: str) -> str | None:
    most = launch.value(f"{_SAMPLER}.max_off_policy_threshold")
    return None if most is None or 0 < launch.value(key) <= most - 1 else key


def _use_v1(launch: Launch, key: str) -> str | None:
    return None if launch.value(key) else key


def _written(value: Any) -> str:
    """A value as it is written on a command line."""
    return "null" if value is None else str(value)


_FROM_CLASSES = "the class of this package, or your own subclass of it"
OWNED_SETTINGS = (
    OwnedSetting(
        key="algorithm.filter_groups",
        parts=_EVERY,
        effect="does nothing, since verl filters no groups where a custom sampler is set, and every method sets one",
        remedy=f"leave it out, and for groups with equal rewards set pivot.resampling.equal_rewards of {_GRPO_ROC} "
        "(with pivot.resampling.oversample=1 it is GRPO with dynamic sampling)",
        misused=changed,
    ),
    OwnedSetting(
        key=f"{_SAMPLER}.sync_refill_failed_groups",
        parts=_EVERY,
        effect="does nothing, since the method's sampler decides what happens to failed rollouts",
        remedy=f"leave it out; {_GRPO_ROC} replaces groups with too few usable rollouts",
        misused=changed,
    ),
    OwnedSetting(
        key="actor_rollout_ref.rollout.multi_turn",
        parts=(_PIVOTRL,),
        effect="does nothing, since only verl's agent loop tool_agent reads it, and the method samples one turn",
        remedy=f"leave it out; to validate on whole tasks with verl's own tools, set {_AGENT}.default_agent_loop="
        "tool_agent",
        misused=_multi_turn,
    ),
    OwnedSetting(
        key="actor_rollout_ref.rollout.multi_turn",
        parts=_TOOLS,
        effect="does nothing, since only verl's agent loop tool_agent reads it",
        remedy="leave it out, and set pivot.rollout instead: its keys tools, parser, max_turns, "
        "max_observation_tokens and parallel_calls",
        misused=_multi_turn,
    ),
    OwnedSetting(
        key="actor_rollout_ref.rollout.multi_turn",
        parts=(_L0,),
        effect="does nothing, since only verl's agent loop tool_agent reads it",
        remedy="leave it out, and set pivot.rollout.tools or pivot.notebook instead",
        misused=_multi_turn,
    ),
    OwnedSetting(
        key=f"{_ACTOR}.clip_ratio",
        parts=_EVERY,
        effect="does nothing, since the policy loss reads clip_ratio_low and clip_ratio_high where they are set",
        remedy=f"set {_ACTOR}.clip_ratio_low and {_ACTOR}.clip_ratio_high",
        misused=_clip_ratio,
    ),
    OwnedSetting(
        key="reward.reward_model",
        parts=_EVERY,
        effect="bypasses the rewards of the method: without reward.custom_reward_function.path verl uses the reward "
        "model alone, and without reward.reward_model.enable_resource_pool=True it computes them too late for the "
        "method's sampling",
        remedy="leave it out: pivots are paid by their verifier, such as `judge`, and other rows by "
        "reward.custom_reward_function; or set both",
        misused=_reward_model,
    ),
    OwnedSetting(
        key="trainer.use_v1",
        parts=_EVERY,
        effect="chooses verl's old trainer, which has neither the sampler nor the agent loop manager of the method",
        remedy="leave it out",
        misused=_use_v1,
    ),
    *(
        OwnedSetting(
            key=section,
            parts=_EVERY,
            effect="does nothing, since verl.trainer.main_ppo reads only the section `reward`",
            remedy=f"set the same key of reward.{section}{more}",
            misused=changed,
        )
        for section, more in (
            ("custom_reward_function", ""),
            ("reward_model", "; a reward manager is part of the method"),
            ("sandbox_fusion", ""),
        )
    ),
    OwnedSetting(
        key="data.custom_cls",
        parts=_EVERY,
        effect="switches off the dataset that reads pivots.parquet and checks its rows",
        remedy=f"leave it out, or name {_FROM_CLASSES}",
        misused=_first_null("path", "name"),
    ),
    OwnedSetting(
        key="reward.reward_manager",
        parts=_EVERY,
        effect="switches off the reward manager that asks verifiers and environments, and keeps undecided rollouts "
        "apart from wrong ones",
        remedy=f"leave it out, or name {_FROM_CLASSES}",
        misused=_reward_manager,
    ),
    OwnedSetting(
        key=f"{_SAMPLER}.custom_sampler",
        parts=_EVERY,
        effect="switches off the sampler that leaves undecided rollouts out of the update, and reduces oversampled "
        "groups to rollout.n rollouts",
        remedy=f"leave it out, or name {_FROM_CLASSES}; for plain GRPO set pivot.resampling.oversample=1",
        misused=_first_null("path", "name"),
    ),
    OwnedSetting(
        key=f"{_AGENT}.agent_loop_config_path",
        parts=_EVERY,
        effect="removes the method's agent loops",
        remedy="leave it out, or add the entries of configs/agent_loops.yaml to your file",
        misused=_agent_loops,
    ),
    OwnedSetting(
        key=f"{_AGENT}.agent_loop_manager_class",
        parts=(_GRPO_ROC,),
        effect="switches off oversampling: no more rollouts are generated than the update uses",
        remedy="leave it out, or set pivot.resampling.oversample=1",
        misused=_oversampling,
    ),
    OwnedSetting(
        key=f"{_AGENT}.agent_loop_manager_class",
        parts=tuple(each for each in _TOOLS if each != _GRPO_ROC),
        effect="switches off the manager that marks validation prompts and writes workflows into prompts",
        remedy=f"leave it out, or name {_FROM_CLASSES}",
        misused=_first_null(),
    ),
    OwnedSetting(
        key=f"{_AGENT}.default_agent_loop",
        parts=(_TREE_SEARCH,),
        effect="chooses an agent loop that plays the first sampled turn instead of searching among several",
        remedy="leave it out, or register your own agent loop that searches under the name pivot_tree_search",
        misused=other_than("pivot_tree_search"),
    ),
    OwnedSetting(
        key=f"{_AGENT}.default_agent_loop",
        parts=(_MCP_RL,),
        effect="chooses an agent loop that does not wait for the other rollouts of its prompt, which the method "
        "compares",
        remedy="leave it out, or register your own agent loop that does this under the name pivot_tools",
        misused=other_than("pivot_tools"),
    ),
    OwnedSetting(
        key=f"{_AGENT}.default_agent_loop",
        parts=(_RUBRICS,),
        effect="chooses an agent loop that does not get the judge's rubric scores, which the method uses as rewards",
        remedy="leave it out, or register your own agent loop that does this under the name pivot_tools",
        misused=other_than("pivot_tools"),
    ),
    OwnedSetting(
        key=f"{_AGENT}.default_agent_loop",
        parts=(_GRPO_ROC,),
        effect="chooses an agent loop that keeps no record of a rollout's calls, which the method needs for resampling",
        remedy="leave it out, or register your own agent loop that writes these records under the name pivot_tools",
        misused=other_than("pivot_tools"),
    ),
    OwnedSetting(
        key="actor_rollout_ref.rollout.router_config_path",
        parts=(_ROUTER,),
        effect="switches off +router and pivot.router",
        remedy="leave it out, or leave out +router",
        misused=_router,
    ),
    OwnedSetting(
        key="trainer.v1.trainer_mode",
        parts=(_TAIL,),
        effect=f"chooses a trainer that {_TAIL} does not set up: in mode sync no rollout continues in the next step, "
        "and in mode separate_async other engines generate while training runs",
        remedy=f"leave it out, or leave out {_TAIL}",
        misused=other_than("colocate_async"),
    ),
    OwnedSetting(
        key=f"{_SAMPLER}.max_off_policy_strategy",
        parts=(_TAIL,),
        effect="throws away groups that take too many steps, so that prompts with long responses are trained less",
        remedy="leave it out",
        misused=other_than("wait"),
    ),
    OwnedSetting(
        key=f"{_SAMPLER}.max_off_policy_threshold",
        parts=(_TAIL,),
        effect="does not limit how many steps a prompt may take, or lets no prompt continue in a later step",
        remedy="set it to 2 or more",
        misused=_no_later_step,
    ),
    OwnedSetting(
        key="trainer.v1.colocate_async.num_warmup_batches",
        parts=(_TAIL,),
        effect="leaves no rollout for a later step, or more prompts than max_off_policy_threshold steps can train",
        remedy=f"set it above 0, and to {_SAMPLER}.max_off_policy_threshold - 1 at most",
        misused=_extra_prompts,
    ),
    *STEP_SETTINGS,
)
"""Settings in the order in which they are checked."""
