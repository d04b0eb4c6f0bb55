"""This process -> the same program in a child; all its processes end with it, however it or this process is killed.

    this process      shows what happens, and is what the user sees and kills
      supervisor      adopts every process below that loses its parent, and ends them all
        the program   goes on where `fork_supervised` was called

Linux only: the kernel signals the supervisor when this process has died, and the program when the supervisor has died.
"""

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2)
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
PROGRAM_SECONDS = 10.0
"""Seconds that the program gets to end by itself: Ray ends its processes when it is asked to."""
REST_SECONDS = 3.0
"""Seconds that all other processes get, before they are killed."""


class SupervisedProgram:
    """A program with its supervisor, as the process that forked them sees them."""

    def __init__(self, pid: int, spared: Collection[int]) -> None:
        self.pid = pid
        self._spared = spared
        """Children that this process had before, which are not ended."""
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Exit code of the program, 128 + the number of a signal that killed it; None while it runs."""
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = _exit_code(status)
                end_descendants(self._spared)  # there are some if the supervisor itself was killed
        return self._exit_code

    def end(self) -> None:
        """End the program and all its processes, and wait until they have ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        while self.poll() is None:
            time.sleep(0.05)

    def follow(self, tick: Callable[[], None], interval_seconds: float = 0.5) -> int:
        """Wait for the end of the program, and call `tick` meanwhile; returns its exit code.

        Raises:
            SystemExit: If this process is asked to end by a signal, after all processes have ended.
        """
        previous = {number: signal.signal(number, _exit) for number in _ENDING}
        try:
            while (code := self.poll()) is None:
                tick()
                time.sleep(interval_seconds)
            return code
        finally:
            for number in _ENDING:  # a second Ctrl-C must not interrupt the end
                signal.signal(number, signal.SIG_IGN)
            self.end()
            for number, handler in previous.items():
                signal.signal(number, handler)


def fork_supervised(output: Path | None = None) -> SupervisedProgram | None:
    """Go on in a supervised child, where this returns None; the calling process gets the SupervisedProgram.

    Must be called by the main thread, before other threads of Python start.

    Args:
        output: File for the child's stdout and stderr; None: it shares those of this process.
    """
    spared = {child.pid for child in psutil.Process().children(recursive=True)}
    _prctl(_SET_CHILD_SUBREAPER, 1)
    this = os.getpid()
    pid = _fork()
    if pid:
        return SupervisedProgram(pid, spared)
    os.setsid()  # Ctrl-C reaches the first process alone, which ends the others in order
    _prctl(_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until `_supervise` is ready for it
    _end_with(this, signal.SIGTERM)
    _redirect(output)
    supervisor = os.getpid()
    program = _fork()
    if program:
        _supervise(program)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _end_with(supervisor, signal.SIGKILL)
    return None


def run_supervised(program: Callable[[], object]) -> None:
    """Run a program in a supervised child that shares this process's output.

    Raises:
        SystemExit: In this process, with the program's exit code.
    """
    supervisor = fork_supervised()
    if supervisor is None:
        program()
        return
    try:
        code = supervisor.follow(lambda: None, interval_seconds=0.1)
    except SystemExit:
        print("\nEnded, with all processes that were started.", file=sys.stderr)
        raise
    raise SystemExit(code)


def end_descendants(spared: Collection[int] = (), rest_seconds: float = REST_SECONDS) -> None:
    """End every process below this one: SIGTERM first, and SIGKILL for those that run after `rest_seconds`."""
    asked: set[int] = set()
    deadline = time.monotonic() + rest_seconds
    while running := _descendants(spared):
        for process in running:
            if time.monotonic() > deadline:
                _send(process, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                _send(process, signal.SIGTERM)
        time.sleep(0.05)


def _supervise(program: int) -> NoReturn:
    """Wait for the program and end the processes that it leaves; end this process with the program's exit code."""
    signal.signal(signal.SIGTERM, _exit)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        code = _await(program)
    except SystemExit as end:  # SIGTERM, also as the kernel's message that the first process has died
        code = int(str(end.code))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(program, signal.SIGTERM)
        deadline = time.monotonic() + PROGRAM_SECONDS
        while psutil.pid_exists(program) and time.monotonic() < deadline:
            _reap()
            time.sleep(0.05)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_descendants()
    os._exit(code)


def _await(program: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            return _exit_code(status)


def _reap() -> None:
    """Reap the children that have ended; there may be none left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _descendants(spared: Collection[int]) -> list[psutil.Process]:
    """Running processes below this one that are not spared; if none is spared, ended children are reaped."""
    if not spared:
        _reap()
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process.pid not in spared and _is_running(process)]


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, here those of OpenBLAS and jemalloc, which both handle forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _redirect(output: Path | None) -> None:
    if output is None:
        return
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)


def _end_with(parent: int, number: signal.Signals) -> None:
    """Ask the kernel for a signal when the parent ends; it may have ended already."""
    _prctl(_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
