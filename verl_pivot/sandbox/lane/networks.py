"""Network namespaces for pods without a network, made once and used again only when nothing is left in them."""

import os
import select
from collections import deque
from dataclasses import dataclass

from verl_pivot.sandbox.lane import syscalls

MAX_RESTING = 32
"""Networks of ended pods that are kept; each takes about 200 KiB of the kernel's memory, and 0.4 ms to make again."""
_NO_SOCKETS = b"sockets: used 0\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """A network namespace whose interfaces are all down."""

    fd: int
    sockets: int
    """Descriptor of its /proc/net/sockstat."""

    @property
    def is_empty(self) -> bool:
        """Whether no socket is left, not even one on its way in a message."""
        return os.pread(self.sockets, len(_NO_SOCKETS), 0) == _NO_SOCKETS

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.sockets)


class NetworkPool:
    """Networks for new pods. The process that uses it enters them for a moment, and then its own again."""

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
        """Enter a network in which nobody is.

        Raises:
            OSError: If none can be made.
        """
        if self._resting and _has_ended(self._resting[0][1]) and self._resting[0][0].is_empty:
            network, pidfd = self._resting.popleft()
            os.close(pidfd)
            syscalls.setns(network.fd, syscalls.CLONE_NEWNET)
            return network
        syscalls.unshare(syscalls.CLONE_NEWNET)
        return PodNetwork(fd=self._open("ns/net"), sockets=self._open("net/sockstat"))

    def leave(self) -> None:
        syscalls.setns(self._own, syscalls.CLONE_NEWNET)

    def give_back(self, network: PodNetwork, pidfd: int) -> None:
        """Keep the network of a pod that was killed, or let the kernel end it; takes over both.

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
