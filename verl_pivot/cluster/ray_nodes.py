"""A Ray cluster -> one sandbox service on each of its nodes, kept there, and found by clients. The only user of Ray.

    Supervisor, detached, on the head node    see supervision.py; asks every service for its health
      + NodeService, one per node             ends with the supervisor or the node
        + `verl-pivot sandbox serve`          its child process; ends with it

Actors use this package as it is installed on their node.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.cluster.placement import Place
from verl_pivot.cluster.supervision import NodeService, Started, Supervisor
from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.sandbox import local_service
from verl_pivot.sandbox.nodes import NAME_VARIABLE, Listing

NAMESPACE = "verl-pivot-sandbox"
"""Of Ray's named actors; the actor's name in it is the sandbox's."""
DEFAULT_NAME = "default"
HEAD_RESOURCE = "node:__internal_head__"
"""Ray gives it to the head node alone."""
START_SECONDS = local_service.START_SECONDS + 60.0
"""Ray's worker has to start before the service does."""
STOP_SECONDS = local_service.STOP_SECONDS + 10.0
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""For one answer of the supervisor."""


@dataclass(frozen=True, slots=True)
class RayHolder:
    """A NodeService as an actor."""

    address: str
    actor: Any

    async def start(self) -> Started:
        try:
            async with asyncio.timeout(START_SECONDS):
                started: Started = await self.actor.start.remote()
        except TimeoutError as error:
            raise SandboxError(f"{self.address} did not start a service within {START_SECONDS:g} s") from error
        except RayError as error:
            raise SandboxError(f"{self.address} did not start a service: {error!r}") from error
        return started

    async def end(self) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.actor.stop.remote()
        ray.kill(self.actor)

    def abandon(self) -> None:
        ray.kill(self.actor)


class RayCluster:
    """The cluster of this process."""

    async def alive_nodes(self) -> dict[str, str]:
        nodes = await asyncio.to_thread(ray.nodes)
        return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}

    def hold(self, place: Place, arguments: tuple[str, ...], token: str) -> RayHolder:
        """On that node and no other."""
        placed = NodeAffinitySchedulingStrategy(node_id=place.node_id, soft=False)
        make = ray.remote(NodeService).options(num_cpus=0, max_restarts=0, scheduling_strategy=placed)
        return RayHolder(place.address, make.remote(place.address, arguments, token))


@dataclass(frozen=True, slots=True)
class RayDiscovery:
    """The services that a Supervisor keeps."""

    name: str

    async def nodes(self) -> Listing:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                supervisor = await asyncio.to_thread(_supervisor, self.name)
                listing: Listing = await supervisor.listing.remote()
        except (RayError, TimeoutError) as error:
            raise SandboxError(f"the supervisor of sandbox {self.name!r} on Ray does not answer: {error!r}") from error
        return listing


def find_discovery() -> RayDiscovery | None:
    """None where nobody keeps services on the cluster of this process, if it has one.

    Raises:
        ConfigError: If the environment names a sandbox that is not there.
    """
    if not ray.is_initialized():
        return None
    name = os.environ.get(NAME_VARIABLE, "")
    try:
        _supervisor(name or DEFAULT_NAME)
    except SandboxError as error:
        if name:
            raise ConfigError(f"{NAME_VARIABLE} is set, but {error}") from error
        return None
    return RayDiscovery(name or DEFAULT_NAME)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """This process is one of the cluster's, which has to exist.

    Raises:
        ConfigError: If it does not.
    """
    if address == "local":
        raise ConfigError("--address local would start a cluster that ends with this command; use auto, or host:port")
    try:
        _refuse_unreachable(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(
            f"no Ray cluster at {address!r} ({error}): start one with `ray start --head` or leave out --ray"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Raise ConnectionError at once, where ray.init would try for minutes (2.60)."""
    if address.startswith("ray://"):
        return
    found = canonicalize_bootstrap_address(address)
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{found} does not answer: {error}") from error


def start_supervisor(name: str, arguments: Sequence[str], token: str) -> None:
    """Let there be one; nodes that failed are tried again if it was there. Does not wait for the services.

    Args:
        arguments: For `verl-pivot sandbox serve` on each node.
        token: Of all services. Given here, so that a supervisor that Ray restarts has it again.

    Raises:
        ConfigError: If it was there with other arguments.
    """
    supervisor = (
        ray.remote(Supervisor)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            resources={HEAD_RESOURCE: 0.001},  # whose end is the cluster's end
        )
        .remote(RayCluster(), tuple(arguments), token)
    )
    had = _answer(name, supervisor.arguments.remote())
    if had != tuple(arguments):
        raise ConfigError(
            f"sandbox {name!r} runs with {' '.join(had) or 'no options'}, not {' '.join(arguments) or 'none'}: "
            f"`verl-pivot sandbox stop --ray --name {name}` first, or choose another --name"
        )
    _answer(name, supervisor.try_again.remote())


def places(name: str) -> list[Place]:
    """Every node that its supervisor knows of.

    Raises:
        SandboxError: If there is none, or it does not answer.
    """
    found: list[Place] = _answer(name, _supervisor(name).places.remote())
    return found


def stop_supervisor(name: str) -> None:
    """End the services, then it; raises as `places` does."""
    supervisor = _supervisor(name)
    try:
        _answer(name, supervisor.stop.remote(), STOP_SECONDS + ANSWER_SECONDS)
    finally:
        ray.kill(supervisor)
    end = time.monotonic() + ANSWER_SECONDS
    with contextlib.suppress(SandboxError):
        while time.monotonic() < end:
            _supervisor(name)
            time.sleep(0.1)


def _supervisor(name: str) -> Any:
    """Its handle; asks Ray."""
    if not ray.is_initialized():  # else Ray would start a cluster by itself
        raise SandboxError("this process is not connected to Ray any more")
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        remedy = f"start it with `verl-pivot sandbox start --ray --name {name}`"
        raise SandboxError(f"no sandbox {name!r} runs on this Ray cluster: {remedy}") from error


def _answer(name: str, reference: Any, seconds: float = ANSWER_SECONDS) -> Any:
    try:
        return ray.get(reference, timeout=seconds)
    except RayError as error:
        raise SandboxError(f"the supervisor of sandbox {name!r} on Ray does not answer: {error!r}") from error
