"""The installed packages -> diagnoses of their versions, of verl's hooks, and of plugin, configs, Ray and engines."""

import importlib
import importlib.util
import os
import shutil
import sys
import warnings
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from verl_pivot.diagnosis.background import Answer, BackgroundProgram
from verl_pivot.diagnosis.diagnosis import Diagnosis
from verl_pivot.extras import install_command
from verl_pivot.local.environment import cpu_engine_variables, has_accelerator

_LISTED = ("verl", "verl-pivot", "torch", "transformers", "ray", "sglang", "vllm", "flash-attn", "TransferQueue")
_OF_TRAINING = ("verl", "torch", "ray")
"""Modules of which a node that only runs sandboxes has none."""
_RAY_PROBE = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl_pivot.diagnosis.installation import plugin_is_loaded, ray_settings
ray.init(log_to_driver=False, logging_level="ERROR", **ray_settings())
here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
# without a CPU of its own, since those of a cluster that trains may all be taken
loaded = ray.get(ray.remote(plugin_is_loaded).options(num_cpus=0, scheduling_strategy=here).remote())
ray.shutdown()
print("with" if loaded else "without")
"""
_NO_CLUSTER = "ConnectionError: "
"""Beginning of the answer of a Ray worker where the cluster is down that it would have joined."""
ENGINES = {"sglang": "import sglang, sglang.srt.server_args", "vllm": "import vllm"}
"""{engine: its import, which fails if the engine's version does not fit that of torch or CUDA}."""


def check_versions() -> Diagnosis:
    """Check the packages of the extra `verl`, and list the versions that a bug report should name.

    Where neither verl nor torch nor Ray is installed, the packages of the extra `sandbox` are enough.
    """
    from packaging.requirements import Requirement

    trains = any(importlib.util.find_spec(module) is not None for module in _OF_TRAINING)
    extra, to_train = ("verl", "") if trains else ("sandbox", f"; to train here, {install_command('verl')}")
    remark = "" if trains else f"; verl is not installed: this node can run sandboxes, and no training{to_train}"
    lines = [Requirement(line) for line in requires("verl-pivot") or ()]
    needed = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]
    found = {requirement.name: _version(requirement.name) for requirement in needed}
    missing = [name for name, installed in found.items() if installed is None]
    wrong = [
        f"{requirement.name} {installed} is not {requirement.specifier}"
        for requirement in needed
        if (installed := found[requirement.name]) and not requirement.specifier.contains(installed, prereleases=True)
    ]
    problems = [f"not installed: {', '.join(missing)}"] * bool(missing) + wrong
    return Diagnosis(
        name="versions",
        passed=not problems,
        detail="; ".join(problems) or f"{_listed_versions()}{remark}",
        remedy=f"install what is missing: {install_command(extra)}{to_train}",
    )


def _version(name: str) -> str | None:
    """The installed version of a package, if there is one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _listed_versions() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"Python {python}", *(f"{name} {_version(name)}" for name in _LISTED if _version(name))])


def diagnose_import(module: str) -> Diagnosis:
    """Import a package that other checks need; incompatible versions raise errors of many types."""
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  a package that does not fit another may raise anything
        detail = f"cannot be imported: {_first_line(error)}"
        return Diagnosis(name=package, passed=False, detail=detail, remedy=locked_command())
    return Diagnosis(name=package, passed=True, detail="can be imported")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def locked_command() -> str:
    """The command that installs the locked versions for this machine, SGLang among them; does not need torch."""
    return f"pip install --no-deps -r requirements/{_requirements()}.txt, in a clone of verl-pivot"


def _requirements() -> str:
    """Name of the file of locked versions for this machine."""
    return "sglang" if shutil.which("nvidia-smi") else "cpu"


def plugin_is_loaded() -> bool:
    """Whether `import verl` loads our plugin into this process; also called in a Ray worker."""
    import verl  # noqa: F401  for its effect
    from omegaconf import OmegaConf

    return "verl_pivot.plugin" in sys.modules and OmegaConf.has_resolver("verl_pivot.config")


def check_plugin() -> Diagnosis:
    """Check that `import verl` finds the entry point of verl-pivot in this process."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    return Diagnosis(
        name="plugin in this process",
        passed=plugin_is_loaded(),
        detail=f"entry point verl.plugins, VERL_USE_EXTERNAL_PLUGINS={policy}",
        remedy="reinstall verl-pivot in this environment, and unset VERL_USE_EXTERNAL_PLUGINS or add `pivot` to it",
    )


