"""Pods: fresh namespaces with a shim as PID 1, in which programs are born and with which they end.

The user's program is never PID 1 (which ignores signals) and stays a direct child of its zygote, which alone reads its
exit status. When the shim is killed the kernel kills whatever is left in the pod.
"""

import ctypes
import mmap
import os
import signal
from dataclasses import dataclass

from verl_pivot.lane import kernel
from verl_pivot.lane.watchdog import is_exiting

NETWORK_NONE, NETWORK_LOOPBACK = "none", "loopback"

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
_CLONE_VM, _CLONE_FILES, _CLONE_PIDFD = 0x100, 0x400, 0x1000
_STACK_BYTES, _NUM_STACKS = 1024, 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """What differs between pods."""

    tmp_bytes: int
    num_tmp_files: int
    network: str
    """none, private or loopback; see sandbox/execution.py."""
    has_proc: bool

    @property
    def namespaces(self) -> int:
        """What a program joins beside its pod's process ids."""
        return _NAMESPACES | (0 if self.network == NETWORK_NONE else kernel.CLONE_NEWNET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod and its shim."""

    shape: PodShape
    pid: int
    pidfd: int

    @property
    def is_alive(self) -> bool:
        """Whether its shim still runs: if not, whatever happened in the pod was not the program's doing."""
        return send_signal(self.pidfd, 0) and not (self.shape.has_proc and is_exiting(self.pid))

    def end(self) -> None:
        """Kill whatever is in it. Once."""
        send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)


def send_signal(pidfd: int, number: int) -> bool:
    """Whether the process still lives."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


class PodMaker:
    """Starts shims that share this process's memory and do nothing but wait, each on a stack of its own.

    Such a shim takes 0.2 ms; a forked one takes 1 ms, most of it for memory that it never reads.
    """

    def __init__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)  # shims have them too: orphans in a pod are reaped by the kernel
        self._stacks = mmap.mmap(-1, _STACK_BYTES * (_NUM_STACKS + 1))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._stacks))
        self._num_made = 0

    def make(self, shape: PodShape) -> Pod:
        """Raise OSError if no process can be made."""
        self._num_made += 1
        stack = self._base + _STACK_BYTES * (self._num_made % _NUM_STACKS + 1)
        flags = shape.namespaces | kernel.CLONE_NEWPID | _CLONE_VM | _CLONE_FILES | _CLONE_PIDFD | signal.SIGCHLD
        pid, pidfd = kernel.clone_to_pause(stack, flags)
        return Pod(shape=shape, pid=pid, pidfd=pidfd)
