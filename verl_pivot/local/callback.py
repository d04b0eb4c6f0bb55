"""Hydra callback of `+local=cpu`: sets the environment variables and verl's platform before main_ppo reads them."""

import os
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf


class CpuCallback(Callback):  # type: ignore[misc]  # hydra is untyped here
    """Callback that sets the launching process up for a CPU; Ray workers get the same variables from runtime_env."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Export the variables of Ray's runtime_env and choose the CPU platform.

        Raises:
            SystemExit: If the machine has an accelerator. Hydra turns other exceptions of a callback into warnings.
        """
        import torch

        if torch.accelerator.is_available():
            raise SystemExit(
                "verl-pivot: this machine has an accelerator, but +local=cpu is for machines without one: remove "
                "+local=cpu from the command"
            )
        variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars, resolve=True)
        assert isinstance(variables, dict), variables
        os.environ.update({str(name): str(value) for name, value in variables.items()})

        from verl.plugin.platform import set_platform

        from verl_pivot.local.platform import CpuPlatform, activate

        activate()
        set_platform(CpuPlatform())
