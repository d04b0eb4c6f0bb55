"""A launch's `pivot.rollout.environment` -> an error if its program, its server or the package verifiers is missing."""

import shutil
import subprocess

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.settings import CommandEnvironment, ForeignEnvironment, NemoGymAgent

_IS_INSTALLED = "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers') is None)"


def check_environment(environment: ForeignEnvironment) -> None:
    """Refuse an environment that cannot be started on this machine.

    Raises:
        ConfigError: With the remedy.
    """
    if isinstance(environment, CommandEnvironment):
        if shutil.which(environment.command[0]) is None:
            raise ConfigError(
                f"pivot.rollout.environment: the program {environment.command[0]!r} was not found; install it, or give "
                "its whole path"
            )
        return
    if isinstance(environment, NemoGymAgent):
        _check_agent(environment)
        return
    python = environment.python
    if shutil.which(python) is None:
        raise ConfigError(f"pivot.rollout.environment: the Python {python!r} was not found; give its whole path")
    if subprocess.run([python, "-c", _IS_INSTALLED], check=False).returncode:
        raise ConfigError(
            f"pivot.rollout.environment: {python} does not have the package verifiers; run `{python} -m pip install "
            f"verifiers`, or give another Python as pivot.rollout.environment={{verifiers: {environment.verifiers}, "
            "python: PATH}"
        )


def _check_agent(agent: NemoGymAgent) -> None:
    paths = agent.address.get("/openapi.json").get("paths")
    if not isinstance(paths, dict) or "/run" not in paths:
        raise ConfigError(
            f"{agent.address.url} has no /run; give the address of an agent server of NeMo Gym, not that of a "
            "resources server or a model"
        )
