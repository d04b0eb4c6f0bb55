"""What a Discovery lists, asked again and again -> the nodes of a client, in step with it."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.nodes import Discovery, Listing, Node
from verl_pivot.sandbox.transport import Transport

logger = logging.getLogger(__name__)
REFRESH_SECONDS = 10.0
SHORTEST_REFRESH_SECONDS = 1.0
"""Between two questions when nodes fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """From the nodes of a client to a listing."""

    gone: tuple[Node, ...]
    new: tuple[Node, ...]


def changes(nodes: Sequence[Node], listing: Listing) -> Changes:
    """A service that is listed with another token than before is another one."""
    had = {(node.url, node.token) for node in nodes}
    return Changes(
        gone=tuple(node for node in nodes if node.url not in listing.urls or node.token != listing.token),
        new=tuple(Node(url, listing.token) for url in listing.urls if (url, listing.token) not in had),
    )


async def first_nodes(discovery: Discovery) -> list[Node]:
    """Those that are listed, once there is one.

    Raises:
        SandboxError: If the Discovery does not answer.
    """
    while not (found := changes([], await discovery.nodes()).new):  # noqa: ASYNC110  it has no event
        await asyncio.sleep(SHORTEST_REFRESH_SECONDS)
    return list(found)


class Follower:
    """Adds to and removes from `nodes`, which the client's other parts look at, until `stop`."""

    def __init__(self, discovery: Discovery, nodes: list[Node], transport: Transport) -> None:
        self._discovery = discovery
        self._nodes = nodes
        self._transport = transport
        self._trouble = asyncio.Event()
        transport.on_trouble = self._trouble.set
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._trouble.wait()
            self._trouble.clear()
            try:
                await self._refresh()
            except SandboxError as error:
                logger.warning("the sandbox's nodes stay as they are: %s", error)
            await asyncio.sleep(SHORTEST_REFRESH_SECONDS)

    async def _refresh(self) -> None:
        found = changes(self._nodes, await self._discovery.nodes())
        for node in found.gone:
            self._nodes.remove(node)
            self._transport.forget(node)
        for node in found.new:
            self._nodes.append(node)
            self._transport.watch(node)
