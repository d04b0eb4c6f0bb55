"""Settings under `pivot` that some modes do not read, and a launch that sets one of them in vain -> an error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_pivot.advantages.steps import STEP_ESTIMATOR
from verl_pivot.configuration import config_groups
from verl_pivot.data.curriculum import CurriculumOptions
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.agent_loops import has_only_pivots, has_single_turns
from verl_pivot.launch_checks.given_keys import given_keys
from verl_pivot.launch_checks.groups import shipped_settings
from verl_pivot.rewards.checklist import CHECKLIST_FORMS
from verl_pivot.rewards.compose_settings import values_of_terms
from verl_pivot.rewards.process import ProcessRule
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.steps import AnswerWeights, StepWeights
from verl_pivot.rollout.settings import is_dumped, parse_settings
from verl_pivot.rollout.workflow_settings import WorkflowSettings
from verl_pivot.routing.settings import RouterSettings, parse_router
from verl_pivot.validation import Options

_NOTEBOOK = "pivot.notebook"
_RESAMPLING, _ROLLOUT, _CURRICULUM, _ROUTER = "pivot.resampling", "pivot.rollout", "pivot.curriculum", "pivot.router"
_PROCESS, _RUBRICS = "pivot.process", "pivot.rubrics"
_WORKFLOWS = "pivot.rollout.workflows"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidSetting:
    """Keys under `pivot` that do nothing beside certain other settings."""

    section: str
    names: tuple[str, ...]
    """Names of the keys in the section."""
    beside: str
    """The other settings, as the rest of a sentence "... does nothing beside"."""
    remedy: str
    """What to do, as the rest of a sentence "leave it out, or"."""
    is_void: Callable[[DictConfig], bool]
    """Whether verl's whole config has these other settings; it is called only if the section is there."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{self.section}.{name}" for name in self.names)

    def applies_to(self, config: DictConfig) -> bool:
        """Whether a launch has the section, and the other settings beside which its keys do nothing."""
        return OmegaConf.select(config, self.section) is not None and self.is_void(config)


