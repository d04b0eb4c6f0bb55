"""McpSession: one connection to an MCP server, held open by a task of its own and closed in every case."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol

from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.extras import extra
from verl_pivot.tools.mcp_schemas import OfferedTool
from verl_pivot.types import JsonObject

with extra("mcp"):
    from mcp import Client, MCPError
    from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult
    from mcp_types import Tool as ListedTool

logger = logging.getLogger(__name__)

_MOST_PAGES = 100
"""Most pages of `tools/list` that are read, since a server may offer further pages without end."""
_CLOSE_SECONDS = 5.0
"""Seconds within which a session must have ended; an HTTP server may never confirm the end."""


class Connection(Protocol):
    """Connection for one session; it is opened once."""

    def open(self) -> AbstractAsyncContextManager[Client]:
        """The open client; entered and left in one task, as the SDK needs it."""
        ...

    def describe(self) -> str:
        """What is known about the server besides its messages; "" if nothing is."""
        ...


class McpStartError(ToolFailureError):
    """A session could not be opened; no call was made."""


class McpTimeoutError(ToolFailureError):
    """A call was not answered in time."""


class ArgumentsRefusedError(Exception):
    """The server refuses the arguments of a call to a tool that it still offers; the policy reads the text."""


class McpSession:
    """One session, in which calls may run concurrently. After `retire` it ends with its last running call."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        connection: Connection,
        *,
        label: str,
        start_seconds: float,
        choose: Callable[[list[ListedTool]], list[OfferedTool]],
        output_validators: dict[str, Any] | None = None,
    ) -> None:
        """Begin to connect.

        Args:
            connection: Connection to the server.
            label: Name of the server in messages.
            start_seconds: Seconds within which the server must be ready and have listed its tools.
            choose: Chooses the tools of a listing that the policy gets; raises ConfigError for a wrong listing.
            output_validators: {tool: compiled schema of its results}, which sessions with one server share and fill;
                None for a session that shares none.
        """
        self._connection, self._label = connection, label
        self._start_seconds, self._choose = start_seconds, choose
        self._output_validators = {} if output_validators is None else output_validators
        self._number = next(self._numbers)
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[tuple[Client, list[OfferedTool]]] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(_retrieved)
        self._num_calls = 0
        self.is_retired = False
        self._task = asyncio.create_task(self._hold())
        self._task.add_done_callback(self._on_ended)

    async def tools(self) -> list[OfferedTool]:
        """The tools that the server offered at the beginning.

        Raises:
            McpStartError: If the session could not be opened.
        """
        return (await asyncio.shield(self._ready))[1]

    async def call(self, tool: OfferedTool, arguments: JsonObject, seconds: float) -> CallToolResult:
        """Call a tool once.

        Raises:
            McpStartError: If the session could not be opened.
            ToolFailureError: If the server dies or breaks the protocol; McpTimeoutError if it does not answer in time.
            ArgumentsRefusedError: If it refuses the arguments.
        """
        client, _ = await asyncio.shield(self._ready)
        began, outcome = time.monotonic(), "failed"
        self._num_calls += 1
        try:
            result = await self._answer(client, tool, arguments, seconds)
            outcome = "refused" if result.is_error else "ok"
            return result
        finally:
            self._num_calls -= 1
            self._end_if_retired()
            spent = time.monotonic() - began
            logger.info("MCP %s, session %d: %s %s, %.3f s", self._label, self._number, tool.name, outcome, spent)

    async def _answer(self, client: Client, tool: OfferedTool, arguments: JsonObject, seconds: float) -> CallToolResult:
        calling = asyncio.ensure_future(client.session.call_tool(tool.name, arguments))
        calling.add_done_callback(_retrieved)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({calling, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise McpTimeoutError(f"{self._place(tool)} did not answer within {seconds:g} s") from error
        finally:
            calling.cancel()  # no effect on a call that is done
        if not calling.done() or calling.cancelled():
            raise ToolFailureError(f"{self._place(tool)} failed: the connection ended{self._described()}")
        try:
            return calling.result()
        except MCPError as error:
            if error.code == INVALID_PARAMS and await self._still_offers(client, tool, seconds):
                raise ArgumentsRefusedError(error.message) from error
            if error.code == CONNECTION_CLOSED:
                await self.close()  # waits for the process's exit code
            detail = f"{error.message} (code {error.code})"
            raise ToolFailureError(f"{self._place(tool)} failed: {detail}{self._described()}") from error
        except Exception as error:  # of the SDK, for a server that breaks the protocol in any way
            raise ToolFailureError(f"{self._place(tool)} broke the protocol: {_reason(error)}") from error

    async def _still_offers(self, client: Client, tool: OfferedTool, seconds: float) -> bool:
        """Whether a server that refuses the arguments still offers the tool with the schema that the policy knows."""
        try:
            async with asyncio.timeout(seconds):
                return tool in self._choose(await _list_tools(client))
        except Exception:  # noqa: BLE001  of the SDK, for a list that breaks the protocol in any way
            return False

    def retire(self) -> None:
        """Take no new calls; the session ends with its last running call."""
        self.is_retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self.is_retired and not self._num_calls:
            self._closing.set()

    async def close(self) -> None:
        """End the session and wait until its process or connection is gone."""
        self.is_retired = True
        self._closing.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})  # the task goes on if this wait is cancelled

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_seconds):
                    client = await stack.enter_async_context(self._connection.open())
                    tools = self._choose(await _list_tools(client))
                # Compiling a schema is most of the work of a session's first call; the SDK does it in each session.
                client.session._tool_output_validators = self._output_validators
                self._ready.set_result((client, tools))
                await self._closing.wait()
                asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._task.cancel)  # no effect if it has ended
        except TimeoutError as error:
            reason = f"it was not ready within {self._start_seconds:g} s (start_seconds)"
            raise McpStartError(self._sentence(reason)) from error
        except Exception as error:  # of the SDK, of the network, of a server that ended
            raise McpStartError(self._sentence(_reason(error))) from error

    def _on_ended(self, task: "asyncio.Task[None]") -> None:
        self.is_retired = True
        error = None if task.cancelled() else task.exception()
        if not self._ready.done():
            self._ready.set_exception(error or McpStartError(self._sentence("it was closed while it started")))

    def _sentence(self, reason: str) -> str:
        return f"MCP server {self._label}: {reason}{self._described()}"

    def _place(self, tool: OfferedTool) -> str:
        return f"tool {tool.name} of MCP server {self._label}"

    def _described(self) -> str:
        detail = self._connection.describe()
        return f"; {detail}" if detail else ""


async def _list_tools(client: Client) -> list[ListedTool]:
    listed: list[ListedTool] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        cursor = page.next_cursor
        if not cursor:
            return listed
    raise ConfigError(f"it lists its tools in more than {_MOST_PAGES} pages")


def _reason(error: BaseException) -> str:
    """What went wrong, from the innermost error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ConfigError | DataError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _retrieved(future: "asyncio.Future[Any]") -> None:
    """Retrieve an exception that no caller may await any more, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()
