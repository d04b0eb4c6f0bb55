"""Entry point of the proxy's process: takes the listening sockets of pods, and serves each until its pod ends."""

import asyncio
import json
import os
import resource
import socket
import sys
from functools import partial
from typing import TypedDict

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.egress.listed_hosts import parse_host
from verl_pivot.sandbox.egress.pod_share import bounds_for
from verl_pivot.sandbox.egress.proxy import EgressProxy
from verl_pivot.sandbox.lane.fd_passing import receive

READY = b"ready\n"
_NUM_FDS = 2
_NICE = 5
"""Niceness, added to the service's: a program that moves much data slows others' downloads, but not their results."""


class ProxySettings(TypedDict):
    """Settings of the proxy, which it gets as JSON at its start."""

    hosts: list[str]
    """Entries of the list of hosts that programs may reach."""
    reaches_own_machine: bool
    num_pods: int
    """Maximum number of programs and sessions at once."""


class ProxyServer:
    """Serves the sockets that come through the channel, which lanes and sandboxes write to."""

    def __init__(self, channel: socket.socket, proxy: EgressProxy) -> None:
        self.ended = asyncio.Event()
        """Event that is set when nobody can send a socket any more."""
        self._channel = channel
        self._proxy = proxy
        self._pods: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """Take sockets from now on."""
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._take)

    def _take(self) -> None:
        fds = _received(self._channel)
        if fds is None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.ended.set()
            return
        pod = asyncio.create_task(self._serve(*fds))
        self._pods.add(pod)
        pod.add_done_callback(self._forget)

    def _forget(self, pod: asyncio.Task[None]) -> None:
        self._pods.discard(pod)
        if not pod.cancelled():
            pod.result()  # what it raises goes to the log

    async def _serve(self, listener_fd: int, life_fd: int) -> None:
        """Serve a pod until it ends.

        Args:
            listener_fd: Listening socket in its network.
            life_fd: Descriptor that becomes readable at its end.
        """
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(life_fd, over.set)
        serving = asyncio.create_task(self._proxy.serve_pod(socket.socket(fileno=listener_fd)))
        serving.add_done_callback(lambda _: over.set())
        await over.wait()
        loop.remove_reader(life_fd)
        os.close(life_fd)
        if serving.done():  # the proxy itself failed, which must not look like a failure of the network
            self.ended.set()
            serving.result()
        serving.cancel()
        await asyncio.wait([serving])


def _received(channel: socket.socket) -> tuple[int, int] | None:
    """The next listening socket, with the descriptor that tells of its pod's end; None when no sender is left.

    Raises:
        SandboxError: If this process cannot open more files. It must end then, since a program would be cut off.
    """
    received = receive(channel)
    if received is None:
        return None
    _, fds = received
    if len(fds) != _NUM_FDS:
        raise SandboxError("the proxy cannot open more files: raise the limit on open files")
    return fds[0], fds[1]


async def _main(channel_fd: int, settings: ProxySettings) -> None:
    reaches_own_machine = settings["reaches_own_machine"]
    hosts = [parse_host(text, reaches_own_machine=reaches_own_machine) for text in settings["hosts"]]
    _, num_fds = resource.getrlimit(resource.RLIMIT_NOFILE)
    bounds = bounds_for(settings["num_pods"], num_fds)
    proxy = EgressProxy(hosts, bounds, reaches_own_machine=reaches_own_machine)
    server = ProxyServer(socket.socket(fileno=channel_fd), proxy)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(partial(_end_on_failure, server))
    server.listen()
    os.write(sys.stdout.fileno(), READY)
    await server.ended.wait()


def _end_on_failure(server: ProxyServer, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log a failure, and go on; end this process only if a socket could not be taken."""
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), SandboxError):
        server.ended.set()


def main() -> None:
    """Run with two arguments: the channel's descriptor, and ProxySettings as JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(_NICE)
    asyncio.run(_main(int(sys.argv[1]), json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
