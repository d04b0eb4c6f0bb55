"""State of a session -> the bytes of a snapshot: variables, functions, classes, imports and files; runs in a session.

The source is sent into the session, so the modules of this folder import only the standard library. Neither the service
nor a client ever unpickles a snapshot.
"""

import io
import json
import marshal
import os
import signal
import stat
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from verl_pivot.sandbox.in_session.definitions import defining_cells, definitions, first_line, parsed
from verl_pivot.sandbox.in_session.pickling import CELL, CellPickler, restored_name

FOLDER = "/tmp"
MAGIC = b"verl-pivot snapshot 1\n"
"""First line of a snapshot. The second one has what was lost, as JSON, and the rest is for `restoring.restore`."""
PYTHON = sys.implementation.cache_tag
"""Version of Python, which functions depend on."""
MAX_LOST = 200
"""Most names in the list of what was lost."""
MAX_REASON_LENGTH = 200
_NOT_VARIABLES = frozenset(vars(types.ModuleType("__main__"))) | {"__builtins__", "__annotations__"}
_HOST_MARK = "__host_function__"
"""Attribute of functions of the host, as in lane/host_calls.py."""
_ENTRY_BYTES = 64
"""Bytes that are counted for each variable and file in addition to its content and name."""


def save(path: str, max_bytes: int) -> None:
    """Write a snapshot from a forked copy of this process, so that pickling cannot change the interpreter.

    Raises:
        OSError: If no process can be made within the session's limits.
        RuntimeError: If the copy could not write the snapshot; stderr has the reason.
    """
    num_threads = len(sys._current_frames()) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads; the list of losses names them
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the session's own might reap the copy
        child = os.fork()
    if child == 0:
        _save_and_exit(path, max_bytes, num_threads)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    finally:  # even if the wait was interrupted, the copy is not reaped yet: it can be killed and waited for
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGCHLD, handler)
    if status != 0:
        raise RuntimeError(f"the process that writes the snapshot ended with wait status {status}")


def _save_and_exit(path: str, max_bytes: int, num_threads: int) -> None:
    exit_code = 1
    try:
        saving = _Saving(max_bytes)
        if num_threads:
            saving.lost["threads"] = f"a snapshot does not keep running threads ({num_threads} were running)"
        content = saving.content()
        with open(path, "wb") as file:
            file.write(content)
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  objects of the session may raise anything
        os.write(2, f"{type(error).__name__}: {error}"[:MAX_REASON_LENGTH].encode("utf-8", "replace"))
    finally:
        os._exit(exit_code)


def encode_lost(lost: dict[str, str]) -> bytes:
    """JSON of {what was lost: reason}, in one line of bounded length."""
    listed = {name[:MAX_REASON_LENGTH]: lost[name][:MAX_REASON_LENGTH] for name in list(lost)[:MAX_LOST]}
    if len(lost) > MAX_LOST:
        listed["..."] = f"{len(lost) - MAX_LOST} more"
    return json.dumps(listed).encode()