def check_void_settings(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse settings under `pivot` that the chosen mode does not read.

    A key counts as set if the command line names it, or if its value is in no config of this package.

    Args:
        config: verl's whole config, with its interpolations.
        overrides: Overrides of the command line.

    Raises:
        ConfigError: Naming the key, the setting beside which it does nothing, and the remedy.
    """
    given = given_keys(overrides)
    for void in VOID_SETTINGS:
        for key in void.keys:
            if (key in given or _is_changed(config, key)) and void.applies_to(config):
                value = OmegaConf.select(config, key)
                written = "null" if value is None else value
                raise ConfigError(f"{key}={written} does nothing beside {void.beside}: leave it out, or {void.remedy}")


def _is_changed(config: DictConfig, key: str) -> bool:
    """Whether the key has a value that no config of this package gives it."""
    section, _, name = key.rpartition(".")
    chosen = OmegaConf.select(config, section)
    values = {} if chosen is None else OmegaConf.to_container(chosen, resolve=False)
    assert isinstance(values, dict), key
    return name in values and values[name] not in _shipped_values().get(key, [])


@cache
def _shipped_values() -> dict[str, list[Any]]:
    """{key: its values in the configs of this package}; interpolations are not resolved."""
    found: dict[str, list[Any]] = {}
    for group, options in config_groups().items():
        for option in options:
            for key, value in shipped_settings(group, option).items():
                found.setdefault(key, []).append(value)
    return found


def _draws_nothing(config: DictConfig) -> bool:
    resampling = config.pivot.resampling
    draws_rollouts = resampling.mode == "paper" and resampling.oversample != 1
    return not draws_rollouts and resampling.equal_rewards != "keep_half"


def _has_notebook(config: DictConfig) -> bool:
    return "notebook" in config.pivot


def _is_other_policy(*policies: str) -> Callable[[DictConfig], bool]:
    """Function that finds out whether a router has another routing policy than these."""
    return lambda config: _router(config).policy not in policies


def _router(config: DictConfig) -> RouterSettings:
    return parse_router(OmegaConf.to_container(config.pivot.router, resolve=True), _ROUTER)


def _is_other_mode(*modes: str) -> Callable[[DictConfig], bool]:
    """Function that finds out whether `pivot.process` has another mode than these."""
    return lambda config: str(config.pivot.process.mode) not in modes


def _has_checklist(config: DictConfig) -> bool:
    return str(config.pivot.process.form) in CHECKLIST_FORMS


_SEVERAL_TURNS = "train or validate on rows whose agent loop has several turns, such as pivot_tools"
VOID_SETTINGS = (
    VoidSetting(
        section=_RESAMPLING,
        names=("mode", "min_failures", "min_successes"),
        beside="pivot.resampling.oversample=1, which keeps every rollout of a group",
        remedy="raise pivot.resampling.oversample",
        is_void=lambda config: bool(config.pivot.resampling.oversample == 1),
    ),
    VoidSetting(
        section=_RESAMPLING,
        names=("min_failures", "min_successes"),
        beside="a pivot.resampling.mode other than released",
        remedy="set pivot.resampling.mode=released",
        is_void=lambda config: bool(config.pivot.resampling.mode != "released"),
    ),
    VoidSetting(
        section=_RESAMPLING,
        names=("seed",),
        beside="a pivot.resampling.mode other than paper or pivot.resampling.oversample=1, which choose nothing at "
        "random",
        remedy="set pivot.resampling.mode=paper with pivot.resampling.oversample above 1, or "
        "pivot.resampling.equal_rewards=keep_half, which choose at random",
        is_void=_draws_nothing,
    ),
    VoidSetting(
        section="pivot",
        names=("max_undecided_batches",),
        beside="pivot.resampling, which replaces each group that has too few decided rollouts",
        remedy="set pivot.resampling.max_gen_batches, which limits these replacements",
        is_void=lambda config: "resampling" in config.pivot,
    ),
    VoidSetting(
        section="pivot",
        names=("record",),
        beside="a launch without dumps of rollouts",
        remedy="set trainer.rollout_data_dir or trainer.validation_data_dir",
        is_void=lambda config: not is_dumped(config),
    ),
    VoidSetting(
        section=_CURRICULUM,
        names=tuple(name for name in CurriculumOptions.model_fields if name != "enabled"),
        beside="pivot.curriculum.enabled=False",
        remedy="set pivot.curriculum.enabled=True",
        is_void=lambda config: not config.pivot.curriculum.enabled,
    ),
    VoidSetting(
        section=_CURRICULUM,
        names=("reprofile_share",),
        beside="pivot.curriculum.reprofile_every=0, which never visits retired pivots",
        remedy="set pivot.curriculum.reprofile_every",
        is_void=lambda config: bool(config.pivot.curriculum.reprofile_every == 0),
    ),
    VoidSetting(
        section=_CURRICULUM,
        names=("weight_exponent",),
        beside="data.shuffle=False, which takes pivots in the order of the file",
        remedy="set data.shuffle=True",
        is_void=lambda config: not config.data.shuffle,
    ),
    VoidSetting(
        section=_ROLLOUT,
        names=("observation_role", "parallel_calls", "max_calls_per_turn"),
        beside="pivot.rollout.parser=tags, where a turn has one call and continues after its observation",
        remedy="set another parser, such as pivot.rollout.parser=hermes",
        is_void=lambda config: parse_settings(config).parser == "tags",
    ),
    VoidSetting(
        section=_ROLLOUT,
        names=(
            "observation_role",
            "observation_template",
            "parallel_calls",
            "max_observation_tokens",
            "max_calls_per_turn",
            "max_wall_seconds",
            "retry_message",
        ),
        beside="pivot.rollout.max_turns=1, which runs no call and begins no second turn",
        remedy="raise pivot.rollout.max_turns",
        is_void=lambda config: parse_settings(config).max_turns == 1,
    ),
    VoidSetting(
        section=_ROLLOUT,
        names=("format_tag",),
        beside="a method other than +method=grpo_roc without dumps of rollouts, which would show the number of tag "
        "pairs",
        remedy="set trainer.rollout_data_dir or trainer.validation_data_dir",
        is_void=lambda config: "resampling" not in config.pivot and not is_dumped(config),
    ),
    VoidSetting(
        section=_WORKFLOWS,
        names=tuple(WorkflowSettings.model_fields),
        beside="+method=l0, whose policy works in a notebook",
        remedy="use +method=tool_rollout or +method=grpo_roc, which read it",
        is_void=_has_notebook,
    ),
    VoidSetting(
        section=_WORKFLOWS,
        names=tuple(name for name in WorkflowSettings.model_fields if name not in ("file", "every_steps")),
        beside="pivot.rollout.workflows without file and every_steps, which has no workflows",
        remedy="set pivot.rollout.workflows.file or every_steps",
        is_void=lambda config: not parse_settings(config).workflows.is_on,
    ),
    VoidSetting(
        section=_WORKFLOWS,
        names=("min_score",),
        beside="pivot.rollout.workflows.every_steps=null, which makes no workflows from successes of the run",
        remedy="set pivot.rollout.workflows.every_steps",
        is_void=lambda config: parse_settings(config).workflows.every_steps is None,
    ),
    VoidSetting(
        section=_PROCESS,
        names=tuple(name for name in ProcessSettings.model_fields if name != "mode"),
        beside="pivot.process.mode=outcome, which asks no judge",
        remedy="set another pivot.process.mode",
        is_void=lambda config: bool(config.pivot.process.mode == "outcome"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=tuple(ProcessRule.model_fields),
        beside="a term of pivot.rewards with the value process, the mean of the judge's valid scores",
        remedy="leave out the term, so that each turn has a reward of its own",
        is_void=lambda config: "process" in values_of_terms(config),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("mu",),
        beside="a pivot.process.mode other than renorm",
        remedy="set pivot.process.mode=renorm",
        is_void=_is_other_mode("renorm"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("alpha",),
        beside="a pivot.process.mode other than scaled",
        remedy="set pivot.process.mode=scaled",
        is_void=_is_other_mode("scaled"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("max_added_principles", "answer_format"),
        beside="pivot.process.form=released, where the judge answers in two lines",
        remedy="set pivot.process.form=principles",
        is_void=lambda config: bool(config.pivot.process.form == "released"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("principles", "max_added_principles"),
        beside="a pivot.process.form with a checklist, which replaces the principles",
        remedy="set pivot.process.form=principles",
        is_void=_has_checklist,
    ),
    VoidSetting(
        section=_PROCESS,
        names=("answer_format",),
        beside="pivot.process.form=checklist_released, where the judge answers in lines",
        remedy="set pivot.process.form=checklist",
        is_void=lambda config: bool(config.pivot.process.form == "checklist_released"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("checklist_from", "progress_by", "samples", "best_of"),
        beside="a pivot.process.form without a checklist",
        remedy="set pivot.process.form=checklist",
        is_void=lambda config: not _has_checklist(config),
    ),
    VoidSetting(
        section=_PROCESS,
        names=("invalid",),
        beside="pivot.process.reward=gain, where a turn without a valid answer gains 0",
        remedy="set pivot.process.reward=progress",
        is_void=lambda config: bool(config.pivot.process.reward == "gain"),
    ),
    VoidSetting(
        section=_PROCESS,
        names=tuple(ProcessSettings.model_fields),
        beside="pivot.rollout.max_turns=1, where no turn is judged",
        remedy="raise pivot.rollout.max_turns",
        is_void=lambda config: parse_settings(config).max_turns == 1,
    ),
    VoidSetting(
        section=_RUBRICS,
        names=("max_active", "wait_seconds"),
        beside="pivot.rubrics.evolve=False, which uses only the criteria of the row",
        remedy="set pivot.rubrics.evolve=True",
        is_void=lambda config: not config.pivot.rubrics.evolve,
    ),
    VoidSetting(
        section=_ROLLOUT,
        names=("max_turns", "max_turn_tokens"),
        beside="+method=l0, whose notebook has limits of its own",
        remedy="set pivot.notebook.max_steps or pivot.notebook.max_step_tokens",
        is_void=_has_notebook,
    ),
    VoidSetting(
        section=_ROLLOUT,
        names=(
            "parser",
            "tags",
            "observation_role",
            "observation_template",
            "assistant_prefix",
            "answer_tag",
            "retry_message",
            "format_tag",
            "parallel_calls",
        ),
        beside="+method=l0, whose policy calls tools as functions in its code",
        remedy="use +method=tool_rollout or +method=grpo_roc, which read it",
        is_void=_has_notebook,
    ),
    VoidSetting(
        section=_NOTEBOOK,
        names=("trim_keep",),
        beside="pivot.notebook.trim=hard, which keeps no step",
        remedy="set pivot.notebook.trim=oldest",
        is_void=lambda config: bool(config.pivot.notebook.trim == "hard"),
    ),
    *(
        VoidSetting(
            section=section,
            names=names,
            beside="an algorithm.adv_estimator without steps, which rewards only the answer",
            remedy=f"set algorithm.adv_estimator={STEP_ESTIMATOR}",
            is_void=lambda config: bool(config.algorithm.adv_estimator != STEP_ESTIMATOR),
        )
        for section, names in (
            (_NOTEBOOK, ("gamma", "normalise")),
            (f"{_NOTEBOOK}.weights", tuple(StepWeights.model_fields)),
            (f"{_NOTEBOOK}.answer_weights", tuple(AnswerWeights.model_fields)),
        )
    ),
    VoidSetting(
        section=_ROUTER,
        names=("max_response_tokens",),
        beside="a pivot.router.policy that does not use the longest response",
        remedy="use +router=kv_forecast or +router=kv_admission",
        is_void=_is_other_policy("kv_forecast", "kv_admission"),
    ),
    *(
        VoidSetting(
            section=f"{_ROUTER}.{policy}",
            names=tuple(type(options).model_fields),
            beside=f"a pivot.router.policy other than {policy}",
            remedy=f"set pivot.router.policy={policy}",
            is_void=_is_other_policy(policy),
        )
        for policy, options in RouterSettings(max_response_tokens=1)
        if isinstance(options, Options)
    ),
    VoidSetting(
        section=f"{_ROUTER}.kv_forecast",
        names=("move_ratio",),
        beside="pivot.router.kv_forecast.max_moves=0",
        remedy="raise pivot.router.kv_forecast.max_moves",
        is_void=lambda config: _router(config).kv_forecast.max_moves == 0,
    ),
    VoidSetting(
        section=f"{_ROUTER}.kv_forecast",
        names=("move_ratio", "max_moves", "running_share"),
        beside="rollouts of a single turn, which never return from a tool",
        remedy=_SEVERAL_TURNS,
        is_void=has_single_turns,
    ),
    VoidSetting(
        section=f"{_ROUTER}.least_inflight",
        names=("max_sessions",),
        beside="rollouts of a single turn, which send only one request to an engine",
        remedy=_SEVERAL_TURNS,
        is_void=has_single_turns,
    ),
    VoidSetting(
        section=f"{_ROUTER}.kv_forecast",
        names=("light_block_size",),
        beside="rows that are all pivots, whose rollouts are sent to engines one by one",
        remedy=_SEVERAL_TURNS,
        is_void=has_only_pivots,
    ),
)
"""Settings that do nothing beside others, in the order in which they are checked."""
