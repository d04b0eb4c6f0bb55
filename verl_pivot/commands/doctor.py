"""`verl-pivot doctor`: checks that this machine has what a launch needs, and prints a remedy for each failure."""

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

import typer

from verl_pivot.local.environment import activate_shims, cpu_engine_variables, has_accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""
    """What to do where the check failed."""


def examine() -> Iterator[Diagnosis]:
    """Run every check, the most basic ones first. All of them run, even after a failure."""
    yield _versions()
    if importlib.util.find_spec("verl") is None:  # a node that only runs sandboxes
        yield _sandbox()
        return
    activate_shims()
    checks: tuple[Callable[[], Diagnosis], ...] = (
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


def _versions() -> Diagnosis:
    from packaging.requirements import Requirement

    name, remedy = "versions", "install the required versions: pip install 'verl-pivot[verl]'"
    try:
        lines = [Requirement(line) for line in requires("verl-pivot") or ()]
        needed = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": "verl"})]
        wrong = [
            f"{requirement.name} {version(requirement.name)} is installed, but {requirement.specifier} is required"
            for requirement in needed
            if not requirement.specifier.contains(version(requirement.name), prereleases=True)
        ]
    except PackageNotFoundError as error:
        return Diagnosis(name=name, passed=False, detail=f"{error.name} is not installed", remedy=remedy)
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    detail = "; ".join(wrong) or f"{python}, verl {version('verl')}, verl-pivot {version('verl-pivot')}"
    return Diagnosis(name=name, passed=not wrong, detail=detail, remedy=remedy)


def plugin_is_loaded() -> bool:
    """Whether `import verl` loads our plugin into this process. A Ray worker runs this function, too."""
    import verl  # noqa: F401  for its effect
    from omegaconf import OmegaConf

    return "verl_pivot.plugin" in sys.modules and OmegaConf.has_resolver("verl_pivot.config")


def _plugin() -> Diagnosis:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    return Diagnosis(
        name="plugin in this process",
        passed=plugin_is_loaded(),
        detail=f"entry point verl.plugins, VERL_USE_EXTERNAL_PLUGINS={policy}",
        remedy="reinstall verl-pivot in this environment, and unset VERL_USE_EXTERNAL_PLUGINS or add `pivot` to it",
    )


def _hooks() -> Diagnosis:
    from verl_pivot.hooks import HOOKS

    missing = []
    for hook in HOOKS:
        try:
            with warnings.catch_warnings(action="ignore"):  # verl warns about each engine that is not installed
                hook.resolve()
        except (ImportError, AttributeError) as error:
            missing.append(f"{hook} for {hook.used_by} ({error})")
    return Diagnosis(
        name="names used from verl",
        passed=not missing,
        detail="; ".join(missing) or f"all {len(HOOKS)} found",
        remedy="install a supported version of verl: pip install 'verl-pivot[verl]'",
    )


def _configs() -> Diagnosis:
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=["+method=pivotrl"])
        detail, passed = f"+method=pivotrl selects {config.data.custom_cls.path}", True
    except HydraException as error:
        detail, passed = str(error).splitlines()[0], False
    return Diagnosis(
        name="configuration files", passed=passed, detail=detail, remedy="reinstall verl-pivot, which brings them"
    )


def _ray_worker() -> Diagnosis:
    """Check that a Ray worker loads the plugin: if only the driver does, a training fails late or silently."""
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
    return Diagnosis(name="plugin in a Ray worker", passed=loaded, detail=detail, remedy=remedy)


def _accelerator() -> Diagnosis:
    """Look for a GPU. A machine without one passes, too, since +local=cpu runs there."""
    detail = "found" if has_accelerator() else "none: add +local=cpu to a launch command to try it here"
    return Diagnosis(name="accelerator", passed=True, detail=detail)


def _sglang() -> Diagnosis:
    """Import SGLang, in another process, since the import takes seconds and changes the process."""
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
    return Diagnosis(
        name="SGLang",
        passed=run.returncode == 0,
        detail=last_line,
        remedy="on a machine with a GPU: pip install 'verl-pivot[sglang]'; on others: pip install --no-deps -r "
        "requirements/cpu.txt",
    )


def _sandbox() -> Diagnosis:
    """Run one empty program in bubblewrap, with the namespaces and the system call filter that programs get."""
    from verl_pivot.errors import ConfigError
    from verl_pivot.sandbox.bubblewrap.probe import Tier, probe
    from verl_pivot.sandbox.bubblewrap.python_view import PythonView

    name = "sandbox"
    try:
        found = probe(PythonView.of())
    except ConfigError as error:
        what, _, remedy = str(error).partition(": ")
        return Diagnosis(name=name, passed=False, detail=what, remedy=remedy)
    if found.tier <= Tier.T3:
        return Diagnosis(name=name, passed=True, detail=found.summary)
    what = "; ".join(obstacle.what for obstacle in found.obstacles)
    remedy = "; ".join(obstacle.remedy for obstacle in found.obstacles)
    return Diagnosis(name=name, passed=False, detail=f"{found.summary}: {what}", remedy=remedy)


def doctor_command() -> None:
    """Check that this machine has what a launch needs. The exit code is 1 if anything is missing.

    Example: verl-pivot doctor
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    num_failures = 0
    with console.status("checking ..."):
        for diagnosis in examine():
            mark = "[green]ok  [/green]" if diagnosis.passed else "[red]FAIL[/red]"
            console.print(f"{mark} {diagnosis.name}: {escape(diagnosis.detail)}")
            if not diagnosis.passed:
                num_failures += 1
                console.print(f"     remedy: {escape(diagnosis.remedy)}")
    if num_failures:
        raise typer.Exit(1)
