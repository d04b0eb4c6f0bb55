"""Cells -> values and tracebacks, in one interpreter that keeps its variables and can be forked.

Runs in the same process as the user's code, so that what it says is as trustworthy as that code: its answers are read
as data, and the interpreter's life is judged by the kernel alone.
"""

import _signal  # type: ignore[import-not-found]  # signal.signal makes two enums each time
import ast
import builtins
import json
import linecache
import marshal
import os
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from verl_pivot.lane import kernel
from verl_pivot.lane.passing import overwrite, read_all, receive
from verl_pivot.lane.program import new_main_module, open_standard_streams

CELL_FILE = "<cell {}>"


@dataclass(slots=True)
class _Interrupts:
    """SIGINT stops a cell, and is nothing between cells."""

    is_running: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_running:
            raise KeyboardInterrupt


_interrupts = _Interrupts()


def serve_cells(channel: socket.socket) -> NoReturn:
    """Run one cell after the other until the channel closes."""
    new_main_module()
    _say(channel, {"id": 0})
    num_cells = 0
    while True:
        received = receive(channel)
        if received is None:
            os._exit(0)
        (operation, number), fds = received
        if operation == "fork":
            channel = _fork(channel, number, fds)
            continue
        num_cells += 1
        code, max_bytes = marshal.loads(read_all(fds[0]))
        overwrite(fds[0], json.dumps(_run_cell(code, num_cells, max_bytes)).encode())
        os.close(fds[0])
        _say(channel, {"id": number})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    """In JSON: the lane takes it as the words of a stranger."""
    channel.send(json.dumps(message).encode())


def _run_cell(code: str, number: int, max_bytes: int) -> dict[str, Any]:
    """{"value": repr of the last expression or None, "error": traceback or None}."""
    name = CELL_FILE.format(number)
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    _signal.signal(_signal.SIGINT, _interrupts)
    value, error = None, None
    try:
        _interrupts.is_running = True
        value = _evaluate(code, name)
        _interrupts.is_running = False
    except BaseException as raised:  # noqa: BLE001  whatever the cell raises
        _interrupts.is_running = False
        error = _traceback(raised, name)
        print(error, end="", file=sys.stderr)
    _flush()
    return {"value": _cut(value, max_bytes), "error": _cut(error, max_bytes)}


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
    """As Python prints it, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    report = traceback.TracebackException(type(error), error, trace)
    report.stack[:] = [frame for frame in report.stack if frame.filename != __file__]
    return "".join(report.format())


def _cut(text: str | None, max_bytes: int) -> str | None:
    return text if text is None else text.encode("utf-8", "backslashreplace")[:max_bytes].decode("utf-8", "ignore")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            open_standard_streams()  # the cell closed or replaced them


def _fork(channel: socket.socket, number: int, fds: tuple[int, ...]) -> socket.socket:
    """Go on in two processes: the child serves the new channel, the parent the old one. Returns this process's.

    The branch is an exact copy, the states of its random generators included.
    """
    control, stdout, stderr = fds
    refusal = "the session has running threads" if threading.active_count() > 1 else _branch()
    if refusal is _IN_BRANCH:
        channel.close()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        channel = socket.socket(fileno=control)
        os.close(stdout)
        os.close(stderr)
        _say(channel, {"id": 0})
        return channel
    for fd in fds:
        os.close(fd)
    _say(channel, {"id": number, "refused": refusal} if refusal else {"id": number})
    return channel


_IN_BRANCH = "in the branch"


def _branch() -> str:
    """Fork twice: the branch belongs to the pod, and is no child that the parent's code could wait for.

    Returns _IN_BRANCH in the branch; in the parent nothing, or why there is no branch.
    """
    try:
        child = kernel.fork()
    except OSError as error:
        return str(error)
    if child == 0:
        return _leave_branch()
    _, status = os.waitpid(child, 0)
    return "no process can be made within its limits" if status else ""


def _leave_branch() -> str:
    try:
        if kernel.fork() == 0:
            return _IN_BRANCH
    except OSError:
        os._exit(1)
    os._exit(0)
