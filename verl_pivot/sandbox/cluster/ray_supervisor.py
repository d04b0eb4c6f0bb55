"""A Ray cluster -> one sandbox service on each of its nodes, which clients find by the sandbox's name.

    Supervisor     detached actor on the head node; starts the services and checks their health (supervisor.py)
    NodeService    actor, one per node; ends with the supervisor or the node
    `verl-pivot sandbox serve`    child process of a NodeService; ends with it

Actors use this package as it is installed on their node.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.sandbox import local_service
from verl_pivot.sandbox.cluster.placement import ServicePlace
from verl_pivot.sandbox.cluster.supervisor import NodeService, Started, Supervisor
from verl_pivot.sandbox.ray_discovery import ANSWER_SECONDS, NAMESPACE, find_supervisor

HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to the head node alone."""
START_SECONDS = local_service.START_SECONDS + 60.0
"""Seconds that a node has to start a Ray worker and then its service."""
STOP_SECONDS = local_service.STOP_SECONDS + 10.0


@dataclass(frozen=True, slots=True)
class RayNodeService:
    """A NodeService on another node, as a Ray actor."""

    address: str
    """IP address of the node."""
    actor: Any
    """Ray's handle of the actor."""

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


class RayNodes:
    """Nodes of the Ray cluster that this process is connected to."""

    async def alive_nodes(self) -> dict[str, str]:
        nodes = await asyncio.to_thread(ray.nodes)
        return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}

    def make_service(self, place: ServicePlace, arguments: tuple[str, ...], token: str) -> RayNodeService:
        """Begin to make a NodeService on the node of `place` and on no other."""
        on_node = NodeAffinitySchedulingStrategy(node_id=place.node_id, soft=False)
        make = ray.remote(NodeService).options(num_cpus=0, max_restarts=0, scheduling_strategy=on_node)
        return RayNodeService(place.address, make.remote(place.address, arguments, token))


def start_supervisor(name: str, arguments: Sequence[str], token: str) -> None:
    """Start a sandbox's supervisor; one that runs already tries failed nodes again. Does not wait for services.

    Args:
        name: Name of the sandbox.
        arguments: Arguments of `verl-pivot sandbox serve` on each node.
        token: Token of all services, given here so that a supervisor that Ray restarts has it again.

    Raises:
        ConfigError: If the sandbox runs with other arguments.
        SandboxError: If the supervisor does not answer.
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
            resources={HEAD_RESOURCE: 0.001},  # the cluster ends with its head node
        )
        .remote(RayNodes(), tuple(arguments), token)
    )
    current = _answer(name, supervisor.arguments.remote())
    if current != tuple(arguments):
        raise ConfigError(
            f"sandbox {name!r} runs with {' '.join(current) or 'no options'}, not {' '.join(arguments) or 'none'}: "
            f"stop it first with `verl-pivot sandbox stop --ray --name {name}`, or choose another --name"
        )
    _answer(name, supervisor.try_again.remote())


def places(name: str) -> list[ServicePlace]:
    """Nodes of a sandbox with their services.

    Raises:
        SandboxError: If the sandbox has no supervisor, or it does not answer.
    """
    found: list[ServicePlace] = _answer(name, find_supervisor(name).places.remote())
    return found


def stop_supervisor(name: str) -> None:
    """End the services of a sandbox, then its supervisor; raises as `places` does."""
    supervisor = find_supervisor(name)
    try:
        _answer(name, supervisor.stop.remote(), STOP_SECONDS + ANSWER_SECONDS)
    finally:
        ray.kill(supervisor)
    end = time.monotonic() + ANSWER_SECONDS
    with contextlib.suppress(SandboxError):
        while time.monotonic() < end:
            find_supervisor(name)
            time.sleep(0.1)


def _answer(name: str, reference: Any, seconds: float = ANSWER_SECONDS) -> Any:
    try:
        return ray.get(reference, timeout=seconds)
    except RayError as error:
        raise SandboxError(f"the supervisor of sandbox {name!r} on Ray does not answer: {error!r}") from error
