"""Network namespaces for pods without a network, made once and used again only when nothing is left in them."""

import functools
import os
import select
import socket
from collections import deque
from dataclasses import dataclass

from verl_pivot.sandbox.lane import syscalls

MAX_RESTING = 32
"""Number of networks of ended pods that are kept. Each takes about 200 KiB of kernel memory, and 0.4 ms to make."""
_NUM_FREE_SOCKETS = 256
"""Number of sockets of a program whose buffers are not added to its memory."""
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """A network namespace whose interfaces are all down."""

    fd: int
    sockets: int
    """Descriptor of its /proc/net/sockstat."""

    @property
    def num_sockets(self) -> int:
        """Number of sockets that are still open somewhere, including those on their way in messages."""
        return _num_sockets(os.pread(self.sockets, _LINE_BYTES, 0))

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.sockets)


def num_sockets_of(pid: int) -> int:
    """Number of sockets in the network of a process; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/net/sockstat", "rb") as file:
            return _num_sockets(file.readline())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def buffer_bytes(num_sockets: int) -> int:
    """Maximum kernel memory in the buffers of this many sockets of one program; the first few sockets do not count."""
    return max(0, num_sockets - _NUM_FREE_SOCKETS) * _bytes_of_socket()


@functools.cache
def _bytes_of_socket() -> int:
    with socket.socket(socket.AF_UNIX) as fresh:  # a program cannot change the sizes of its buffers
        return fresh.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _num_sockets(line: bytes) -> int:
    """`sockets: used 3` -> 3."""
    return int(line.split()[2])


class NetworkPool:
    """Networks for new pods. The process that starts a pod enters one for a moment, then goes back to its own."""

    def __init__(self, outer_proc: int | None) -> None:
        """Take the caller's network as its own.

        Args:
            outer_proc: Descriptor of a /proc that shows this process; None if the process has one.
        """
        self._proc = os.open("/proc", os.O_PATH) if outer_proc is None else outer_proc
        self._own = self._open("ns/net")
        self._resting: deque[tuple[PodNetwork, int]] = deque()
        """Networks of ended pods, oldest first, each with the pidfd of its pod's first process."""

    def enter(self) -> PodNetwork:
        """Enter a network in which no process is; `leave` goes back.

        Raises:
            OSError: If no network can be made.
        """
        if self._resting and _has_ended(self._resting[0][1]) and self._resting[0][0].num_sockets == 0:
            network, pidfd = self._resting.popleft()
            os.close(pidfd)
            syscalls.setns(network.fd, syscalls.CLONE_NEWNET)
            return network
        syscalls.unshare(syscalls.CLONE_NEWNET)
        return PodNetwork(fd=self._open("ns/net"), sockets=self._open("net/sockstat"))

    def leave(self) -> None:
        syscalls.setns(self._own, syscalls.CLONE_NEWNET)

    def give_back(self, network: PodNetwork, pidfd: int) -> None:
        """Keep the network of a killed pod, and close the oldest if too many are kept; takes over both arguments.

        Args:
            network: The pod's network.
            pidfd: Descriptor of the pod's first process, which ends after all others of the pod.
        """
        self._resting.append((network, pidfd))
        if len(self._resting) > MAX_RESTING:
            oldest, its_pidfd = self._resting.popleft()
            oldest.close()
            os.close(its_pidfd)

    def _open(self, name: str) -> int:
        return os.open(f"self/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)


def _has_ended(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))
