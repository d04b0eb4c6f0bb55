"""The zygote: an interpreter with its imports done, which forks one child per program into a pod.

A request is a number and a PodEntry, with descriptors: the pidfd of the pod's shim, the child's ends of its order and
report channels, and the entrances of its control groups, where there are any. The answers are ZygoteReports: the
child's process id, later its exit status, which the kernel gives to a parent only. The child confines itself, then
waits for its order: stdin, stdout and stderr, and a memory file with a LaneTask. The zygote runs none of the user's
code and imports little: each page of its memory makes every fork slower.
"""

import gc
import importlib
import marshal
import os
import resource
import select
import signal
import socket
import sys
from types import ModuleType

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.answers import write_answer
from verl_pivot.sandbox.lane.confinement import (
    READY,
    accept_limits,
    core_limit,
    enter_groups,
    fork_into,
    furnish,
    give_up_privileges,
)
from verl_pivot.sandbox.lane.fd_passing import read_all, receive, send
from verl_pivot.sandbox.lane.files import end_everyone_else, fetch_files, take_place, write_files
from verl_pivot.sandbox.lane.python_program import (
    MAIN,
    MAIN_PATH,
    become_fresh,
    new_main_module,
    open_standard_streams,
    run_main,
)
from verl_pivot.sandbox.lane.seccomp import program_filter_bytes, zygote_filter_bytes
from verl_pivot.sandbox.lane.terminal import enter_terminal, hand_over

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take 10 ms
    from typing import NoReturn

    from verl_pivot.sandbox.lane.process_messages import (
        CellsTask,
        FilesTask,
        LaneTask,
        PodEntry,
        ProgramTask,
        ZygoteReport,
    )

BIND_NOW = "LD_BIND_NOW"
"""Environment variable of the linker: the zygote looks up every symbol once, not each child at its first call."""
IMPORT_FROM = "PYTHONPATH"
"""Environment variable of Python: folders that it imports from, besides its own."""
_FIRST_PRINT = "import io\nprint('warm', file=io.StringIO())\n"
CHANNEL = 5
"""Descriptor of a zygote's connection to its lane."""
OUTER_PROC = 6
"""Descriptor of the service's /proc on a machine where lanes and pods cannot mount one."""
_CONTROL, _ORDERS, _REPORT = 3, 3, 4
"""Descriptors of a child: 3 is the channel for its order, and later, in a session, the channel for cells."""
_REPL = "verl_pivot.sandbox.lane.repl"
_MAX_REASON_LENGTH = 500
_WARM_UP_BYTES = 1024**3
"""Memory that warm-ups may take above what the zygote has before them."""
_ROUND_BYTES = 32 * 1024**2
_modules: dict[str, ModuleType] = {}
"""Modules imported on request; those of this package are no longer in sys.modules when a program runs."""
_NUM_FDS = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


