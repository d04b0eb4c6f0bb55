"""The zygote: a warm interpreter with its imports done, which forks one child per program into a pod.

It reads requests (a message, with the pod's pidfd, the streams and a memory file) and answers with the child's process
id, later with its exit status, as the kernel reports it to a parent. It runs none of the user's code itself.
"""

import gc
import importlib.util
import json
import os
import resource
import select
import signal
import site
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from verl_pivot.lane import kernel
from verl_pivot.lane.files import end_everyone_else, fetch_files, write_files
from verl_pivot.lane.frames import Message, read_all, receive_with_fds, send_with_fds
from verl_pivot.lane.pod import READY, ResourceLimits, enter, fork_into
from verl_pivot.lane.program import run_main
from verl_pivot.lane.repl import serve_cells
from verl_pivot.lane.seccomp import filter_bytes

_WARM_UP = "import io, traceback\nprint('warm', file=io.StringIO())\n"
_NUM_FDS = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


class Zygote:
    """State of one zygote process."""

    def __init__(self, channel: socket.socket, *, has_proc: bool) -> None:
        self._channel = channel
        self._has_proc = has_proc
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._scope = kernel.abstract_socket_scope()
        self._seccomp = filter_bytes()
        self._data_bytes = data_bytes()
        self._children: dict[int, int] = {}
        """pidfd -> process id"""

    def serve(self) -> None:
        """Return when the lane closes the channel."""
        events = select.epoll()
        events.register(self._channel, select.EPOLLIN)
        while True:
            for fd, _ in events.poll():
                if fd in self._children:
                    events.unregister(fd)
                    self._report_exit(fd)
                    continue
                received = receive_with_fds(self._channel)
                if received is None:
                    return
                child = self._fork(*received)
                if child is not None:
                    events.register(child, select.EPOLLIN)

    def _fork(self, request: Message, fds: tuple[int, ...]) -> int | None:
        """The child's pidfd."""
        try:
            pid = fork_into(fds[0], self._own_pidfd)
        except OSError as error:
            pid = None
            send_with_fds(self._channel, {"id": request["id"], "failed": str(error)})
        if pid == 0:
            self._child(fds)
        for fd in fds:
            os.close(fd)
        if pid is None:
            return None
        child = os.pidfd_open(pid)
        self._children[child] = pid
        send_with_fds(self._channel, {"id": request["id"], "pid": pid})
        return child

    def _report_exit(self, child: int) -> None:
        pid = self._children.pop(child)
        os.close(child)
        _, status, usage = os.wait4(pid, 0)
        exited = {
            "exited": pid,
            "status": status,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024,
        }
        send_with_fds(self._channel, exited)

    def _child(self, fds: tuple[int, ...]) -> NoReturn:
        """In the pod: streams, privileges, files; then the user's code, or another program's."""
        shim, stdin, stdout, stderr, report, payload, *control = fds
        for target, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, target)
        try:
            task = json.loads(read_all(payload))
            limits = ResourceLimits(**task["limits"])
            limits = replace(limits, data_bytes=limits.data_bytes + self._data_bytes)
            enter(
                shim, task["namespaces"], limits, scope=self._scope, seccomp=self._seccomp, has_proc=self._has_proc
            )
            if task["kind"] == "files":
                _serve_files(task, payload, report)
            _write_program(task)
        except (OSError, ValueError) as error:
            os.write(report, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os.write(report, READY)
        kept = os.dup2(control[0], 3) if control else 2
        os.closerange(kept + 1, _NUM_FDS)
        reseed()
        _become(task, kept)


def _serve_files(task: dict[str, Any], payload: int, report: int) -> NoReturn:
    """Put files and fetch others; the answer replaces the payload."""
    if task["alone"]:
        end_everyone_else()
    write_files(task["files"])
    os.write(report, READY)
    answer = json.dumps(fetch_files(task["fetch"], task["max_bytes"])).encode()
    os.ftruncate(payload, 0)
    os.pwrite(payload, answer, 0)
    os._exit(0)


def _write_program(task: dict[str, Any]) -> None:
    write_files(task["files"])
    if task["file"] is not None:
        with open(task["file"], "wb") as file:
            file.write(task["code"].encode("utf-8", "surrogatepass"))


def _become(task: dict[str, Any], control: int) -> NoReturn:
    if task["kind"] == "cells":
        serve_cells(socket.socket(fileno=control))
    if task["kind"] == "python":
        run_main(task["code"].encode("utf-8", "surrogatepass"), tuple(task["argv"]))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(task["argv"][0], task["argv"])
    except OSError as error:
        os.write(2, f"{task['argv'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def reseed() -> None:
    """Random generators that the zygote had: `random` reseeds itself at a fork, these do not."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "sympy" in sys.modules:
        sys.modules["sympy"].core.random.seed(None)


def data_bytes() -> int:
    """Private writable memory of this process, which RLIMIT_DATA counts too."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()


def main(channel_fd: int, modules: list[str], *, has_proc: bool) -> None:
    """Import what can be imported of `modules`, tell the lane, and fork for it until it goes away."""
    channel = socket.socket(fileno=channel_fd)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(kind, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NUM_FDS, _NUM_FDS))
    for builtin in (site.setquit, site.setcopyright, site.sethelper):
        builtin()  # exit, copyright, help: what -S leaves out
    imported = [name for name in modules if importlib.util.find_spec(name) is not None]
    for name in imported:
        importlib.import_module(name)
    reseed()  # loads what they load lazily
    exec(compile(_WARM_UP, "warm", "exec"), {"__name__": "warm"})
    gc.collect()
    gc.freeze()
    zygote = Zygote(channel, has_proc=has_proc)
    send_with_fds(channel, {"ready": imported})
    zygote.serve()
