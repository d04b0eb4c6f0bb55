"""Bytes of a snapshot -> the state of a fresh session; runs in the session, within its limits."""

import ast
import importlib
import io
import json
import linecache
import marshal
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from verl_pivot.sandbox.in_session.saving import FOLDER, MAGIC, PYTHON, encode_lost


def restore(path: str) -> None:
    """Restore the snapshot in a file, and replace the file by the list of what is lost.

    Raises:
        ValueError: If the snapshot was made by another version of Python; other exceptions if it is damaged.
    """
    with open(path, "rb") as file:
        content = file.read()
    os.unlink(path)
    lost_line, _, body = content.removeprefix(MAGIC).partition(b"\n")
    python, state = marshal.loads(body)
    if python != PYTHON:
        raise ValueError(f"the snapshot was made by {python}, but this session runs {PYTHON}")
    lost = encode_lost({**json.loads(lost_line), **_Restoring(state).lost})
    with open(path, "wb") as file:
        file.write(lost)


class _Unpickler(pickle.Unpickler):
    """Reader of the pickles of all values; a class of the session is defined when a value needs it."""

    def __init__(self, define: Callable[[str], None]) -> None:
        self.file = io.BytesIO()
        self._define = define
        super().__init__(self)  # the unpickler reads from this object, by the two methods below

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size)

    def readline(self) -> bytes:
        return self.file.readline()

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            self._define(name.partition(".")[0])
        return super().find_class(module, name)


class _Restoring:
    """Restores the state of a session; `lost` lists the parts that could not be restored."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.lost: dict[str, str] = {}
        self._cells: dict[str, str] = state["cells"]
        self._names = sys.modules["__main__"].__dict__
        self._undefined: dict[str, tuple[str, int]] = dict(state["defined"])
        for path, mode, content in state["files"]:
            self._try(f"file {path}", _write, path, mode, content)
        self._try("current folder", os.chdir, os.path.join(FOLDER, state["folder"]))
        for name, source in self._cells.items():
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        for name, modules in state["imports"].items():
            for module in modules:
                self._try(f"module {module}", importlib.import_module, module)
            if modules[0] in sys.modules:
                self._names[name] = sys.modules[modules[0]]
        unpickler = _Unpickler(self._define)
        for name, chunk in state["values"].items():
            self._try(name, self._load, unpickler, name, chunk)
        self._define_all()
        in_order = {name: self._names.pop(name) for name in state["order"] if name in self._names}
        self._names.update(in_order)

    def _try(self, what: str, step: Callable[..., object], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  what the session defined may raise anything
            self.lost[what] = f"{type(error).__name__}: {error}"

    def _load(self, unpickler: _Unpickler, name: str, chunk: bytes) -> None:
        unpickler.file = io.BytesIO(chunk)
        value = unpickler.load()
        owner, _, attribute = name.partition(".")
        if attribute:
            self._define(owner)
            setattr(self._names[owner], attribute, value)
        else:
            self._names[name] = value

    def _define(self, name: str) -> None:
        """Run the statement that defines a name, if it did not run yet."""
        place = self._undefined.pop(name, None)
        if place is None:
            return
        cell, index = place
        body = ast.parse(self._cells[cell]).body
        flags = [each for each in body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
        try:
            exec(compile(ast.Module([*flags, body[index]], []), cell, "exec", dont_inherit=True), self._names)
        except BaseException:  # what the session defined may raise anything
            self._undefined[name] = place
            raise

    def _define_all(self) -> None:
        """Define the names that no value needed, in rounds until one defines nothing: a name may need another one."""
        num_before = len(self._undefined) + 1
        while 0 < len(self._undefined) < num_before:
            num_before = len(self._undefined)
            for name in list(self._undefined):
                self.lost.pop(name, None)
                self._try(name, self._define, name)


def _write(path: str, mode: int, content: str | bytes | None) -> None:
    place = os.path.join(FOLDER, path)
    if content is None:
        os.makedirs(place, exist_ok=True)
    elif isinstance(content, str):
        os.symlink(content, place)
    else:
        with open(place, "wb") as file:
            file.write(content)
        os.chmod(place, mode)
