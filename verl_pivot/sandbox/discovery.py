"""Discovery -> the list of nodes that a client uses, kept up to date while services come and go."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.nodes import Node
from verl_pivot.sandbox.transport import Transport

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
"""Seconds between two requests to a Discovery while all nodes answer."""
SHORTEST_REFRESH_SECONDS = 1.0
"""Smallest number of seconds between two requests to a Discovery, when a node fails or none is listed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Services that exist at one moment, and the token that all of them accept."""

    urls: tuple[str, ...]
    token: str = field(repr=False)


class Discovery(Protocol):
    """Source of the services that a client may use; it is asked every few seconds, and when a service fails."""

    async def nodes(self) -> Listing:
        """List the services; raises SandboxError if that is not possible now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """Difference between a client's nodes and a listing."""

    gone: tuple[Node, ...]
    """Nodes that the listing does not have."""
    new: tuple[Node, ...]
    """Nodes for the services that the client does not use yet."""


def node_changes(nodes: Sequence[Node], listing: Listing) -> NodeChanges:
    """Compare nodes with a listing; a URL that is listed with another token than before is another service."""
    known = {(node.url, node.token) for node in nodes}
    return NodeChanges(
        gone=tuple(node for node in nodes if node.url not in listing.urls or node.token != listing.token),
        new=tuple(Node(url, listing.token) for url in listing.urls if (url, listing.token) not in known),
    )


async def first_nodes(discovery: Discovery) -> list[Node]:
    """Wait until a Discovery lists a service; returns a node for each that is listed.

    Raises:
        SandboxError: If the Discovery does not answer.
    """
    while not (found := node_changes([], await discovery.nodes()).new):  # noqa: ASYNC110  a Discovery has no event
        await asyncio.sleep(SHORTEST_REFRESH_SECONDS)
    return list(found)


class NodeFollower:
    """Task that adds and removes nodes, until `stop`, in a list that all parts of the client share."""

    def __init__(self, discovery: Discovery, nodes: list[Node], transport: Transport) -> None:
        self._discovery = discovery
        self._nodes = nodes
        self._transport = transport
        self._has_trouble = asyncio.Event()
        transport.on_trouble = self._has_trouble.set
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._has_trouble.wait()
            self._has_trouble.clear()
            try:
                await self._refresh()
            except SandboxError as error:
                logger.warning("cannot refresh the list of the sandbox's nodes, so the old list stays: %s", error)
            await asyncio.sleep(SHORTEST_REFRESH_SECONDS)

    async def _refresh(self) -> None:
        found = node_changes(self._nodes, await self._discovery.nodes())
        for node in found.gone:
            self._nodes.remove(node)
            self._transport.forget(node)
        for node in found.new:
            self._nodes.append(node)
            self._transport.watch(node)
