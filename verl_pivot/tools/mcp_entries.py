"""Entry `- mcp:` of a tools file: what a user writes, checked, and the connection that it describes."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.sandbox.bubblewrap.command_line import SERVER_FOLDER
from verl_pivot.sandbox.execution import MIB
from verl_pivot.tools.contract import OnTimeout
from verl_pivot.tools.mcp_box import boxed
from verl_pivot.tools.mcp_http import HttpSession, http_client
from verl_pivot.tools.mcp_process import ServerOutput, process_transport
from verl_pivot.validation import Options

with extra("mcp"):
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

_FOLDER = "{folder}"


class SessionRule(StrEnum):
    """Rule by which trajectories share a session with a server, or do not."""

    TRAJECTORY = "trajectory"
    """Each trajectory has a session of its own: a process, or an HTTP session."""
    SHARED = "shared"
    """All trajectories of a worker share one; for servers without state."""


class McpTarget(Options):
    """How a server is reached: exactly one of the two."""

    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program and arguments of a server that speaks on stdin and stdout; `{folder}` becomes the session's folder, in
    the sandbox /folder."""
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Address of a server that speaks streamable HTTP."""

    @model_validator(mode="after")
    def _check_one(self) -> "McpTarget":
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command: [program, argument, ...]` or `url: https://host/mcp`")
        return self


class McpEntry(Options):
    """Options of `- mcp:`."""

    mcp: McpTarget
    session: SessionRule = SessionRule.TRAJECTORY
    only: tuple[str, ...] = ()
    """Names of the tools to take, as the server gives them; none takes all."""
    prefix: str = ""
    """Put before the name of each tool, where two servers have tools of one name."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the process gets; it gets no other."""
    headers: Mapping[str, str] = {}
    """{HTTP header: name of the environment variable that holds its value}."""
    sandbox: bool = True
    """Whether the process runs inside bubblewrap; otherwise with the rights, files and network of the worker."""
    network: bool = False
    """Whether a process in the sandbox shares the machine's network."""
    show: tuple[Path, ...] = ()
    """Files and folders that a process in the sandbox can read, beside its installation and what `command` names."""
    folder_from: Path | None = None
    """Folder whose content is copied into each session's own folder; None: it is empty."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Seconds of one call."""
    start_seconds: Annotated[float, Field(gt=0.0)] = 30.0
    """Seconds in which a session must be ready."""
    on_timeout: OnTimeout = OnTimeout.MASK
    max_sessions: Annotated[int, Field(ge=1)] = 64
    """Most sessions of trajectories at once in one worker; further trajectories wait at their beginning."""
    started_ahead: Annotated[int, Field(ge=0)] = 0
    """Processes that wait in each worker, ready, for the next trajectories; at most `max_sessions` further ones run."""
    max_calls: Annotated[int, Field(ge=1)] = 32
    """Most calls at once in one session."""
    max_characters: Annotated[int, Field(ge=16)] = 16384
    """Most characters of an observation; `pivot.rollout.max_observation_tokens` limits the text further."""
    max_message_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    """Size of a message above which the session ends."""

    @model_validator(mode="after")
    def _check_used(self) -> "McpEntry":
        of_process = {"variables", "folder_from", "sandbox", "network", "show", "started_ahead"} & self.model_fields_set
        if self.mcp.url is not None and of_process:
            raise ValueError(f"{min(of_process)} does nothing for a server at a url; leave it out")
        if self.folder_from is not None and not any(_FOLDER in word for word in self.mcp.command or ()):
            raise ValueError(
                f"folder_from does nothing without {_FOLDER} in `command`; write it where the path belongs"
            )
        of_sandbox = {"network", "show"} & self.model_fields_set
        if not self.sandbox and of_sandbox:
            raise ValueError(f"{min(of_sandbox)} does nothing with `sandbox: false`; leave it out")
        if self.mcp.command is not None and self.headers:
            raise ValueError("headers do nothing for a server that is started by `command`; leave them out")
        of_trajectories = {"max_sessions", "started_ahead"} & self.model_fields_set
        if self.session is SessionRule.SHARED and of_trajectories:
            what = min(of_trajectories)
            raise ValueError(f"{what} does nothing with `session: shared`, which is one session; leave it out")
        return self

    @property
    def label(self) -> str:
        """Name of the server in messages."""
        return self.mcp.url or " ".join(self.mcp.command or ())

    @property
    def needs_own_http_session(self) -> bool:
        return self.mcp.url is not None and self.session is SessionRule.TRAJECTORY

    def check_machine(self) -> None:
        """Refuse what this machine lacks: the program, a folder, an environment variable.

        Raises:
            ConfigError: Naming it.
        """
        for name in (*self.variables, *self.headers.values()):
            if name not in os.environ:
                raise ConfigError(f"the environment variable {name} is not set; set it where the launch begins")
        if self.mcp.command is not None and shutil.which(self.mcp.command[0]) is None:
            raise ConfigError(f"the program {self.mcp.command[0]!r} was not found; install it, or give its whole path")
        if self.folder_from is not None and not self.folder_from.is_dir():
            raise ConfigError(f"folder_from: {self.folder_from} is no folder")
        for path in self.show:
            if not path.expanduser().exists():
                raise ConfigError(f"show: {path} does not exist")


