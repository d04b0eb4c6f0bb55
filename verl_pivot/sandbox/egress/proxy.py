"""Proxy for the connections of programs: to listed hosts, at addresses that it has looked up itself, within bounds.

A program reaches it through a listening socket in its own network, so every connection to that socket comes from that
program.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from verl_pivot.extras import extra
from verl_pivot.sandbox.egress.addresses import is_of_this_machine, is_public
from verl_pivot.sandbox.egress.client_hello import HelloError
from verl_pivot.sandbox.egress.listed_hosts import Destination, ListedHost, listed_host
from verl_pivot.sandbox.egress.pod_share import Activity, EgressBounds, PodShare
from verl_pivot.sandbox.egress.proxy_request import ProxyRequest, Refused, read_request
from verl_pivot.sandbox.egress.tls_opening import Streams, open_tls

with extra("sandbox"):
    import h11

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Function that looks up a name in DNS: (name, port) -> addresses as text."""
_MAX_HEAD_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
_NUM_LOOKUPS = 32
_LAST_SECONDS = 1.0
"""Seconds that a program has to read why it is refused."""
_MAX_ADDRESSES = 4
_NEXT_ADDRESS_SECONDS = 4.0
"""Seconds that one address of a host has to answer before the next one is tried."""
_threads = ThreadPoolExecutor(_NUM_LOOKUPS, thread_name_prefix="dns")


