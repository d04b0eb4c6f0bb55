"""Entry `- mcp:` of a tools file: its options, checked and filled with the values of a row."""

import os
import shutil
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.sandbox.bubblewrap.command_line import SERVER_FOLDER
from verl_pivot.tools.contract import OnTimeout
from verl_pivot.tools.row_places import (
    FOLDER,
    check_places,
    filled,
    filled_url,
    filled_word,
    row_names,
    split_at_place,
)
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options


class SessionRule(StrEnum):
    """Whether trajectories share a session with a server."""

    TRAJECTORY = "trajectory"
    """Each trajectory has a session of its own: a process, or an HTTP session."""
    SHARED = "shared"
    """All trajectories of a worker share one session; for servers without state."""


class McpTarget(Options):
    """How a server is reached: by exactly one of the two fields."""

    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program and arguments of a server that communicates over stdin and stdout. In an argument, `{folder}` is replaced
    by the session's folder (/folder in the sandbox), and `{metadata.seed}` by that value of the row."""
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Address of a server that speaks streamable HTTP; after the host, `{metadata.seed}` is replaced by that value of
    the row."""

    @model_validator(mode="after")
    def _check_one(self) -> "McpTarget":
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command: [program, argument, ...]` or `url: https://host/mcp`")
        if self.command is not None and row_names(self.command[:1]):
            raise ValueError(f"the program must not come from a row, got {self.command[0]!r}; only its arguments may")
        if self.url is not None and "{" in urlsplit(self.url).netloc:
            raise ValueError(f"the host must not come from a row, got {self.url!r}; only what follows it may")
        if self.url is not None and FOLDER in self.url:
            raise ValueError(f"{FOLDER} does nothing in a url; leave it out")
        return self


class McpEntry(Options):
    """Options of `- mcp:`."""

    mcp: McpTarget
    session: SessionRule = SessionRule.TRAJECTORY
    only: tuple[str, ...] = ()
    """Names of the tools to take, as the server gives them; if empty, all are taken."""
    prefix: str = ""
    """Text put before the name of each tool, for servers whose tools have equal names."""
    variables: tuple[Annotated[str, Field(pattern="^[^=]")], ...] = ()
    """Names of the environment variables that the process inherits, or `NAME=text`, whose text may have the
    placeholders of `command`. The process gets no other variables."""
    headers: Mapping[str, str] = {}
    """{HTTP header: name of the environment variable that holds its value}."""
    sandbox: bool = True
    """Whether the process runs inside bubblewrap; otherwise it has the rights, files and network of the worker."""
    network: bool = False
    """Whether a process in the sandbox shares the machine's network."""
    show: tuple[Path, ...] = ()
    """Files and folders that a process in the sandbox can read, besides its installation and the paths in `command`."""
    folder_from: Path | None = None
    """Folder whose content is copied into each session's own folder. Below its first folder, the path may have
    placeholders for values of the row. None: the session's folder is empty."""
    listed_with: Mapping[str, JsonValue] = {}
    """{name: value} of the placeholders when the server starts without a row, to list its tools as the file is read."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Seconds within which a call must be answered."""
    start_seconds: Annotated[float, Field(gt=0.0)] = 30.0
    """Seconds within which a session must be ready."""
    on_timeout: OnTimeout = OnTimeout.MASK
    max_sessions: Annotated[int, Field(ge=1)] = 64
    """Most sessions of trajectories at once in one worker; further trajectories wait before they begin."""
    started_ahead: Annotated[int, Field(ge=0)] = 0
    """Processes that each worker starts ahead for the next trajectories, besides the up to `max_sessions` in use."""
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
        if self.folder_from is not None and not any(FOLDER in word for word in (*self._words, *self.variables)):
            raise ValueError(
                f"folder_from does nothing without {FOLDER} in `command`; write {FOLDER} where the path belongs"
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

    @model_validator(mode="after")
    def _check_places(self) -> "McpEntry":
        for text in self._texts:
            check_places(text)
        if self.folder_from is not None and FOLDER in str(self.folder_from):
            raise ValueError(f"folder_from must not have the placeholder {FOLDER}, whose content it gives")
        if self.folder_from is not None and not split_at_place(str(self.folder_from)).path:
            raise ValueError("folder_from must begin with a folder; rows can only name folders below it")
        return self

    @model_validator(mode="after")
    def _check_row_values(self) -> "McpEntry":
        names = row_names(self._texts)
        if names and self.session is SessionRule.SHARED:
            raise ValueError(
                f"{_shown(names)} differs from row to row, but `session: shared` serves all rows; leave one out"
            )
        if names and self.started_ahead:
            raise ValueError(f"{_shown(names)} is not known before a trajectory begins; leave started_ahead out")
        if missing := names - self.listed_with.keys():
            raise ValueError(
                f"{_shown(missing)} has no value when the file is read and the server's tools are listed; write "
                f"`listed_with: {{{min(missing)}: ...}}`"
            )
        if unused := self.listed_with.keys() - names:
            raise ValueError(
                f"listed_with.{min(unused)} does nothing without the placeholder {_shown(unused)}; leave it out"
            )
        return self

    @property
    def _words(self) -> tuple[str, ...]:
        return self.mcp.command or ()

    @property
    def _texts(self) -> tuple[str, ...]:
        """Texts that may have placeholders."""
        at = (self.mcp.url,) if self.mcp.url is not None else ()
        copied = (str(self.folder_from),) if self.folder_from is not None else ()
        return (*self._words, *at, *self.variables, *copied)

    @property
    def starts_from_row(self) -> bool:
        """Whether a session starts with values of the trajectory's row."""
        return bool(row_names(self._texts))

    def check_row(self, metadata: JsonObject) -> None:
        """Refuse a row from whose metadata no session can start.

        Raises:
            DataError: If a value is missing or wrong; the message names it.
        """
        for word in self._words[1:]:
            filled_word(word, metadata, folder=SERVER_FOLDER)
        if self.mcp.url is not None:
            filled_url(self.mcp.url, metadata)
        self.set_variables(metadata, SERVER_FOLDER)
        self.copied_folder(metadata)

    def set_variables(self, metadata: JsonObject, folder: str) -> dict[str, str]:
        """{name: text} of the environment variables to which the file gives a text, filled for a row.

        Raises:
            DataError: If the row lacks a value.
        """
        pairs = (each.partition("=") for each in self.variables if "=" in each)
        return {name: filled(text, metadata, folder=folder) for name, _, text in pairs}

    @property
    def inherited_variables(self) -> list[str]:
        """Names of the environment variables that the process inherits."""
        return [name for name in self.variables if "=" not in name]

    def copied_folder(self, metadata: JsonObject) -> Path | None:
        """Folder that is copied for a row; None if there is none.

        Raises:
            DataError: If the row lacks a value, or names no folder below the one in the entry.
        """
        if self.folder_from is None or not row_names([str(self.folder_from)]):
            return self.folder_from
        base = Path(split_at_place(str(self.folder_from)).path).resolve()
        folder = Path(filled(str(self.folder_from), metadata)).resolve()
        if base not in folder.parents or not folder.is_dir():
            raise DataError(f"folder_from names {str(folder)!r}, which is not a folder below {base}")
        return folder

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
            ConfigError: If something is missing; the message names it.
        """
        for name in (*self.inherited_variables, *self.headers.values()):
            if name not in os.environ:
                raise ConfigError(f"the environment variable {name} is not set; set it before the launch")
        if self.mcp.command is not None and shutil.which(self.mcp.command[0]) is None:
            raise ConfigError(f"the program {self.mcp.command[0]!r} was not found; install it, or give its full path")
        if self.folder_from is not None and not (base := Path(split_at_place(str(self.folder_from)).path)).is_dir():
            raise ConfigError(f"folder_from: {base} is not a folder")
        for path in self.show:
            if not path.expanduser().exists():
                raise ConfigError(f"show: {path} does not exist")


def _shown(names: Collection[str]) -> str:
    """The first of the placeholders for values of the row."""
    return f"{{metadata.{min(names)}}}"