class McpConnection:
    """The way to one session with the server of an entry, to be opened once."""

    def __init__(self, entry: McpEntry) -> None:
        self._entry = entry
        self._process, self._http = ServerOutput(), HttpSession()
        self._has_started = False

    def describe(self) -> str:
        """What is known of the server beside its messages, for the description of a failure."""
        if self._process.exit_code and self._entry.sandbox and not self._has_started:
            hint = "in its sandbox it reads its installation, what `command` names, and what `show` adds"
            return f"{self._process.describe()}; {hint}"
        return self._process.describe() or self._http.broken

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        """Open the session.

        Raises:
            ConfigError: If this machine lacks what the entry names, or the server gives no session of its own.
        """
        self._entry.check_machine()
        opened = self._over_http() if self._entry.mcp.command is None else self._over_process(self._entry.mcp.command)
        async with opened as client:
            yield client

    @asynccontextmanager
    async def _over_process(self, words: tuple[str, ...]) -> AsyncIterator[Client]:
        entry = self._entry
        with _session_folder(entry.folder_from) as folder:
            command, own_fds = _command(entry, words, folder)
            transport = process_transport(
                command, variables={name: os.environ[name] for name in entry.variables},
                max_bytes=entry.max_message_mib * MIB, output=self._process, own_fds=own_fds,
            )  # fmt: skip
            async with Client(transport, cache=None) as client:
                self._has_started = True
                yield client

    @asynccontextmanager
    async def _over_http(self) -> AsyncIterator[Client]:
        entry = self._entry
        assert entry.mcp.url is not None
        headers = {header: os.environ[name] for header, name in entry.headers.items()}
        max_bytes = entry.max_message_mib * MIB
        async with http_client(headers, max_bytes=max_bytes, session=self._http) as http:
            transport = streamable_http_client(entry.mcp.url, http_client=http, max_sse_event_size=max_bytes)
            # Since the protocol of 2026-07-28 a connection has no session; the handshake before it makes one.
            mode: Literal["legacy", "auto"] = "legacy" if entry.needs_own_http_session else "auto"
            async with Client(transport, mode=mode, cache=None) as client:
                if entry.needs_own_http_session and not self._http.has_session_id:
                    raise ConfigError("it gives no trajectory a session of its own; write `session: shared`")
                yield client


def _command(entry: McpEntry, words: tuple[str, ...], folder: str) -> tuple[Sequence[str | bytes], tuple[int, ...]]:
    """The command to start, and the file descriptors that were made for it."""
    place = SERVER_FOLDER if entry.sandbox else folder
    program = os.path.abspath(str(shutil.which(words[0])))
    command = [program, *(each.replace(_FOLDER, place) for each in words[1:])]
    if not entry.sandbox:
        return command, ()
    box = boxed(command, show=entry.show, folder=Path(folder), has_network=entry.network)
    return box.argv, box.own_fds


@contextmanager
def _session_folder(origin: Path | None) -> Iterator[str]:
    """The folder of one session, removed at its end."""
    with tempfile.TemporaryDirectory(prefix="verl-pivot-mcp-", ignore_cleanup_errors=True) as folder:
        if origin is not None:
            shutil.copytree(origin, folder, symlinks=True, dirs_exist_ok=True)
        yield folder
