"""McpConnection: entry of an MCP server and a row's metadata -> the SDK's client of one session."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.sandbox.bubblewrap.command_line import SERVER_FOLDER
from verl_pivot.sandbox.execution import MIB
from verl_pivot.tools.mcp_box import boxed
from verl_pivot.tools.mcp_entries import McpEntry
from verl_pivot.tools.mcp_http import HttpSession, http_client
from verl_pivot.tools.mcp_process import ServerOutput, process_transport
from verl_pivot.tools.row_places import filled_url, filled_word
from verl_pivot.types import JsonObject

with extra("mcp"):
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client


class McpConnection:
    """Connection for one session with the server of an entry; it is opened once."""

    def __init__(self, entry: McpEntry, metadata: JsonObject) -> None:
        """Keep what is needed to open the session.

        Args:
            entry: Entry of the server.
            metadata: Metadata of the row that the session starts from; only values with a placeholder in the entry are
                read.
        """
        self._entry, self._metadata = entry, metadata
        self._process, self._http = ServerOutput(), HttpSession()
        self._has_started = False

    def describe(self) -> str:
        """What is known about the server besides its messages, to describe a failure."""
        if self._process.exit_code and self._entry.sandbox and not self._has_started:
            hint = "in its sandbox it can read only its installation and the paths in `command` and `show`"
            return f"{self._process.describe()}; {hint}"
        return self._process.describe() or self._http.broken

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        """Open the session.

        Raises:
            ConfigError: If this machine lacks what the entry names, or the server gives no session of its own.
            DataError: If the row lacks a value for which the entry has a placeholder.
        """
        self._entry.check_machine()
        target = self._entry.mcp
        if target.command is not None:
            opened = self._over_process(target.command)
        else:
            assert target.url is not None
            opened = self._over_http(filled_url(target.url, self._metadata))
        async with opened as client:
            yield client

    @asynccontextmanager
    async def _over_process(self, words: tuple[str, ...]) -> AsyncIterator[Client]:
        entry = self._entry
        async with _session_folder(entry.copied_folder(self._metadata)) as folder:
            place = SERVER_FOLDER if entry.sandbox else folder
            variables = {name: os.environ[name] for name in entry.inherited_variables}
            variables |= entry.set_variables(self._metadata, place)
            command, own_fds = self._command(words, folder, place)
            transport = process_transport(
                command, variables=variables, max_bytes=entry.max_message_mib * MIB, output=self._process,
                own_fds=own_fds,
            )  # fmt: skip
            async with Client(transport, cache=None) as client:
                self._has_started = True
                yield client

    def _command(self, words: Sequence[str], folder: str, place: str) -> tuple[Sequence[str | bytes], tuple[int, ...]]:
        """The command to start, and the file descriptors that were made for it."""
        fill = partial(filled_word, metadata=self._metadata, folder=place)
        command = [os.path.abspath(str(shutil.which(words[0]))), *words[1:]]
        if not self._entry.sandbox:
            return [command[0], *map(fill, command[1:])], ()
        show, network = self._entry.show, self._entry.network
        box = boxed(command, fill=fill, show=show, folder=Path(folder), has_network=network)
        return box.argv, box.own_fds

    @asynccontextmanager
    async def _over_http(self, url: str) -> AsyncIterator[Client]:
        entry = self._entry
        headers = {header: os.environ[name] for header, name in entry.headers.items()}
        max_bytes = entry.max_message_mib * MIB
        async with http_client(headers, max_bytes=max_bytes, session=self._http) as http:
            transport = streamable_http_client(url, http_client=http, max_sse_event_size=max_bytes)
            # Since protocol version 2026-07-28 a connection has no session; the handshake of older versions makes one.
            mode: Literal["legacy", "auto"] = "legacy" if entry.needs_own_http_session else "auto"
            async with Client(transport, mode=mode, cache=None) as client:
                if entry.needs_own_http_session and not self._http.has_session_id:
                    raise ConfigError("the server opened no HTTP session for this trajectory; write `session: shared`")
                yield client


@asynccontextmanager
async def _session_folder(origin: Path | None) -> AsyncIterator[str]:
    """The folder of one session, removed at its end; other sessions go on meanwhile, since a server may fill it."""
    folder = tempfile.TemporaryDirectory(prefix="verl-pivot-mcp-", ignore_cleanup_errors=True)
    copying: asyncio.Future[None] | None = None
    given_up = threading.Event()
    try:
        if origin is not None:
            copying = asyncio.ensure_future(asyncio.to_thread(_copy, origin, folder.name, given_up))
            await asyncio.shield(copying)
        yield folder.name
    finally:
        given_up.set()
        await asyncio.shield(_removed(folder, copying))


class _GivenUpError(Exception):
    """The session of a folder was given up while the folder was filled."""


def _copy(origin: Path, folder: str, given_up: threading.Event) -> None:
    """Copy a folder, until it is given up: a thread cannot be cancelled."""

    def copy(source: str, target: str) -> None:
        if given_up.is_set():
            raise _GivenUpError(target)
        shutil.copy2(source, target)

    shutil.copytree(origin, folder, symlinks=True, copy_function=copy, dirs_exist_ok=True)


async def _removed(folder: "tempfile.TemporaryDirectory[str]", copying: asyncio.Future[None] | None) -> None:
    """Remove a folder, after a copy into it that still runs, which would make it again."""
    if copying is not None:
        await asyncio.wait({copying})
        if not copying.cancelled():
            copying.exception()  # retrieved, since nobody may wait for it any more
    await asyncio.to_thread(_remove, folder)


def _remove(folder: "tempfile.TemporaryDirectory[str]") -> None:
    try:
        folder.cleanup()
    except RecursionError:  # of a folder that the server made too deep for Python
        subprocess.run(["rm", "-rf", "--", folder.name], stderr=subprocess.DEVNULL, check=False)
