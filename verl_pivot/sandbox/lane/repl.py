"""Cells -> values and tracebacks, in one interpreter that keeps its variables and can be forked.

It shares a process with the user's code, which can therefore forge its answers: the lane reads them as mere data, and
learns of the interpreter's end from the kernel alone.
"""

import _signal  # type: ignore[import-not-found]  # signal.signal would make two enums at each call
import ast
import builtins
import linecache
import marshal
import os
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NoReturn

from verl_pivot.sandbox.lane import host_calls, syscalls
from verl_pivot.sandbox.lane.answers import HELLO, write_answer
from verl_pivot.sandbox.lane.fd_passing import read_all, receive
from verl_pivot.sandbox.lane.host_calls import CallChannel
from verl_pivot.sandbox.lane.python_program import exit_code_of, open_standard_streams

if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.answers import Fields
    from verl_pivot.sandbox.lane.messages import FunctionFields

_OWN_FILES = (__file__, host_calls.__file__)
CELL_FILE = "<cell {}>"
"""File name of a cell in tracebacks."""


@dataclass(slots=True)
class _Interrupts:
    """Handler of SIGINT: it ends a cell, and does nothing between cells."""

    is_running: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_running:
            raise KeyboardInterrupt


_interrupts = _Interrupts()


def compiled_startup(code: str) -> CodeType:
    """The cell that runs ahead of a session, as its cell 0."""
    name = CELL_FILE.format(0)
    _remember(name, code)
    return compile(code, name, "exec", dont_inherit=True)


def _remember(name: str, code: str) -> None:
    """Keep the source of a cell, for tracebacks and snapshots."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def serve_cells(channel: socket.socket, functions: "list[FunctionFields]") -> NoReturn:
    """Run one cell after the other until the channel closes.

    Args:
        channel: Channel for requests.
        functions: Functions of the host that the cells may call.
    """
    calls = CallChannel(functions)
    channel.send(HELLO)
    pid = _getpid()
    while True:
        received = receive(channel)
        if received is None:
            os._exit(0)
        (operation, number), fds = received
        if operation == "fork":
            channel = _fork(channel, fds)
            pid = _getpid()
            continue
        answer, payload, *call_sockets = fds
        code, max_bytes = marshal.loads(read_all(payload))
        os.close(payload)
        os.set_inheritable(answer, False)  # a command that the cell runs must not inherit it
        calls.begin(call_sockets)
        outcome = _run_cell(code, number, max_bytes, pid)
        calls.end()
        write_answer(answer, outcome)


def _run_cell(code: str, number: int, max_bytes: int, pid: int) -> "Fields":
    """Run one cell; returns its value and its traceback. A process that the cell forked ends after the cell's code."""
    name = CELL_FILE.format(number)
    _remember(name, code)
    _signal.signal(_signal.SIGINT, _interrupts)
    value, error, exit_code = None, None, 0
    try:
        _interrupts.is_running = True
        value = _evaluate(code, name)
        _interrupts.is_running = False
    except BaseException as raised:  # noqa: BLE001  a cell may raise anything
        _interrupts.is_running = False
        if _getpid() != pid and isinstance(raised, SystemExit):
            exit_code = exit_code_of(raised)
        else:
            exit_code = 1
            error = _traceback(raised, name)
            print(error, end="", file=sys.stderr)
    _flush()
    if _getpid() != pid:
        _exit(exit_code)
    return _cut(value, max_bytes), _cut(error, max_bytes)


def _evaluate(code: str, name: str) -> str | None:
    tree = ast.parse(code, name)
    names = sys.modules["__main__"].__dict__
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    if value is None:
        return None
    builtins._ = value  # type: ignore[attr-defined]
    return repr(value)


def _traceback(error: BaseException, name: str) -> str:
    """The traceback as Python prints it, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    report = traceback.TracebackException(type(error), error, trace)
    report.stack[:] = [frame for frame in report.stack if frame.filename not in _OWN_FILES]
    return "".join(report.format())


def _cut(text: str | None, max_bytes: int) -> bytes | None:
    """The text in UTF-8, cut between two characters."""
    if text is None:
        return None
    return text.encode("utf-8", "backslashreplace")[:max_bytes].decode("utf-8", "ignore").encode()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            open_standard_streams()  # the cell has closed or replaced a stream


def _fork(channel: socket.socket, fds: tuple[int, ...]) -> socket.socket:
    """Go on in two processes: the branch serves a new channel, the parent the old one. Returns the channel to serve.

    The branch is an exact copy, including the states of its random generators.
    """
    reply, control, stdout, stderr = fds
    refusal = "the session has running threads" if threading.active_count() > 1 else _branch()
    if refusal is _IS_BRANCH:
        channel.close()
        os.close(reply)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        channel = socket.socket(fileno=control)
        os.close(stdout)
        os.close(stderr)
        channel.send(HELLO)
        return channel
    for fd in (control, stdout, stderr):
        os.close(fd)
    write_answer(reply, (refusal.encode() or None,))
    return channel


_IS_BRANCH = "this is the branch"


def _branch() -> str:
    """Fork twice, so that the branch is a child of the shim, which the user's code in the parent cannot wait for.

    Returns _IS_BRANCH in the branch; in the parent "", or the reason why there is no branch.
    """
    try:
        child = syscalls.fork()
    except OSError as error:
        return str(error)
    if child == 0:
        return _leave_branch()
    _, status = os.waitpid(child, 0)
    return "its limits do not allow another process" if status else ""


def _leave_branch() -> str:
    try:
        if syscalls.fork() == 0:
            return _IS_BRANCH
    except OSError:
        os._exit(1)
    os._exit(0)


# Bound before the user's code runs, as a cell may replace any name of a module.
_getpid = os.getpid
_exit = os._exit
