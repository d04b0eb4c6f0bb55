"""Access from a pod to hosts outside: a socket that listens in the pod's network, served by the service's proxy."""

import os
import socket

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.confinement import raise_loopback
from verl_pivot.sandbox.lane.fd_passing import send

NETWORK_PROXY = "proxy"
"""Value of sandbox.execution.Network, a class that a lane cannot import."""
ADDRESS = ("127.0.0.1", 3128)
"""Address at which a program finds the proxy."""
VARIABLES = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:3128"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1"),
}
"""Variables by which programs find the proxy by themselves."""
NUM_WAITING = 16
"""Number of connections that may wait until the proxy takes them."""
BUFFER_BYTES = 64 * 1024
"""Size of each buffer of a connection on the proxy's side; the kernel would let it grow."""


class EgressDoor:
    """Connects new pods to the proxy. The process that starts a pod enters its network for a moment, then goes back."""

    def __init__(self, channel_fd: int, outer_proc: int | None) -> None:
        """Take the caller's network as its own.

        Args:
            channel_fd: Descriptor of the socket to the proxy.
            outer_proc: Descriptor of a /proc that shows this process; None if the process has one.
        """
        self._channel = socket.socket(fileno=channel_fd)
        self._channel.setblocking(False)
        proc = os.open("/proc", os.O_PATH) if outer_proc is None else outer_proc
        self._own = os.open("self/ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)

    def enter(self) -> socket.socket:
        """Enter a new network, in which 127.0.0.1 is up; returns the socket that listens there.

        Raises:
            OSError: If no network or socket can be made.
        """
        syscalls.unshare(syscalls.CLONE_NEWNET)
        raise_loopback()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit these sizes
            listener.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        listener.bind(ADDRESS)
        listener.listen(NUM_WAITING)
        return listener

    def leave(self) -> None:
        syscalls.setns(self._own, syscalls.CLONE_NEWNET)

    def hand_over(self, listener: socket.socket, pidfd: int) -> None:
        """Give the socket to the proxy, which keeps it until the process of `pidfd` ends; closes it in this process.

        Raises:
            OSError: If the proxy does not take it.
        """
        send(self._channel, (), (listener.fileno(), pidfd))
        listener.close()