class Zygote:
    """The state of a zygote process."""

    def __init__(self, channel: socket.socket, outer_proc: int, *, has_proc: bool) -> None:
        self._channel = channel
        self._orders = socket.socket(fileno=_ORDERS)
        """Socket object that each child uses for its own descriptor, which it puts at this number: a new object would
        take time."""
        self._has_proc = has_proc
        self._outer_proc = outer_proc
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._scope = syscalls.abstract_socket_scope()
        self._seccomp = syscalls.SeccompFilter(program_filter_bytes())
        self._data_bytes = data_bytes(outer_proc)
        self._children: dict[int, int] = {}
        """{pidfd: process id} of the children that have not ended."""
        self._events = select.epoll()

    def serve(self) -> "tuple[ProgramTask | CellsTask, int] | None":
        """Fork on request. Returns None in the zygote, at the end of the lane; in each child, returns its task.

        The number beside the task is the last descriptor that the child keeps: for a session, its channel for cells.
        """
        self._send(("ready",))
        events = self._events
        events.register(self._channel, select.EPOLLIN)
        while True:
            for fd, _ in events.poll():
                if fd in self._children:
                    events.unregister(fd)
                    self._report_exit(fd)
                    continue
                received = receive(self._channel)
                if received is None:
                    return None
                (number, entry), fds = received
                pid = self._fork(number, fds)
                if pid == 0:
                    self._confine(entry, fds)
                    return self._take_task()
                if pid is not None:
                    events.register(self._adopt(number, pid), select.EPOLLIN)
                for fd in fds:
                    os.close(fd)

    def _fork(self, number: int, fds: tuple[int, ...]) -> int | None:
        """Process id of the new child, 0 in the child itself, None if no child could be made."""
        try:
            return fork_into(fds[0], self._own_pidfd)
        except OSError as error:
            self._send(("failed", number, str(error)))
            return None

    def _adopt(self, number: int, pid: int) -> int:
        """Remember a child and report it; returns its pidfd."""
        child = os.pidfd_open(pid)
        self._children[child] = pid
        self._send(("forked", number, pid))
        return child

    def _report_exit(self, child: int) -> None:
        pid = self._children.pop(child)
        os.close(child)
        _, status, usage = os.wait4(pid, 0)
        self._send(("exited", pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))

    def _send(self, report: "ZygoteReport") -> None:
        send(self._channel, report)

    def _confine(self, entry: "PodEntry", fds: tuple[int, ...]) -> None:
        """Enter the pod for good, without privileges and with no descriptors but those for order and report."""
        shim, orders, report, *groups = fds
        namespaces, tmp, raises_loopback, user_id, leads_session = entry
        try:
            enter_groups(tuple(groups))
            syscalls.setns(shim, namespaces)
            if tmp:
                furnish(*tmp, has_proc=self._has_proc, raises_loopback=raises_loopback)
            give_up_privileges(
                scope=self._scope,
                seccomp=self._seccomp,
                outer_proc=self._outer_proc,
                user_id=user_id,
                leads_session=leads_session,
            )
        except OSError as error:
            _fail(report, error)
        os.dup2(orders, _ORDERS)
        os.dup2(report, _REPORT)  # `report` has a larger number than `orders`: the line above has not overwritten it
        os.closerange(_REPORT + 1, _NUM_FDS)
        reseed()

    def _take_task(self) -> "tuple[ProgramTask | CellsTask, int]":
        """Wait for the order and set up streams, limits and files; returns the task and the last descriptor to keep."""
        received = receive(self._orders)
        self._orders.detach()
        if received is None:
            os._exit(0)  # the lane does not need this process any more
        *streams, payload = received[1][:4]
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        try:
            task: LaneTask = marshal.loads(read_all(payload))
            limits = task["limits"]
            limits["data_bytes"] += self._data_bytes
            accept_limits(limits)
            if task["kind"] == "files":
                _serve_files(task, received[1][4])
            write_files(task["files"])
            take_place(task["place"], enters_folder=task["kind"] == "cells" or not task["is_compiler"])
            if task["terminal"] is not None:
                terminal = enter_terminal(task["terminal"], with_stdin=task["kind"] != "cells")
        except (OSError, ValueError) as error:
            _fail(_REPORT, error)
        os.write(_REPORT, READY)
        control = list(received[1][4:])
        if task["terminal"] is not None:
            hand_over(terminal, control.pop())
        last = os.dup2(control[0], _CONTROL) if control else 2
        os.closerange(last + 1, _NUM_FDS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits["num_open_files"], limits["num_open_files"]))
        return task, last


