"""Checks of a launch command: misspelt or contradictory settings stop the run before Ray starts."""

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from traceback import print_exc
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rapidfuzz.distance import OSA

from verl_pivot.browser.settings import use_browser_of
from verl_pivot.configuration import private_folder
from verl_pivot.errors import NOTE, ConfigError, PivotError
from verl_pivot.hook_check import check_hooks
from verl_pivot.launch_checks.checks import begin_states, check_launch, remember_run
from verl_pivot.launch_checks.environments import check_environment
from verl_pivot.launch_checks.gpus import check_gpus
from verl_pivot.launch_checks.groups import check_settings_of_groups, chosen_groups
from verl_pivot.launch_checks.objective import check_objective
from verl_pivot.launch_checks.owned_setting import verl_defaults
from verl_pivot.launch_checks.owned_settings import check_owned_settings, owning_parts
from verl_pivot.launch_checks.process import check_process, placement_of_rewards
from verl_pivot.launch_checks.rewards import check_rewards
from verl_pivot.launch_checks.rubrics import check_rubrics
from verl_pivot.launch_checks.ruler import check_ruler
from verl_pivot.launch_checks.sandbox_pool import check_pool
from verl_pivot.launch_checks.tree_search import check_tree_search
from verl_pivot.launch_checks.void_settings import check_void_settings
from verl_pivot.launch_checks.workflows import check_workflows
from verl_pivot.local.environment import num_accelerators
from verl_pivot.resampling.settings import parse_resampling
from verl_pivot.rollout.notebook_settings import check_notebook
from verl_pivot.rollout.settings import RolloutSettings, max_turn_tokens, parse_settings, recorded_texts
from verl_pivot.routing.settings import parse_router
from verl_pivot.tools.toolset import load_toolset

_PIVOT_KEYS = {
    "allow_other_sampling", "browser", "curriculum", "max_turn_tokens", "max_undecided_batches", "notebook",
    "objective", "process", "record", "resampling", "rewards", "rollout", "router", "rubrics", "ruler", "tree_search",
    "trial_steps", "verifier_modules",
}  # fmt: skip
_OWN_ERROR = re.compile(r"^(?:.*\): )?verl_pivot\.errors\.\w+: (.+)$", re.MULTILINE)
_WORKER = re.compile(r"\(pid=\d+, ip=([^,)]+)")
"""Text that Ray writes before the traceback of a worker."""


class LaunchCheck(Callback):  # type: ignore[misc]  # hydra is untyped here
    """Hydra callback that every method installs; raises SystemExit, since Hydra turns other errors into warnings."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        hydra = HydraConfig.get()
        try:
            check_all(config, hydra.runtime.choices, hydra.overrides.task)
        except ConfigError as error:
            raise SystemExit(f"verl-pivot: {error}") from error
        except Exception as error:  # whatever it is, Hydra would make a warning of it and start the launch unchecked
            print_exc()
            raise SystemExit(
                f"verl-pivot: the check of this launch failed, see above, so nothing was started: {error}"
            ) from error

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Print the cause of a failed launch as its last line, if the cause is an error of this package."""
        if job_return.status is not JobStatus.FAILED:
            return
        import ray

        sentence = own_sentence(job_return._return_value, ray.util.get_node_ip_address())
        if sentence is None:
            return
        ray.shutdown()  # from here on, no worker prints
        sys.stdout.flush()
        raise SystemExit(f"verl-pivot: {sentence}")


