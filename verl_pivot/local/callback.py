"""Hydra callback of `+local=cpu`: sets environment and platform before main_ppo looks at them."""

import os
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf


class CpuCallback(Callback):  # type: ignore[misc]  # hydra is untyped here
    """Makes the launching process a CPU one; Ray workers get the same variables by their runtime_env."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Export the runtime_env's variables and choose the platform; leave on a machine with an accelerator.

        By SystemExit: Hydra turns other exceptions of a callback into warnings.
        """
        import torch

        if torch.accelerator.is_available():
            raise SystemExit("verl-pivot: this machine has a GPU and +local=cpu is for those without: remove it")
        variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars, resolve=True)
        assert isinstance(variables, dict), variables
        os.environ.update({str(name): str(value) for name, value in variables.items()})

        from verl.plugin.platform import set_platform

        from verl_pivot.local.platform import CpuPlatform, activate

        activate()
        set_platform(CpuPlatform())