class _Saving:
    """Parts of a session that can be kept, within a bound on their total bytes; `lost` says why others cannot."""

    def __init__(self, max_bytes: int) -> None:
        self.lost: dict[str, str] = {}
        self._names = sys.modules["__main__"].__dict__
        self._cells = defining_cells()
        self._places = definitions(self._cells)
        self._imports: dict[str, list[str]] = {}
        """{variable: names of its module and of the submodules that are loaded}."""
        self._defined: dict[str, tuple[str, int]] = {}
        self._values: dict[str, tuple[Any, int]] = {}
        """{variable, or class.attribute: (value, bytes of its pickle)}."""
        self._room = max_bytes - len(MAGIC)
        self._take_room({name: len(source.encode("utf-8", "replace")) for name, source in self._cells.items()})
        for name in self.lost:
            del self._cells[name]

    def content(self) -> bytes:
        """The snapshot."""
        for name in [name for name in self._names if type(name) is str and name not in _NOT_VARIABLES]:
            if not _is_host_function(self._names[name]):
                self._look_at(name, self._names[name])
        kept = self._take_room({name: size + 2 * len(name) for name, (_, size) in self._values.items()})
        chunks = self._chunks([name for name in self._values if name in kept])
        state = {
            "cells": {restored_name(name): source for name, source in self._cells.items()},
            "imports": self._imports,
            "defined": {name: (restored_name(cell), index) for name, (cell, index) in self._defined.items()},
            "values": chunks,
            "order": [name for name in self._names if name in {*self._imports, *self._defined, *chunks}],
            "files": self._files(),
            "folder": _current_folder(),
        }
        return MAGIC + encode_lost(self.lost) + b"\n" + marshal.dumps((PYTHON, state))

    def _take_room(self, sizes: dict[str, int]) -> set[str]:
        """Names whose bytes fit, the small ones first; the others are lost."""
        kept = set()
        for name, size in sorted(sizes.items(), key=lambda item: item[1]):
            if size + _ENTRY_BYTES <= self._room:
                self._room -= size + _ENTRY_BYTES
                kept.add(name)
            else:
                self.lost[name] = f"its {size} bytes do not fit into the snapshot"
        return kept

    def _look_at(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            if sys.modules.get(value.__name__) is value:
                below = f"{value.__name__}."
                self._imports[name] = [value.__name__, *(each for each in sys.modules if each.startswith(below))]
            else:
                self.lost[name] = "a module that cannot be imported by its name"
            return
        data = self._pickled(name, value)
        if data is None:
            return
        if not data.startswith(f"c__main__\n{name}\n".encode(), 2):
            self._values[name] = (value, len(data))
        elif name not in self._places:
            self.lost[name] = "not defined by a statement at the top level of a cell"
        else:
            self._defined[name] = self._places[name]
            if isinstance(value, type):
                self._look_at_class(name, value)

    def _look_at_class(self, name: str, value: type) -> None:
        """Keep the attributes of a class that are plain values: cells may have changed them after its statement."""
        cell, index = self._defined[name]
        statement = parsed(self._cells[cell]).body[index]
        lines = range(first_line(statement), (statement.end_lineno or 0) + 1)
        is_enum = "enum" in sys.modules and isinstance(value, sys.modules["enum"].EnumMeta)
        for attribute, content in vars(value).items():
            code = content.__code__ if isinstance(content, types.FunctionType) else None
            if code is not None and CELL.fullmatch(code.co_filename):
                if code.co_filename != cell or code.co_firstlineno not in lines:
                    self.lost[f"{name}.{attribute}"] = "a function that was added to the class after its definition"
            elif not (is_enum or attribute.startswith("__") or attribute == "_abc_impl" or hasattr(content, "__get__")):
                data = self._pickled(f"{name}.{attribute}", content)
                if data is not None:
                    self._values[f"{name}.{attribute}"] = (content, len(data))

    def _pickled(self, name: str, value: Any) -> bytes | None:
        file = io.BytesIO()
        try:
            CellPickler(file).dump(value)
        except Exception as error:  # noqa: BLE001  its class may raise anything
            self.lost[name] = f"{type(value).__name__}: {error}"
            return None
        return file.getvalue()

    def _chunks(self, names: list[str]) -> dict[str, bytes]:
        """Pickle of each value; an object that several values share is only in the first of their pickles."""
        file = io.BytesIO()
        pickler = CellPickler(file)
        chunks = {}
        for name in names:
            file.seek(0)
            file.truncate()
            try:
                pickler.dump(self._values[name][0])
                chunks[name] = file.getvalue()
            except Exception as error:  # noqa: BLE001  its class may raise anything
                self.lost[name] = f"{type(self._values[name][0]).__name__}: {error}"
        return chunks

    def _files(self) -> list[tuple[str, int, str | bytes | None]]:
        """(path, mode, content) of each entry of the working folder; content is a link's target, None for a folder."""
        found: dict[str, int] = {}
        modes = {}
        for path, mode, size in _entries(FOLDER, self._on_error):
            modes[path] = mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
                found[path] = size + len(path)
            else:
                self.lost[f"file {path}"] = "neither a file nor a folder nor a link"
        kept = self._take_room({f"file {path}": size for path, size in found.items()})
        entries: list[tuple[str, int, str | bytes | None]] = []
        for path in found:
            if f"file {path}" in kept:
                try:
                    entries.append((path, stat.S_IMODE(modes[path]), _content(path, modes[path], found[path])))
                except OSError as error:
                    self.lost[f"file {path}"] = error.strerror or "it cannot be read"
        return entries

    def _on_error(self, error: OSError) -> None:
        self.lost[f"file {os.path.relpath(error.filename, FOLDER)}"] = error.strerror or "it cannot be read"


def _is_host_function(value: Any) -> bool:
    """Whether a variable is a function of the host, which each session gets when it is opened."""
    return isinstance(value, types.FunctionType) and _HOST_MARK in value.__dict__


def _current_folder() -> str:
    try:
        folder = os.path.relpath(os.getcwd(), FOLDER)
    except OSError:
        return "."
    return "." if folder.startswith("..") else folder


def _entries(folder: str, on_error: Callable[[OSError], None]) -> Iterator[tuple[str, int, int]]:
    """(path relative to `folder`, mode, size) of everything below it; folders before what they hold."""
    for place, folders, files in os.walk(folder, onerror=on_error):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
            except OSError as error:
                on_error(error)
                continue
            yield os.path.relpath(path, folder), status.st_mode, 0 if stat.S_ISDIR(status.st_mode) else status.st_size


def _content(path: str, mode: int, max_bytes: int) -> str | bytes | None:
    place = os.path.join(FOLDER, path)
    if stat.S_ISDIR(mode):
        return None
    if stat.S_ISLNK(mode):
        return os.readlink(place)
    with open(place, "rb") as file:
        return file.read(max_bytes)