class EgressProxy:
    """Serves the connections of all programs of a node."""

    def __init__(
        self,
        hosts: Sequence[ListedHost],
        bounds: EgressBounds | None = None,
        *,
        resolve: Resolve | None = None,
        reaches_own_machine: bool = False,
    ) -> None:
        """Begin.

        Args:
            hosts: Hosts that programs may reach.
            bounds: Bounds on the use by programs; None for the defaults.
            resolve: Look-up of names; None for the machine's own.
            reaches_own_machine: Whether programs may reach listed addresses of this machine. For tests.
        """
        self.bounds = bounds or EgressBounds()
        self._hosts = hosts
        self._resolve = resolve or look_up
        self._reaches_own_machine = reaches_own_machine
        self._connections = asyncio.Semaphore(self.bounds.all_connections)

    async def serve_pod(self, listener: socket.socket) -> None:
        """Serve the connections of one program, and take over its listening socket; cancelling this call closes all."""
        share = PodShare(self.bounds)
        listener.setblocking(False)
        with listener:
            async with asyncio.TaskGroup() as connections:
                while True:
                    await share.connections.acquire()
                    accepted = await self._accept(listener)
                    connection = connections.create_task(self._serve(share, accepted))
                    connection.add_done_callback(lambda _: self._release(share))

    async def _accept(self, listener: socket.socket) -> socket.socket:
        """The next connection, once there is room for it; connections that are not accepted yet do not count."""
        while True:
            await _readable(listener)
            await self._connections.acquire()
            try:
                return listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):  # its program has given it up
                self._connections.release()
            except OSError:
                self._connections.release()
                raise

    def _release(self, share: PodShare) -> None:
        share.connections.release()
        self._connections.release()

    async def _serve(self, share: PodShare, accepted: socket.socket) -> None:
        """Serve one connection of a program to its end."""
        reader, writer = await asyncio.open_connection(sock=accepted, limit=_READ_BYTES)
        try:
            await self._serve_counted(share, reader, writer)
        except Refused as refusal:
            await _refuse(reader, writer, refusal)
        except (OSError, TimeoutError):
            return
        finally:
            writer.close()

    async def _serve_counted(self, share: PodShare, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        async with asyncio.timeout(self.bounds.head_seconds):
            request = await _head(parser, reader)
        there, back = await self._connect(request.destination, share)
        try:
            if request.forwarded is None:
                await self._tunnel(request, parser.trailing_data[0], share, (reader, writer), (there, back))
            else:
                await self._forward(request.forwarded, parser, share, (reader, writer), (there, back))
        finally:
            back.close()

    async def _connect(self, wanted: Destination, share: PodShare) -> Streams:
        """Connect to the address of a listed host, looked up once."""
        host = listed_host(self._hosts, wanted)
        if host is None:
            raise Refused(403, f"{wanted.scheme}://{wanted.host}:{wanted.port} is not listed for programs of this node")
        try:
            async with asyncio.timeout(self.bounds.connect_seconds):
                return await _open_first(await self._addresses(host, wanted, share), wanted.port)
        except TimeoutError as error:
            raise Refused(504, f"{wanted.host} did not answer within {self.bounds.connect_seconds:.0f} s") from error
        except OSError as error:
            raise Refused(502, f"{wanted.host} cannot be reached: {error.strerror or error}") from error

    async def _addresses(self, host: ListedHost, wanted: Destination, share: PodShare) -> list[str]:
        if host.address is not None:
            address = str(host.address)
            if is_of_this_machine(address) and not self._reaches_own_machine:
                raise Refused(403, f"{wanted.host} has an address of this machine")
            return [address]
        async with share.lookups:
            found = await self._resolve(wanted.host, wanted.port)
        allowed = [address for address in found if is_public(address) and not is_of_this_machine(address)]
        if not allowed:
            raise Refused(403, f"{wanted.host} has no address on the public internet")
        return allowed[:_MAX_ADDRESSES]

    async def _tunnel(
        self,
        request: ProxyRequest,
        begun: bytes,
        share: PodShare,
        near: Streams,
        far: Streams,
    ) -> None:
        """Let TLS through, once its opening messages name the host of the tunnel."""
        near[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            has_bytes_left = await open_tls(request.destination.host, begun, share, near, far)
        except HelloError:  # there is no way left to tell the program
            return
        if has_bytes_left:
            activity = Activity(self.bounds.idle_seconds)
            await _both(_copy(near[0], far[1], share, activity), _copy(far[0], near[1], share, activity))

    async def _forward(
        self,
        request: h11.Request,
        parser: h11.Connection,
        share: PodShare,
        near: Streams,
        far: Streams,
    ) -> None:
        """Send one request on, and its answer back; the end of the answer ends both directions."""

        activity = Activity(self.bounds.idle_seconds)

        async def answer() -> bool:
            await _copy(far[0], near[1], share, activity)
            return False

        await _both(_send_request(request, parser, share, (near[0], far[1]), activity), answer())


async def _send_request(
    request: h11.Request,
    parser: h11.Connection,
    share: PodShare,
    streams: Streams,
    activity: Activity,
) -> bool:
    """Send a request on; False if the answer is not worth waiting for."""
    reader, writer = streams
    sender = h11.Connection(h11.CLIENT)
    event: h11.Event = request
    while True:
        try:
            data = sender.send(event) or b""
        except h11.LocalProtocolError:  # the body does not match its head
            return False
        if not share.spend(len(data)):
            return False
        writer.write(data)
        await activity.of(writer.drain)
        if isinstance(event, h11.EndOfMessage):
            return True
        event = await activity.of(partial(_next_event, parser, reader))


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: PodShare, activity: Activity
) -> bool:
    """Copy one direction to its end; False if the other direction has to end as well."""
    while True:
        data = await activity.of(partial(reader.read, _READ_BYTES))
        if not data:
            if writer.can_write_eof():
                writer.write_eof()
            return True
        if not share.spend(len(data)):
            return False
        writer.write(data)
        await activity.of(writer.drain)


async def _readable(listener: socket.socket) -> None:
    """Wait until there is a connection to accept."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Event()
    loop.add_reader(listener.fileno(), waiting.set)
    try:
        await waiting.wait()
    finally:
        loop.remove_reader(listener.fileno())


async def look_up(name: str, port: int) -> list[str]:
    """Addresses of a name, by the resolver of this machine."""

    def ask() -> list[str]:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        return [str(address[0]) for *_, address in found]

    return await asyncio.get_running_loop().run_in_executor(_threads, ask)


async def _open_first(addresses: Sequence[str], port: int) -> Streams:
    """Connect to the first of the addresses, which are not looked up again, that answers."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_NEXT_ADDRESS_SECONDS):
                return await _open(address, port)
    return await _open(addresses[-1], port)


async def _open(address: str, port: int) -> Streams:
    return await asyncio.open_connection(address, port, limit=_READ_BYTES, flags=socket.AI_NUMERICHOST)


async def _head(parser: h11.Connection, reader: asyncio.StreamReader) -> ProxyRequest:
    event = await _next_event(parser, reader)
    if not isinstance(event, h11.Request):
        raise Refused(400, "this is not an HTTP request")
    request = read_request(event)
    if request.forwarded is None and not isinstance(await _next_event(parser, reader), h11.EndOfMessage):
        raise Refused(400, "a CONNECT request must not have a body")
    return request


async def _next_event(parser: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    while True:
        try:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Event):
                return event
            else:
                raise Refused(400, "the request is followed by more data")
        except h11.RemoteProtocolError as error:
            raise Refused(400, f"this is not an HTTP request: {error}") from error


async def _both(*directions: Awaitable[bool]) -> None:
    """Wait until both directions have ended, or until one returns False or raises; then end the other."""
    tasks = {asyncio.ensure_future(direction) for direction in directions}
    waiting = tasks
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            results = [task.result() for task in done]  # of all of them, as each may raise
            if not all(results):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: Refused) -> None:
    text = f"verl-pivot sandbox: {refusal.reason}\n".encode("utf-8", "backslashreplace")
    head = f"HTTP/1.1 {refusal.status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LAST_SECONDS):
            writer.write_eof()
            while await reader.read(_READ_BYTES):  # closing with unread data would discard the answer
                pass
