"""PID 1 of a sandbox of backend `bwrap_exec`: ShimPlan -> its steps, run in turn, and a report in lines.

This is the only file of the package inside that sandbox, so it imports the standard library alone, and little of it:
json and signal would take 15 ms. As PID 1 it cannot be killed or stopped from inside, and as it is not dumpable, the
program cannot reach its memory or its file descriptors through /proc.
"""

import binascii
import ctypes
import errno
import marshal
import os
import resource
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing would take 10 ms
if TYPE_CHECKING:
    from verl_pivot.sandbox.bubblewrap.shim_plan import ShimPlan, ShimStep

_PR_SET_DUMPABLE = 4
_NICE = 10
_SIGINT, _SIGKILL, _SIGPIPE, _SIGXFSZ = 2, 9, 13, 25
_DEFAULT = None
_CHANGED_SIGNALS = (_SIGINT, _SIGPIPE, _SIGXFSZ)
"""Signals that Python ignores or handles, which a program that it executes would inherit."""
_libc = ctypes.CDLL(None)


def main(plan_fd: int, report_fd: int, compile_fd: int, go_fd: int, proxy_fd: int = -1) -> None:
    """Run the plan, once a byte comes from the go pipe. The program inherits none of the descriptors.

    Args:
        plan_fd: File with the plan, by marshal.
        report_fd: Pipe for the report.
        compile_fd: Pipe for the compiler's output.
        go_fd: Go pipe; if it closes without a byte, nothing is run.
        proxy_fd: Socket to the proxy, if the plan has one.
    """
    _libc.signal(_SIGINT, _DEFAULT)
    for fd in (plan_fd, report_fd, compile_fd, go_fd):
        os.set_inheritable(fd, False)
    with open(plan_fd, "rb") as stream:
        plan = marshal.load(stream)
    _open_door(plan["proxy"], proxy_fd)
    _report(report_fd, "ready")
    if not os.read(go_fd, 1):
        return
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # only now, as the service first sets this process's oom_score_adj
    environment, folder = plan["environment"], plan["folder"]
    if folder:
        os.makedirs(folder, exist_ok=True)
    if plan["compile"] is not None:
        stdio = (os.open("/dev/null", os.O_RDONLY), compile_fd, compile_fd)
        code = _step(plan["compile"], report_fd, stdio, environment)
        if code != 0:
            return
    os.close(compile_fd)
    if folder:
        environment[b"PWD"] = b"/tmp/" + folder
    _step(plan["run"], report_fd, (0, 1, 2), environment, folder)
    for name in plan["fetch"]:
        _report(report_fd, _fetch(name, plan))
    _report(report_fd, "done")


def _open_door(place: tuple[str, int, int] | None, proxy_fd: int) -> None:
    """Listen in this sandbox's network and give the socket to the proxy, with a pipe that ends with this process."""
    if place is None:
        return
    import socket

    address, port, num_waiting = place
    life, _ = os.pipe()
    with socket.socket(fileno=proxy_fd) as channel, socket.socket() as listener:
        listener.bind((address, port))
        listener.listen(num_waiting)
        socket.send_fds(channel, [marshal.dumps(())], [listener.fileno(), life])
    os.close(life)


def _report(fd: int, message: str) -> None:
    line = message.encode() + b"\n"
    while line:
        line = line[os.write(fd, line) :]


def _step(
    step: "ShimStep", report_fd: int, stdio: tuple[int, int, int], environment: dict[bytes, bytes], folder: bytes = b""
) -> int:
    """Run one command in a folder to its end, then kill whatever it left behind. Returns the command's wait status."""
    error_read, error_write = os.pipe()
    _report(report_fd, "started")
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(step, stdio, environment, folder, error_write)
    os.close(error_write)
    pid = 0
    while pid != child:
        pid, status, usage = os.wait4(-1, 0)
    wall_seconds = time.monotonic() - start
    _end_the_rest()
    exec_error = os.read(error_read, 200).decode("utf-8", "replace")
    os.close(error_read)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    _report(report_fd, f"ended {status} {wall_seconds} {cpu_seconds} {usage.ru_maxrss * 1024} {exec_error}")
    return status


def _become(
    step: "ShimStep", stdio: tuple[int, int, int], environment: dict[bytes, bytes], folder: bytes, error_fd: int
) -> None:
    """Execute a command in place of this process; the reason why that fails is written to `error_fd`."""
    try:
        if folder:
            os.chdir(folder)
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        for number in _CHANGED_SIGNALS:
            _libc.signal(number, _DEFAULT)
        os.nice(_NICE)
        for name, value in step["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value + (name == "RLIMIT_CPU")))
        os.environb.update(environment)
        os.execvp(step["argv"][0], step["argv"])
    finally:  # reached only by an exception
        os.write(error_fd, str(sys.exc_info()[1]).replace("\n", " ").encode())
        os._exit(127)


def _end_the_rest() -> None:
    """Kill daemons and reap zombies, so that nothing changes a file any more."""
    try:
        os.kill(-1, _SIGKILL)
        while True:
            os.wait()
    except (ProcessLookupError, ChildProcessError):
        return


def _fetch(name: bytes, plan: "ShimPlan") -> str:
    """Line of the report for one file: a regular file below the working directory, reached without symbolic links."""
    opened = []
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        opened.append(folder)
        *parents, last = name.split(b"/")
        for part in parents:
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.append(folder)
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.append(fd)
        content = _read(fd, plan)
    except (OSError, ValueError) as error:
        return f"error {_reason(error)}"
    finally:
        for fd in opened:
            os.close(fd)
    plan["max_fetch_bytes"] -= len(content)
    return f"content {binascii.b2a_base64(content, newline=False).decode()}"


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return "a symbolic link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
    return str(error).replace("\n", " ")


def _read(fd: int, plan: "ShimPlan") -> bytes:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("not a regular file")
    if found.st_size > plan["max_fetch_bytes"]:
        raise ValueError(f"{found.st_size} bytes, but only {plan['max_fetch_bytes']} are left for all files together")
    with open(fd, "rb", closefd=False) as stream:
        return stream.read(found.st_size)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
