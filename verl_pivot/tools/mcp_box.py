"""Command of an MCP server -> the same command inside bubblewrap, with the files that the server sees there."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.command_line import BwrapCommand, find_bwrap, server_command
from verl_pivot.sandbox.bubblewrap.probe import Probe, Tier, probe
from verl_pivot.sandbox.bubblewrap.python_view import PythonView, is_below
from verl_pivot.sandbox.lane.seccomp import filter_bytes
from verl_pivot.tools.row_places import split_at_place

_OWN = tuple(map(Path, ("/", "/dev", "/etc", "/proc", "/tmp")))
"""Folders that every sandbox has of its own; paths below them can be shown, but not these folders themselves."""


def boxed(
    words: Sequence[str], *, fill: Callable[[str], str], show: Iterable[Path], folder: Path, has_network: bool
) -> BwrapCommand:
    """Put a server's command into a sandbox.

    Args:
        words: Absolute path of the program, and its arguments as in the tools file, with placeholders. Paths of the
            machine among these are shown, but no path that only a value of the row names.
        fill: Fills the placeholders of an argument.
        show: Files and folders that the server can read, besides its own installation and the paths in its arguments.
        folder: Folder that the server can change, and in which it starts; SERVER_FOLDER is its path inside.
        has_network: Whether the server shares the machine's network.

    Raises:
        ConfigError: If this machine has no sandbox, or something cannot be shown.
    """
    found = _probed()
    if found.tier > Tier.T3:
        causes = "; ".join(f"{obstacle.what}: {obstacle.remedy}" for obstacle in found.obstacles)
        remedy = "if you trust the server, write `sandbox: false`"
        raise ConfigError(f"this machine has no sandbox for an MCP server ({causes}); {remedy}")
    arguments = [_absolute(word) for word in words[1:]]
    named = [Path(_named(word).path) for word in arguments]
    seen = {*_installation(Path(words[0])), *(path for path in named if path.is_absolute() and path.exists())}
    seen |= {Path(os.path.abspath(path.expanduser())) for path in show}
    if refused := seen.intersection(_OWN):
        raise ConfigError(f"the sandbox has its own {min(refused)}; show folders below it, or write `sandbox: false`")
    outermost = [path for path in seen if seen.isdisjoint(path.parents)]
    return server_command(
        [words[0], *map(fill, arguments)],
        bwrap=find_bwrap(),
        version=found.version,
        seccomp=_seccomp(),
        shown=outermost,
        folder=folder,
        has_network=has_network,
        mount_proc=found.tier < Tier.T3,
    )


@functools.cache
def _seccomp() -> bytes:
    """Filter of system calls, compiled once in a process."""
    return filter_bytes()


@functools.cache
def _probed() -> Probe:
    """Sandbox tier of this machine, probed once in a process."""
    return probe(PythonView.of())


class _NamedPath(NamedTuple):
    """An argument that may name a path, in its parts."""

    option: str
    """Text before the path, up to and with the last `=`."""
    path: str
    """The path, or the folders before its first placeholder."""
    rest: str
    """Text after `path`."""


def _named(word: str) -> _NamedPath:
    option, equals, text = word.rpartition("=")
    return _NamedPath(option + equals, *split_at_place(text))


def _absolute(word: str) -> str:
    """An argument with its path, which may follow a `=`, made absolute.

    A word counts as a path if it names a file, or if it has a slash and names a folder.
    """
    option, text, rest = _named(word)
    path = Path(text)
    is_path = path.is_file() or ("/" in text and path.is_dir())
    return f"{option}{os.path.abspath(path)}{rest and '/'}{rest}" if is_path else word


@functools.cache
def _installation(program: Path) -> frozenset[Path]:
    """Paths that a program needs besides /usr: its file, and the Python or Node.js that it belongs to."""
    seen = {program, program.resolve()}
    for place in (program, program.resolve()):
        prefix, python = place.parent.parent, place.with_name("python3")
        if place.parent.name != "bin":
            continue
        if (prefix / "lib/node_modules").is_dir():
            seen.add(prefix)
        elif python.exists() and any(prefix.glob("lib/python3*")):
            seen |= {prefix, *PythonView.of(str(python)).bases}
    return frozenset(path for path in seen if not is_below(path.parent.resolve(), Path("/usr")))
