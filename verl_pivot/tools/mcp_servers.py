"""MCP server -> Tools: sessions per trajectory or shared, calls retried where that is harmless, failures masked."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.extras import extra
from verl_pivot.loop_local import LoopLocal
from verl_pivot.tools.contract import CallPolicy, Observation, OnTimeout, Tool, ToolError
from verl_pivot.tools.mcp_connection import McpConnection
from verl_pivot.tools.mcp_entries import McpEntry, SessionRule
from verl_pivot.tools.mcp_results import result_text
from verl_pivot.tools.mcp_schemas import OfferedTool, offered_tools
from verl_pivot.tools.mcp_session import ArgumentsRefusedError, McpSession, McpStartError, McpTimeoutError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject

with extra("mcp"):
    from mcp_types import CallToolResult
    from mcp_types import Tool as ListedTool

logger = logging.getLogger(__name__)

_CALM_SECONDS = 1.0
"""Seconds to wait before replacements are started, so that they do not slow trajectories that begin together."""


class McpServer:
    """The server of one entry of a tools file, whose tools are listed once per process."""

    def __init__(self, entry: McpEntry) -> None:
        """Start the server, list its tools, and stop it.

        Raises:
            ConfigError: If it does not start, or its tools cannot be used; the message names the server.
        """
        self.entry = entry
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this thread
            self.offered = thread.submit(asyncio.run, _listed(entry)).result()
        self.tools: list[Tool] = [McpTool(self, offered) for offered in self.offered]
        self._output_validators: dict[str, Any] = {}
        self._of_loop = LoopLocal(partial(_WorkerSessions, self))

    def check_row(self, metadata: JsonObject) -> None:
        """Refuse a row from whose metadata no session can start.

        Raises:
            DataError: If a value is missing or wrong; the message names the server and the value.
        """
        try:
            self.entry.check_row(metadata)
        except DataError as error:
            raise DataError(f"MCP server {self.entry.label}: {error}") from error

    def start_session(self, metadata: JsonObject) -> McpSession:
        """Begin a session from a row's metadata, whose tools must be those that were listed at the launch."""
        entry = self.entry
        return McpSession(
            McpConnection(entry, metadata),
            label=entry.label,
            start_seconds=entry.start_seconds,
            choose=self._same_tools,
            output_validators=self._output_validators,
        )

    def _same_tools(self, listed: list[ListedTool]) -> list[OfferedTool]:
        tools = offered_tools(listed, only=self.entry.only, prefix=self.entry.prefix)
        if tools != self.offered:
            raise ConfigError(
                "its tools have changed since they were listed at the launch, but the prompt must stay the same"
            )
        return tools

    @asynccontextmanager
    async def opened(self, workspace: Workspace) -> AsyncIterator[None]:
        """Hold the session of one trajectory; a session of its own is started here and closed at the end.

        Waits while `max_sessions` trajectories have sessions of their own.
        """
        sessions = await self._of_loop.get()
        if self.entry.session is SessionRule.SHARED:
            workspace.hold(self, sessions.shared)
            yield
            return
        async with sessions.room:
            of_row = partial(self.start_session, workspace.metadata)
            begin = of_row if self.entry.starts_from_row else sessions.ahead.take
            own = SessionHolder(self, begin, keeps_state=True)
            workspace.hold(self, own)
            try:
                own.start()
                yield
            finally:
                await own.close()


