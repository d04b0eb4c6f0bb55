"""Functions of the host in a session's interpreter: Python functions whose calls the lane passes on and answers.

They share a process with the user's code, which can forge their calls: the lane reads those as mere data.
"""

import errno
import inspect
import keyword
import os
import struct
import sys
import threading

from verl_pivot.sandbox.lane.answers import MAX_CALL_BYTES, pack_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from verl_pivot.sandbox.lane.messages import FunctionFields

    Call: TypeAlias = Callable[[str, dict[str, Any]], Any]

MARK = "__host_function__"
"""Attribute of the functions that are made here."""
_LENGTHS = struct.Struct(">qq")
_CHUNK_BYTES = 64 * 1024
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class CallChannel:
    """Calls of the host's functions by the cells of one interpreter, one at a time, from its main thread."""

    def __init__(self, functions: "list[FunctionFields]") -> None:
        """Define the functions in `__main__`."""
        self._fd: int | None = None
        """Socket of the running cell's calls; None while no call can be made."""
        self._why_not = "it can be called only while a cell runs"
        self._own_process()
        if functions:
            import json  # here, before any cell could replace it

            self._dumps, self._loads = json.dumps, json.loads
        names = sys.modules["__main__"].__dict__
        names.update({each["name"]: host_function(each, self.call) for each in functions})

    def _own_process(self) -> None:
        self._pid, self._thread = _getpid(), threading.get_ident()

    def begin(self, fds: "list[int]") -> None:
        """Begin a cell.

        Args:
            fds: The socket for its calls; empty if it may make none.
        """
        self._own_process()  # a branch is a process of its own
        self._fd = None
        self._why_not = "this cell was run without a handler for function calls"
        for fd in fds:
            os.set_inheritable(fd, False)
            self._fd = fd

    def end(self) -> None:
        """End the cell, which can make no more calls."""
        self._why_not = "it can be called only while a cell runs"
        if _getpid() == self._pid:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.close(fd)
            except OSError:  # the cell has closed it
                return

    def call(self, name: str, arguments: "dict[str, Any]") -> "Any":
        """Call a function of the host; returns its reply.

        Raises:
            RuntimeError: If the call is not allowed here, or the host replies with an error.
            TypeError: If the arguments are no JSON values.
            ValueError: If the arguments are too long.
        """
        if _getpid() != self._pid:
            raise RuntimeError(f"{name}() cannot be called in a process that the cell has started; call it in the cell")
        if _get_ident() != self._thread:
            raise RuntimeError(f"{name}() cannot be called in a second thread; call it in the main thread of the cell")
        try:
            data = self._dumps(arguments, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the arguments of {name}() must be JSON values: {error}") from None
        if len(data) > MAX_CALL_BYTES:
            raise ValueError(f"the arguments of {name}() are {len(data)} bytes of JSON, more than {MAX_CALL_BYTES}")
        if self._fd is None:
            raise RuntimeError(f"{name}() cannot be called: {self._why_not}")
        value, problem = self._exchange(name, data)
        if value is None:
            raise RuntimeError((problem or b"").decode("utf-8", "backslashreplace"))
        return self._loads(value)

    def _exchange(self, name: str, data: bytes) -> "tuple[bytes | None, ...]":
        """Send a call and read its reply; if that is interrupted, no later call can read this reply."""
        fd, is_done = self._fd, False
        assert fd is not None, "the caller has looked"
        self._fd = None
        self._why_not = "an earlier call of this cell has not ended, or was interrupted; go on in the next cell"
        try:
            _write(fd, pack_fields((name.encode(), data)))
            lengths = _LENGTHS.unpack(_read(fd, _LENGTHS.size))
            reply = tuple(None if length < 0 else _read(fd, length) for length in lengths)
            is_done = True
        except OSError as error:
            if error.errno is None:  # a signal handler of the cell raised it, such as a TimeoutError
                raise
            raise RuntimeError(f"{name}() cannot be called: the socket of its calls is broken: {error}") from None
        finally:
            self._fd = fd
            if not is_done:
                self._close()
        return reply


class _OwnDefault:
    """Default of an argument that is not sent, so that the host uses its own default."""

    def __repr__(self) -> str:
        return "..."


_OWN_DEFAULT = _OwnDefault()


def host_function(fields: "FunctionFields", call: "Call") -> "Callable[..., Any]":
    """A function of the session, with the signature and the docstring of its JSON schema."""
    name = fields["name"]
    signature = signature_of(fields["parameters"])

    def function(*args: "Any", **kwargs: "Any") -> "Any":
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}; its signature is {name}{signature}") from None
        extra = bound.arguments.pop(_EXTRA, {})
        return call(name, {**bound.arguments, **extra})

    function.__name__ = function.__qualname__ = name
    function.__module__ = "__main__"
    function.__doc__ = docstring_of(fields)
    function.__dict__.update({"__signature__": signature, MARK: True})
    return function


_EXTRA = "arguments_"
"""Parameter for arguments whose names are not valid in Python."""


def signature_of(parameters: "dict[str, Any]") -> inspect.Signature:
    """Signature of a function with these parameters, a JSON schema; a default that is not known shows as `...`."""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    named = [name for name in properties if name.isidentifier() and not keyword.iskeyword(name)]
    found = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if name in required else _default(properties[name]),
            annotation=_annotation(properties[name]),
        )
        for name in sorted(named, key=lambda name: name not in required)
    ]
    if len(named) < len(properties):
        found.append(inspect.Parameter(_EXTRA, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(found)


def _default(schema: "Any") -> "Any":
    return schema.get("default", _OWN_DEFAULT) if isinstance(schema, dict) else _OWN_DEFAULT


def _annotation(schema: "Any") -> "Any":
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _TYPES.get(kind, inspect.Parameter.empty) if isinstance(kind, str) else inspect.Parameter.empty


def docstring_of(fields: "FunctionFields") -> str:
    """Description of a function, then those of its parameters that have one."""
    properties = fields["parameters"].get("properties", {})
    lines = [
        f"    {name}: {schema['description']}"
        for name, schema in properties.items()
        if isinstance(schema, dict) and schema.get("description")
    ]
    return "\n".join([fields["description"], *(["", "Args:", *lines] if lines else [])])


def _write(fd: int, data: bytes) -> None:
    content = memoryview(data)
    while content:
        content = content[os.write(fd, content[:_CHUNK_BYTES]) :]


def _read(fd: int, num_bytes: int) -> bytes:
    pieces = []
    while num_bytes > 0:
        piece = os.read(fd, min(num_bytes, _CHUNK_BYTES))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "it was closed")
        pieces.append(piece)
        num_bytes -= len(piece)
    return b"".join(pieces)


# Bound before the user's code runs, as a cell may replace any name of a module.
_getpid = os.getpid
_get_ident = threading.get_ident