def check_hook_differences() -> Diagnosis:
    """Compare the names of verl that this package uses with the installed verl."""
    from verl_pivot.hook_check import TESTED_RELEASE, describe, hook_differences, verl_version
    from verl_pivot.hooks import HOOKS

    differences = hook_differences()
    parts = sorted({part for hook in HOOKS for part in hook.needed_by})
    broken = {part for difference in differences for part in difference.hook.needed_by}
    rest = ", ".join(part for part in parts if part not in broken)
    return Diagnosis(
        name="hooks of verl",
        passed=not differences,
        detail=describe(differences, verl_version()),
        remedy=f"pip install verl=={TESTED_RELEASE}" + (f"; not affected: {rest}" if rest else ""),
    )


def check_configs() -> Diagnosis:
    """Check that the config groups of this package can be composed into verl's config."""
    from hydra import compose, initialize_config_module

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=["+method=pivotrl"])
        detail, passed = f"+method=pivotrl selects {config.data.custom_cls.path}", True
    except Exception as error:  # noqa: BLE001  Hydra, omegaconf and what they load may raise anything
        detail, passed = _first_line(error), False
    return Diagnosis(name="configs", passed=passed, detail=detail, remedy="reinstall verl-pivot: its wheel holds them")


def start_ray_worker() -> BackgroundProgram:
    """Ask a Ray worker whether it loads the plugin: if only the driver does, a training fails late or silently.

    It is a worker on this node of the cluster that a launch would join, or of a small cluster where there is none.
    """
    return BackgroundProgram(_RAY_PROBE, os.environ)


def ray_settings() -> dict[str, Any]:
    """Arguments for `ray.init`: none where it joins a cluster, or else those of a cluster of one CPU, which it starts.

    Like Ray it joins the cluster of RAY_ADDRESS, or the one of `ray start` on this machine.

    Raises:
        ConnectionError: If that cluster does not answer.
    """
    from ray._private.services import canonicalize_bootstrap_address

    from verl_pivot.workers.ray_connection import refuse_unreachable

    if "://" in os.environ.get("RAY_ADDRESS", ""):
        return {}
    found = canonicalize_bootstrap_address(None)
    if found is None:
        return {"num_cpus": 1, "include_dashboard": False}
    refuse_unreachable(found)
    return {}


def diagnose_ray_worker(answer: Answer) -> Diagnosis:
    """Diagnosis from the answer of the Ray worker."""
    loaded = answer.succeeded and answer.line == "with"
    detail = f"a worker imported verl {answer.line} our plugin" if answer.succeeded else answer.line
    address = os.environ.get("RAY_ADDRESS")
    if address and not answer.succeeded:
        remedy = f"start the Ray cluster at RAY_ADDRESS={address}, or unset RAY_ADDRESS to check only this machine"
    elif answer.line.startswith(_NO_CLUSTER):
        remedy = "start the Ray cluster of this machine again, or run `ray stop` to check only this machine"
    else:
        remedy = "install verl-pivot in the environment of the Ray workers, on every node"
    return Diagnosis(name="plugin in a Ray worker", passed=loaded, detail=detail, remedy=remedy)


def start_engines() -> dict[str, BackgroundProgram]:
    """Import each installed engine in a process of its own, since that takes seconds and changes the process."""
    environment = dict(os.environ)
    if not has_accelerator():
        environment |= cpu_engine_variables(environment)
    return {
        engine: BackgroundProgram(f"{statement}; print({engine}.__version__)", environment)
        for engine, statement in ENGINES.items()
        if importlib.util.find_spec(engine) is not None
    }


def diagnose_engines(answers: dict[str, Answer]) -> Diagnosis:
    """Diagnosis of the engines: one that can be imported is enough."""
    working = [f"{engine} {answer.line}" for engine, answer in answers.items() if answer.succeeded]
    failed = [f"{name} cannot be imported: {answer.line}" for name, answer in answers.items() if not answer.succeeded]
    or_vllm = f", or {install_command('vllm')}" if _requirements() == "sglang" else ""
    return Diagnosis(
        name="rollout engine",
        passed=bool(working),
        detail="; ".join([*working, *failed]) or "neither SGLang nor vLLM is installed",
        remedy=f"{locked_command()}{or_vllm}",
    )