def check_all(config: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Check a launch, and record what it begins from.

    Args:
        config: verl's whole config.
        choices: {config group: chosen option} of Hydra.
        overrides: Overrides of the command line.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    chosen = chosen_groups(choices, config)
    check_hooks(chosen)
    check_settings_of_groups(config, chosen)
    check_config(config, overrides)
    check_launch(config, chosen)
    check_gpus(config, num_accelerators())
    check_owned_settings(config, owning_parts(chosen), overrides)
    check_void_settings(config, overrides)
    for sentence in (check_rewards(config), placement_of_rewards(config)):
        if sentence is not None:
            print(f"{NOTE}{sentence}")
    remember_run(config, chosen)
    begin_states(config)


def own_sentence(error: BaseException, address: str) -> str | None:
    """Message of the error of this package that ended a launch; None if another error ended it.

    Ray wraps the errors of its workers in errors of its own, whose text is the traceback. The message of a worker on
    another node begins with the address of that node, since a package or a file may be missing there.

    Args:
        error: Exception that ended the launch.
        address: IP address of this machine.
    """
    text = str(error)
    sentences = list(_OWN_ERROR.finditer(text))
    if not sentences:
        return text if isinstance(error, PivotError) else None
    nodes = _WORKER.findall(text, 0, sentences[-1].start(1))
    place = f"on {nodes[-1]}: " if nodes and nodes[-1] != address else ""
    return f"{place}{sentences[-1][1]}"


def check_config(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse unknown keys under `pivot`, additions that are misspelt keys of verl, and tools that cannot be loaded.

    Raises:
        ConfigError: Naming the key, and the key that was probably meant.
    """
    if unknown := sorted(set(config.pivot) - _PIVOT_KEYS):
        raise ConfigError(f"unknown key pivot.{unknown[0]}; known: {sorted(_PIVOT_KEYS)}")
    use_browser_of(config.pivot)
    for override in overrides:
        _check_addition(override, config)
    _check_sections(config)


def _check_sections(config: DictConfig) -> None:
    recorded_texts(config)
    if "objective" in config.pivot:
        check_objective(config)
        max_turn_tokens(config)
    if "rollout" in config.pivot:
        settings, others = parse_settings(config), {"notebook", "process", "rubrics", "ruler"} & set(config.pivot)
        if settings.environment is None:
            composed = {"rewards"} if config.pivot.get("rewards") is not None else set()
            _check_tools(settings, sorted(others | composed))
        elif others:
            raise ConfigError(
                f"pivot.{min(others)} needs the calls of a tools file, but pivot.rollout.environment drives rollouts "
                "without one: leave out pivot.rollout.environment, or choose +method=tool_rollout"
            )
        else:
            check_environment(settings.environment)
        check_workflows(config)
    _check_sampling_sections(config)


def _check_tools(settings: RolloutSettings, sections: Collection[str]) -> None:
    """Refuse a tools file that is wrong, or that does not fit the sections of `pivot` beside it."""
    toolset = load_toolset(settings.tools)
    check_pool(tools=toolset.built_in)
    for pair in settings.tags:
        toolset.check_argument(pair.tool, pair.argument)
    for section in sections:
        toolset.check_paid_once(section)


def _check_sampling_sections(config: DictConfig) -> None:
    """Refuse wrong values in the sections of `pivot` that say how rollouts are played, chosen, judged and routed."""
    if "notebook" in config.pivot:
        check_notebook(config)
    if "resampling" in config.pivot:
        parse_resampling(config)
    _check_judges(config)
    if "tree_search" in config.pivot:
        check_tree_search(config)
    if "router" in config.pivot:
        parse_router(OmegaConf.to_container(config.pivot.router, resolve=True), "pivot.router")
        private_folder()  # for the file from which verl reads these settings


def _check_judges(config: DictConfig) -> None:
    """Refuse wrong settings of judges, and of the rewards that are computed from their answers."""
    if "process" in config.pivot:
        check_process(config)
    if "ruler" in config.pivot:
        check_ruler(config)
    if "rubrics" in config.pivot:
        check_rubrics(config)
    if config.pivot.get("rewards") is not None or "rubrics" in config.pivot:
        check_rewards(config)


def _check_addition(override: str, config: DictConfig) -> None:
    """Refuse a misspelt addition, `+a.b.kye=1` where `a.b.key` exists: Hydra would add a key that nothing reads."""
    if not override.startswith("+") or "=" not in override:
        return
    parent, _, key = override.lstrip("+").partition("=")[0].rpartition(".")
    siblings = OmegaConf.select(config, parent) if parent else config
    of_verl = OmegaConf.select(verl_defaults(), parent) if parent else verl_defaults()
    is_verls = isinstance(of_verl, DictConfig) and key in of_verl
    if not isinstance(siblings, DictConfig) or _is_open(parent) or is_verls:
        return
    if meant := _nearest(key, [str(sibling) for sibling in siblings if sibling != key]):
        path = f"{parent}.{meant}" if parent else meant
        raise ConfigError(f"{override!r} adds a key that nothing reads: did you mean {path}, without the +?")


def _is_open(path: str) -> bool:
    """Whether any key may stand under this path: verl passes sections such as `ray_kwargs` on to other libraries."""
    return any(part.endswith(("_kwargs", "override_config")) for part in path.split("."))


def check_groups(arguments: Sequence[str], groups: Mapping[str, Sequence[str]], folders: Sequence[Path] = ()) -> None:
    """Refuse a misspelt config group: Hydra takes `+methd=pivotrl` for a new key and trains with verl's defaults.

    Args:
        arguments: Words of the command line.
        groups: {config group of this package: its options}.
        folders: Further folders in which Hydra looks for configs; a group of the user's own is a folder in one of them.

    Raises:
        ConfigError: Naming the group that was probably meant.
    """
    options = {option: group for group, names in groups.items() for option in names}
    for argument in arguments:
        key, _, value = argument.partition("=")
        group = key.lstrip("+")
        if not key.startswith("+") or group in groups or "." in group:
            continue
        if any((folder / group.partition("@")[0].lstrip("/")).is_dir() for folder in folders):
            continue
        meant = options.get(value) or _nearest(group, list(groups))
        if meant:
            raise ConfigError(f"{argument!r} names no config group: did you mean +{meant}={value}?")


def _nearest(key: str, known: Sequence[str]) -> str | None:
    """The known name that is at most two typing mistakes away; None if there is none, or for keys under 6 letters."""
    if len(key) < 6:
        return None
    distance, name = min(((OSA.distance(key, name), name) for name in known), default=(3, ""))
    return name if distance <= 2 else None
