"""The proxy's process as a backend sees it: started if hosts are listed, and replaced when it dies."""

import asyncio
import contextlib
import json
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError
from verl_pivot.sandbox.bubblewrap.privileges import as_ordinary_user
from verl_pivot.sandbox.egress.listed_hosts import parse_host
from verl_pivot.sandbox.egress.pod_share import bounds_for
from verl_pivot.sandbox.egress.proxy_process import READY, ProxySettings
from verl_pivot.sandbox.execution import Network
from verl_pivot.sandbox.lane.egress import VARIABLES

_MAIN = (
    f"import sys; sys.path[:0] = [{str(Path(__file__).parents[3])!r}]; "
    "from verl_pivot.sandbox.egress.proxy_process import main; main()"
)
PROXY_ENDED = "the proxy of this node ended while the program could use it"
_START_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
"""Seconds between two starts."""


class Egress:
    """The proxy through which a node's programs reach the listed hosts; there is none if no host is listed."""

    def __init__(self, hosts: Sequence[str], *, num_pods: int, reaches_own_machine: bool = False) -> None:
        """Check the list; nothing is started yet.

        Args:
            hosts: Entries of the list; empty for no proxy.
            num_pods: Most programs and sessions at once.
            reaches_own_machine: Whether listed addresses of this machine can be reached; for tests.

        Raises:
            ConfigError: If an entry is not valid, or the limit on open files is too low.
        """
        if hosts:
            bounds_for(num_pods, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        for entry in hosts:
            parse_host(entry, reaches_own_machine=reaches_own_machine)
        self._settings: ProxySettings = {
            "hosts": list(hosts),
            "reaches_own_machine": reaches_own_machine,
            "num_pods": num_pods,
        }
        self._num_starts = 0
        self._keeper: asyncio.Task[None] | None = None
        self._ours: socket.socket | None = None
        """End of the channel that lanes and sandboxes inherit."""

    @property
    def fd(self) -> int | None:
        """Descriptor through which sockets reach the proxy; None where there is no proxy."""
        return None if self._ours is None else self._ours.fileno()

    def check(self, network: Network) -> None:
        """Check that a program can have this network.

        Raises:
            SandboxRequestError: If it asks for a proxy and there is none.
        """
        if network is Network.PROXY and not self._settings["hosts"]:
            raise SandboxRequestError(
                "network 'proxy': this service lists no hosts; start it with `verl-pivot sandbox serve --egress "
                "https://HOST`, once for each host"
            )

    def ticket(self, network: Network) -> int | None:
        """Ticket by which `is_valid` tells whether the proxy is still the same; None for a program without a proxy."""
        return self._num_starts if network is Network.PROXY else None

    def is_valid(self, ticket: int | None) -> bool:
        """Whether the proxy has kept running since the ticket was made; if not, a result may be the proxy's fault."""
        return ticket is None or ticket == self._num_starts

    async def start(self) -> None:
        """Start the proxy if hosts are listed; returns when it takes connections.

        Raises:
            ConfigError: If it does not start.
        """
        if not self._settings["hosts"]:
            return
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = await self._spawn(theirs)
        except SandboxError as error:
            theirs.close()
            raise ConfigError(f"egress: {error}") from error
        self._keeper = asyncio.create_task(self._keep(process, theirs))

    async def stop(self) -> None:
        """End the proxy."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    async def _keep(self, process: asyncio.subprocess.Process, theirs: socket.socket) -> None:
        """Replace the proxy whenever it ends; end it with this task."""
        try:
            while True:
                await process.wait()
                self._num_starts += 1
                try:
                    process = await self._spawn(theirs)
                except (SandboxError, OSError):  # no process can be made, for example; programs wait in the channel
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            theirs.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        """Start the process.

        Raises:
            SandboxError: If it does not become ready.
        """
        process = await asyncio.create_subprocess_exec(
            *as_ordinary_user(),
            *(sys.executable, "-P", "-s", "-B", "-c", _MAIN),
            str(theirs.fileno()),
            json.dumps(self._settings),
            pass_fds=(theirs.fileno(),),
            env={},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None, "stdout is a pipe"
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            line = b""
        if line != READY:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise SandboxError("the proxy did not start; see its message in the log of the service")
        return process


def proxy_variables(network: Network) -> dict[str, str]:
    """Variables by which a program finds the proxy; none without one."""
    return dict(VARIABLES) if network is Network.PROXY else {}
