"""Hydra callback of `+local=cpu`: a launch -> a supervised one in which verl and Ray run without a GPU."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from verl_pivot.local.environment import has_accelerator
from verl_pivot.local.supervision import SupervisedProgram, fork_supervised
from verl_pivot.local.trial_report import LOG_NAME, ON_THE_CLUSTER, TrialReport
from verl_pivot.local.trial_settings import FOLDER_VARIABLE, make_trial


class CpuCallback(Callback):  # type: ignore[misc]  # hydra is untyped here
    """Callback that sets the launching process up for a CPU; Ray workers get the same variables from runtime_env."""

    def __init__(self) -> None:
        self._without_effect: list[str] = []

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the launch a trial, whatever else the command says; with `pivot.trial_steps=null` it stays as it is."""
        self._without_effect = make_trial(config, config.hydra.overrides.task)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Go on in a supervised child that is set up for the CPU, while this process reports what happens there.

        This process ends with SystemExit, since Hydra turns other exceptions of a callback into warnings.
        """
        if has_accelerator():
            raise SystemExit(
                "verl-pivot: this machine has an accelerator, but +local=cpu is for machines without one: remove "
                "+local=cpu from the command"
            )
        variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars, resolve=True)
        assert isinstance(variables, dict), variables
        folder = Path(HydraConfig.get().runtime.output_dir)
        os.environ.update({str(name): str(value) for name, value in variables.items()})
        os.environ[FOLDER_VARIABLE] = str(folder)
        log = folder / LOG_NAME
        log.touch()
        supervisor = fork_supervised(log)
        if supervisor is not None:
            print(f"{_title(config.pivot.trial_steps)}; the full log is {os.path.relpath(log)}", flush=True)
            if self._without_effect:
                print(f"ignored in a trial: {' '.join(self._without_effect)}", flush=True)
            raise SystemExit(report(supervisor, log))

        from verl.plugin.platform import set_platform

        from verl_pivot.local.platform import CpuPlatform, activate

        activate()
        set_platform(CpuPlatform())


def _title(trial_steps: int | None) -> str:
    if trial_steps is None:
        return "verl-pivot runs a training without a GPU"
    return f"verl-pivot runs a trial of {trial_steps} steps without a GPU or checkpoints"


def report(supervisor: SupervisedProgram, log: Path) -> int | str:
    """Print what happens in a launch until it ends; returns its exit code, or one line with the cause of a failure."""
    shown = os.path.relpath(log)
    began, progress = time.monotonic(), TrialReport()
    console = Console(stderr=True)
    with log.open("rb") as file, console.status("") as status:

        def tick() -> None:
            seconds = time.monotonic() - began
            status.update(Text(f"{progress.doing}: {seconds:.0f} s"))
            for said in progress.read_new(file, seconds):
                print(said, flush=True)

        try:
            code = supervisor.follow(tick)
        except SystemExit:
            status.stop()
            print("verl-pivot: the trial and all its processes were ended", file=sys.stderr)
            raise
        tick()
    seconds = time.monotonic() - began
    if code == 0:
        print(f"{seconds:5.0f} s  finished\n{ON_THE_CLUSTER}", flush=True)
        return 0
    print(f"{seconds:5.0f} s  failed; the full log is {shown}", flush=True)
    return progress.failure(code)
