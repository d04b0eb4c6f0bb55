"""Discovery of the services that `verl-pivot sandbox start --ray` keeps on a Ray cluster."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.sandbox.discovery import Listing
from verl_pivot.sandbox.nodes import NAME_VARIABLE

NAMESPACE = "verl-pivot-sandbox"
"""Namespace of Ray's named actors in which each sandbox's supervisor lives, under the sandbox's name."""
DEFAULT_NAME = "default"
"""Name of a sandbox that was started without a name."""
ANSWER_SECONDS = 30.0
"""Seconds that the supervisor has for one answer."""


@dataclass(frozen=True, slots=True)
class RayDiscovery:
    """Discovery that asks the supervisor of one sandbox on this process's Ray cluster."""

    name: str
    """Name of the sandbox."""

    async def nodes(self) -> Listing:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                supervisor = await asyncio.to_thread(find_supervisor, self.name)
                listing: Listing = await supervisor.listing.remote()
        except (RayError, TimeoutError) as error:
            raise SandboxError(f"the supervisor of sandbox {self.name!r} on Ray does not answer: {error!r}") from error
        return listing


def find_discovery() -> RayDiscovery | None:
    """Discovery for this process's Ray cluster; None if there is no cluster, or no sandbox was started on it.

    Raises:
        ConfigError: If VERL_PIVOT_SANDBOX_NAME names a sandbox that is not there.
    """
    if not ray.is_initialized():
        return None
    name = os.environ.get(NAME_VARIABLE, "")
    try:
        find_supervisor(name or DEFAULT_NAME)
    except SandboxError as error:
        if name:
            raise ConfigError(f"{NAME_VARIABLE} is set, but {error}") from error
        return None
    return RayDiscovery(name or DEFAULT_NAME)


def find_supervisor(name: str) -> Any:
    """Ray's handle of a sandbox's supervisor, which is a Supervisor of cluster/supervisor.py. Blocks.

    Raises:
        SandboxError: If there is none.
    """
    if not ray.is_initialized():  # else Ray would start a cluster by itself
        raise SandboxError("this process is not connected to Ray; connect it with ray.init")
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        remedy = f"start it with `verl-pivot sandbox start --ray --name {name}`"
        raise SandboxError(f"no sandbox {name!r} runs on this Ray cluster: {remedy}") from error