class SessionHolder:
    """The session that calls go to; it is replaced after a failure, unless it held the state of a trajectory."""

    def __init__(self, server: McpServer, begin: Callable[[], McpSession], *, keeps_state: bool) -> None:
        """Start without a session; `begin` makes a new one."""
        self._server, self._begin, self._keeps_state = server, begin, keeps_state
        self._session: McpSession | None = None
        self._num_writes = 0
        """Calls so far that may have changed the server's state."""
        self._turns = asyncio.Semaphore(server.entry.max_calls)

    def start(self) -> None:
        """Begin to start the session before it is needed."""
        self._session = self._begin()

    async def call(self, tool: OfferedTool, arguments: JsonObject) -> CallToolResult:
        """Call a tool, and retry once after a failure if that does no harm.

        Raises:
            ToolFailureError: If the server failed; McpTimeoutError if it did not answer in time.
            ArgumentsRefusedError: If it refuses the arguments.
        """
        async with self._turns:
            own_writes = int(not tool.is_read_only)
            self._num_writes += own_writes
            try:
                return await self._call_once(tool, arguments, own_writes)
            except ToolFailureError as error:
                if self._is_lost(own_writes) or not self._may_repeat(tool, error):
                    raise
            return await self._call_once(tool, arguments, own_writes)

    def _may_repeat(self, tool: OfferedTool, error: ToolFailureError) -> bool:
        """Whether a call that failed with this error may be retried without harm."""
        if isinstance(error, McpStartError):
            return True
        is_told = isinstance(error, McpTimeoutError) and self._server.entry.on_timeout is OnTimeout.TELL_POLICY
        return tool.may_be_repeated and not is_told

    async def _call_once(self, tool: OfferedTool, arguments: JsonObject, own_writes: int) -> CallToolResult:
        entry = self._server.entry
        session = self._usable(own_writes)
        try:
            return await session.call(tool, arguments, entry.timeout_seconds)
        except McpTimeoutError:
            if entry.on_timeout is OnTimeout.MASK:
                session.retire()
            raise
        except ToolFailureError:
            session.retire()
            raise

    def _usable(self, own_writes: int) -> McpSession:
        if self._is_lost(own_writes):
            raise ToolFailureError(
                f"MCP server {self._server.entry.label} ended, and what the trajectory had changed there is lost"
            )
        if self._session is None or self._session.is_retired:
            self.start()
        assert self._session is not None
        return self._session

    def _is_lost(self, own_writes: int) -> bool:
        """Whether the session has ended, and with it a state that calls other than the present one may have made."""
        has_ended = self._session is not None and self._session.is_retired
        return has_ended and self._keeps_state and self._num_writes > own_writes

    async def close(self) -> None:
        """End the session and wait until its process or connection is gone."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class McpTool:
    """One tool of a server."""

    policy = CallPolicy(timeout_seconds=None)  # calls have the limit of their entry, and are retried here

    def __init__(self, server: McpServer, offered: OfferedTool) -> None:
        self.schema = offered.schema
        self._server, self._offered = server, offered

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        holder = workspace.held(self._server)
        assert isinstance(holder, SessionHolder), "the tools of a rollout are entered before their calls"
        try:
            result = await holder.call(self._offered, arguments)
        except ArgumentsRefusedError as error:
            raise ToolError(str(error), ErrorKind.INVALID_ARGUMENT) from error
        except McpTimeoutError as error:
            if self._server.entry.on_timeout is OnTimeout.TELL_POLICY:
                seconds = self._server.entry.timeout_seconds
                text = f"tool {self._offered.name} did not answer within {seconds:g} s"
                raise ToolError(text, ErrorKind.TIME_LIMIT) from error
            raise
        text = result_text(result, self._server.entry.max_characters)
        if result.is_error:
            raise ToolError(text)
        return Observation(text)


class SessionsAhead:
    """Sessions that were started before a trajectory needs them; each is handed out once."""

    def __init__(self, begin: Callable[[], McpSession], number: int) -> None:
        """Start no session yet.

        Args:
            begin: Begins a session.
            number: Number of sessions to keep waiting, from the first `take` on.
        """
        self._begin, self._number = begin, number
        self._waiting: deque[McpSession] = deque()
        self._filling: asyncio.Task[None] | None = None

    def take(self) -> McpSession:
        """A waiting session, or else a new one; sessions are then started in the background to refill the queue."""
        while self._waiting:
            session = self._waiting.popleft()
            if not session.is_retired:  # its server may have ended while it waited
                break
        else:
            session = self._begin()
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())
        return session

    async def _fill(self) -> None:
        """Start sessions one after the other, since a server takes a second of a core to start."""
        await asyncio.sleep(_CALM_SECONDS)
        while len(self._waiting) < self._number:
            session = self._begin()
            self._waiting.append(session)
            try:
                await session.tools()
            except McpStartError as error:  # a trajectory that starts its own meets the error, too
                logger.warning("no session is started ahead for now: %s", error)
                return

    async def close(self) -> None:
        """End the sessions that wait."""
        if self._filling is not None:
            self._filling.cancel()
        await asyncio.gather(*(session.close() for session in self._waiting))


class _WorkerSessions:
    """Sessions and limits that the trajectories of one event loop share."""

    def __init__(self, server: McpServer) -> None:
        begin = partial(server.start_session, {})
        self.shared = SessionHolder(server, begin, keeps_state=False)
        self.ahead = SessionsAhead(begin, server.entry.started_ahead)
        self.room = asyncio.Semaphore(server.entry.max_sessions)

    async def __aenter__(self) -> "_WorkerSessions":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shared.close()
        await self.ahead.close()


async def _listed(entry: McpEntry) -> list[OfferedTool]:
    choose = partial(offered_tools, only=entry.only, prefix=entry.prefix)
    connection = McpConnection(entry, dict(entry.listed_with))
    session = McpSession(connection, label=entry.label, start_seconds=entry.start_seconds, choose=choose)
    try:
        return await session.tools()
    except McpStartError as error:
        raise ConfigError(str(error)) from error
    finally:
        await session.close()
