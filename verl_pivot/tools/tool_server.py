"""Tool server of verl-tool -> a Tool whose argument is a whole turn; the server's state ends with the trajectory."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from urllib.parse import urlsplit
from uuid import uuid4

from pydantic import Field, field_validator

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.errors import ToolFailureError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.tools.contract import CallPolicy, Observation
from verl_pivot.tools.service_client import ServiceClient
from verl_pivot.tools.tool_server_wire import ActionBody, ObservedAnswer
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject
from verl_pivot.validation import Options

logger = logging.getLogger(__name__)

_FINISH_SECONDS = 10.0
"""Most seconds that the end of a trajectory waits for its server."""
_MAX_DETAIL = 200
"""Characters of a server's error that a message shows."""


class ToolServerAddress(Options):
    """Address of a tool server."""

    url: str
    """Address with its path, such as http://host:5000/get_observation."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/") or parts.query:
            raise ValueError(f"give an address with its path, such as http://host:5000/get_observation, got {url!r}")
        return url


class ToolServerEntry(Options):
    """Entry `- tool_server: {url: http://host:5000/get_observation}`: a tool server of verl-tool."""

    tool_server: ToolServerAddress
    name: str = "tool_server"
    """Name of the tool, to which a pair of tags in `pivot.rollout.tags` refers."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Seconds within which the server must answer an action."""


class ToolServer:
    """The server of one entry. It keeps a state for each trajectory, which `opened` ends."""

    def __init__(self, entry: ToolServerEntry) -> None:
        parts = urlsplit(entry.tool_server.url)
        self._address, self.path = f"{parts.scheme}://{parts.netloc}", parts.path
        self._timeout_seconds = entry.timeout_seconds
        self._clients = LoopLocal(self._client)
        self.tool = ActionTool(self, entry.name)

    def _client(self) -> ServiceClient:
        return ServiceClient("tool server", self._address, timeout_seconds=self._timeout_seconds)

    @asynccontextmanager
    async def opened(self, workspace: Workspace) -> AsyncIterator[None]:
        """Hold the trajectory's state on the server, which is told to drop it, however the trajectory ends."""
        played = _PlayedActions(await self._clients.get(), self.path, workspace.metadata)
        workspace.hold(self, played)
        try:
            yield
        finally:
            await played.finish()


class ActionTool:
    """The tool of a server, which gets the text of a turn unchanged and finds the actions in it."""

    policy = CallPolicy(timeout_seconds=None, in_order=True)  # the client has a limit, and an action may have been done

    def __init__(self, server: ToolServer, name: str) -> None:
        self.schema = text_schema(name, "Act by what the turn says.", {"action": "The turn."})
        self._server = server

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        played = workspace.held(self._server)
        assert isinstance(played, _PlayedActions), "the tools of a rollout are entered before their calls"
        return await played.act(str(arguments["action"]))


class _PlayedActions:
    """The actions of one trajectory."""

    def __init__(self, service: ServiceClient, path: str, metadata: JsonObject) -> None:
        self._service, self._path, self._metadata = service, path, metadata
        self._id = uuid4().hex
        self._has_acted = False

    async def act(self, action: str) -> Observation:
        """The server's observation for one turn.

        Raises:
            ToolFailureError: If the server reports a failure, or gives no valid answer.
        """
        self._has_acted = True
        answer = await self._ask(action, is_over=False)
        if not len(answer.observations) == len(answer.dones) == len(answer.valids) == 1:
            raise self._service.failure(f"answered one action with {len(answer.observations)} observations")
        found = answer.observations[0]
        if not isinstance(found, str):
            if found.error is not None:
                raise self._service.failure(f"failed: {str(found.error)[:_MAX_DETAIL]}")
            if found.image is not None or found.audio is not None:
                raise self._service.failure("answered with an image or a sound, but an observation must be text")
            found = found.obs
        end = StopReason.ENDED_BY_TOOL if answer.dones[0] else None
        return Observation(found, None if answer.valids[0] else ErrorKind.REFUSED, end=end)

    async def finish(self) -> None:
        """Tell the server that the trajectory is over, if it got any action of it."""
        if not self._has_acted:
            return
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._ask("", is_over=True)
        except (ToolFailureError, TimeoutError) as error:  # the trajectory is complete, and stays as it is
            logger.warning("the tool server may keep the state of trajectory %s: %s", self._id, error)

    async def _ask(self, action: str, *, is_over: bool) -> ObservedAnswer:
        body = ActionBody(
            trajectory_ids=[self._id], actions=[action], extra_fields=[self._metadata], finish=[is_over],
            is_last_step=[is_over],
        )  # fmt: skip
        what = "sent an answer that is not in verl-tool's format"
        return await self._service.ask(self._path, body, ObservedAnswer, what=what)