def _fail(report: int, error: Exception) -> "NoReturn":
    os.write(report, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _serve_files(task: "FilesTask", answer: int) -> "NoReturn":
    """Write files, then read others; the answer has the content for each name, then the error for each name."""
    if task["is_alone"]:
        end_everyone_else()
    write_files(task["files"])
    os.write(_REPORT, READY)
    contents, errors = fetch_files(task["fetch"], task["max_bytes"])
    names = task["fetch"]
    reasons = {name: reason.encode("utf-8", "backslashreplace") for name, reason in errors.items()}
    write_answer(answer, (*map(contents.get, names), *map(reasons.get, names)))
    os._exit(0)


def _become(task: "ProgramTask | CellsTask", control: int) -> None:
    """Carry out the task in this process. Never returns."""
    if task["terminal"] is not None and task["kind"] != "exec":
        open_standard_streams()
    if task["kind"] == "cells":
        if "__main__" not in _modules:
            new_main_module()
        _modules[_REPL].serve_cells(socket.socket(fileno=control), task["functions"])
    elif task["kind"] == "python":
        run_main(task["code"], task["argv"], name=MAIN_PATH if task["place"]["folder"] else MAIN)
    else:
        _execute(task["argv"])


def _execute(command: list[str]) -> "NoReturn":
    """Execute another program in this process, and set back the signal handling that Python has changed."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def reseed() -> None:
    """Give the random generators that the zygote has loaded fresh states."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
    if "sympy" in sys.modules:
        sys.modules["sympy"].core.random.seed(None)


def data_bytes(outer_proc: int) -> int:
    """Private writable memory of this process, which RLIMIT_DATA of its children counts too.

    Rounded up, so that programs find the same limit in every zygote.
    """
    fd = os.open("self/statm", os.O_RDONLY, dir_fd=outer_proc)
    size = int(os.read(fd, 256).split()[5]) * resource.getpagesize()
    os.close(fd)
    return -(-size // _ROUND_BYTES) * _ROUND_BYTES


def _import(modules: tuple[str, ...]) -> None:
    for name in modules:
        try:
            _modules[name] = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise


def _warm_up(channel: socket.socket, programs: dict[str, str], startup: str, max_data_bytes: int) -> None:
    """Run warm-ups and the startup cell of sessions; if one fails, report the reason and end this process."""
    from verl_pivot.sandbox.lane.warm_up import WarmUpError, run_warm_ups

    cell = None
    if startup:
        main_module = _modules["__main__"] = new_main_module()
        cell = (_modules[_REPL].compiled_startup(startup), main_module.__dict__)
    try:
        run_warm_ups(
            programs,
            startup=cell,
            on_start=lambda name: send(channel, ("warming", name)),
            max_data_bytes=max_data_bytes,
        )
    except WarmUpError as error:
        send(channel, ("failed_warm_up", str(error)[:_MAX_REASON_LENGTH]))
        os._exit(1)


def main(modules: tuple[str, ...], warm_ups: dict[str, str], startup: str, has_proc: bool) -> None:
    """Import those of `modules` that are installed, run the warm-ups named after them, then fork for the lane.

    Args:
        modules: Names of modules.
        warm_ups: {name of a module: program}.
        startup: Cell that runs ahead of sessions, so that each starts with the names that it defines; "" for none.
        has_proc: Whether pods mount /proc.
    """
    for number in (_ORDERS, _REPORT):
        os.dup2(CHANNEL, number)  # a library that keeps a file open must not get a number that children use
    channel = socket.socket(fileno=CHANNEL)
    for name in (BIND_NOW, IMPORT_FROM):
        del os.environ[name]  # programs inherit the environment
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the lane ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, core_limit())
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NUM_FDS, _NUM_FDS))
    outer_proc = os.open("/proc", os.O_PATH) if has_proc else OUTER_PROC
    _import(modules)
    wanted = {name: code for name, code in warm_ups.items() if name in _modules}
    if wanted or startup:
        _warm_up(channel, wanted, startup, data_bytes(outer_proc) + _WARM_UP_BYTES)
    reseed()  # now, so that lazy modules load what reseed needs before the first fork
    exec(compile(_FIRST_PRINT, "warm", "exec"), {"__name__": "warm"})
    zygote = Zygote(channel, outer_proc, has_proc=has_proc)
    become_fresh()
    syscalls.SeccompFilter(zygote_filter_bytes()).install()
    gc.collect()
    gc.freeze()
    if has_proc:
        syscalls.collapse_memory()
    child = zygote.serve()
    if child is None:
        os._exit(0)  # at a normal exit, DuckDB would print what it leaked
    _become(*child)  # called here and not deeper, so that few frames lie below the program's
