"""`verl-pivot doctor`: what a launch needs, checked one by one, each failure with its remedy."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

import typer
from packaging.requirements import Requirement

from verl_pivot.local.environment import activate_shims, cpu_engine_variables, has_accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Every check in the order in which one thing stands on another; a failed one does not hide the rest."""
    activate_shims()
    checks: tuple[Callable[[], Finding], ...] = (
        _versions,
        _plugin,
        _hooks,
        _configs,
        _ray_worker,
        _accelerator,
        _sglang,
        _sandbox,
    )
    for check in checks:
        yield check()


def _versions() -> Finding:
    name, remedy = "versions", "install it as requirements/cpu.txt or `pip install verl-pivot[sglang]` does"
    try:
        needed = [Requirement(line) for line in requires("verl-pivot") or () if "extra ==" not in line]
        wrong = [
            f"{requirement.name} {version(requirement.name)} is not {requirement.specifier}"
            for requirement in needed
            if not requirement.specifier.contains(version(requirement.name), prereleases=True)
        ]
    except PackageNotFoundError as error:
        return Finding(name=name, passed=False, detail=f"{error.name} is not installed", remedy=remedy)
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    detail = "; ".join(wrong) or f"{python}, verl {version('verl')}, verl-pivot {version('verl-pivot')}"
    return Finding(name=name, passed=not wrong, detail=detail, remedy=remedy)


def plugin_is_loaded() -> bool:
    """Whether `import verl` brought our plugin into this process; doctor asks a Ray worker too."""
    import verl  # noqa: F401  for its effect
    from omegaconf import OmegaConf

    return "verl_pivot.plugin" in sys.modules and OmegaConf.has_resolver("verl_pivot.config")


def _plugin() -> Finding:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    return Finding(
        name="plugin in this process",
        passed=plugin_is_loaded(),
        detail=f"entry point verl.plugins, VERL_USE_EXTERNAL_PLUGINS={policy}",
        remedy="reinstall verl-pivot in this environment, and unset VERL_USE_EXTERNAL_PLUGINS or add `pivot` to it",
    )


def _hooks() -> Finding:
    from verl_pivot.hooks import HOOKS

    missing = []
    for hook in HOOKS:
        try:
            with warnings.catch_warnings(action="ignore"):  # verl tells of each engine that is not installed
                hook.resolve()
        except (ImportError, AttributeError) as error:
            missing.append(f"{hook} for {hook.used_by} ({error})")
    return Finding(
        name="hooks of verl",
        passed=not missing,
        detail="; ".join(missing) or f"{len(HOOKS)} names found",
        remedy="install a verl in the supported range",
    )


def _configs() -> Finding:
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=["+method=pivotrl"])
        detail, passed = f"+method=pivotrl selects {config.data.custom_cls.path}", True
    except HydraException as error:
        detail, passed = str(error).splitlines()[0], False
    return Finding(name="configs", passed=passed, detail=detail, remedy="reinstall verl-pivot: its wheel holds them")


def _ray_worker() -> Finding:
    """A driver with the plugin and workers without it is the failure that nobody sees."""
    import ray

    remedy = "install verl-pivot in the environment of the Ray workers, on every node"
    try:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        loaded = ray.get(ray.remote(plugin_is_loaded).remote(), timeout=120)
        detail = "a worker imported verl with our plugin" if loaded else "a worker imported verl without our plugin"
    except (ray.exceptions.RayError, RuntimeError, OSError) as error:
        loaded, detail = False, f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        ray.shutdown()
    return Finding(name="plugin in a Ray worker", passed=loaded, detail=detail, remedy=remedy)


def _accelerator() -> Finding:
    """Never a failure: without one there is +local=cpu."""
    detail = "found" if has_accelerator() else "none: add +local=cpu to a launch command to try it here"
    return Finding(name="accelerator", passed=True, detail=detail)


def _sglang() -> Finding:
    """Asked of another process: SGLang's import takes seconds and changes its process."""
    environment = dict(os.environ)
    if not has_accelerator():
        environment |= cpu_engine_variables(environment)
    run = subprocess.run(
        [sys.executable, "-c", "import sglang, sglang.srt.server_args; print(sglang.__version__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    last_line = (run.stdout if run.returncode == 0 else run.stderr).strip().rpartition("\n")[2]
    return Finding(
        name="SGLang",
        passed=run.returncode == 0,
        detail=last_line,
        remedy="pip install verl-pivot[sglang] on a GPU machine; requirements/cpu.txt with --no-deps on another",
    )


def _sandbox() -> Finding:
    """Tried for real: bubblewrap runs one empty program, with the namespaces and the filter that programs get."""
    from verl_pivot.bubblewrap.probe import Tier, probe
    from verl_pivot.bubblewrap.python_view import PythonView
    from verl_pivot.errors import ConfigError

    name = "sandbox"
    try:
        found = probe(PythonView.of())
    except ConfigError as error:
        what, _, remedy = str(error).partition(": ")
        return Finding(name=name, passed=False, detail=what, remedy=remedy)
    if found.tier <= Tier.T3:
        return Finding(name=name, passed=True, detail=found.summary)
    what = "; ".join(obstacle.what for obstacle in found.obstacles)
    remedy = "; ".join(obstacle.remedy for obstacle in found.obstacles)
    return Finding(name=name, passed=False, detail=f"{found.summary}: {what}", remedy=remedy)


def doctor_command() -> None:
    """Check what a launch needs on this machine; exit code 1 if anything is missing.

    Example: verl-pivot doctor
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    failures = 0
    with console.status("looking ..."):
        for finding in examine():
            mark = "[green]ok  [/green]" if finding.passed else "[red]FAIL[/red]"
            console.print(f"{mark} {finding.name}: {escape(finding.detail)}")
            if not finding.passed:
                failures += 1
                console.print(f"     remedy: {escape(finding.remedy)}")
    if failures:
        raise typer.Exit(1)
