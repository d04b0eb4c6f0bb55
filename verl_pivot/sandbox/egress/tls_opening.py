"""Opening of a TLS connection through a tunnel: each ClientHello names the tunnel's host before it is sent on.

The server's answer says whether it asks for a second ClientHello, so the client's further bytes wait for that answer.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from verl_pivot.sandbox.egress.client_hello import (
    ClientHello,
    HelloError,
    asks_for_retry,
    before_second_hello,
    hello_message,
    server_name,
)
from verl_pivot.sandbox.egress.pod_share import PodShare

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_READ_BYTES = 64 * 1024
FoundT = TypeVar("FoundT", int, bool, ClientHello)


async def open_tls(host: str, begun: bytes, share: PodShare, near: Streams, far: Streams) -> bool:
    """Send the opening messages on, in both directions; False if the program has used up its bytes.

    Args:
        host: Host to which the tunnel leads.
        begun: Bytes that the program has sent already.
        share: The program's use of the proxy, and its bounds.
        near: Connection of the program.
        far: Connection to the host.

    Raises:
        HelloError: If a message names another host or none, or is out of its order.
        TimeoutError: If one side lets the other wait for too long.
    """
    async with asyncio.timeout(share.bounds.head_seconds):
        hello, begun = await _checked_hello(near[0], begun, host)
    if not share.send(far[1], hello):
        return False
    async with asyncio.timeout(share.bounds.idle_seconds):
        asks_again, answer = await _read_until(asks_for_retry, far[0], b"")
    if not share.send(near[1], answer):
        return False
    if asks_again:
        async with asyncio.timeout(share.bounds.head_seconds):
            num_before, begun = await _read_until(before_second_hello, near[0], begun)
            before, begun = begun[:num_before], begun[num_before:]
            hello, begun = await _checked_hello(near[0], begun, host)
        begun = before + hello + begun
    return share.send(far[1], begun)


async def _checked_hello(reader: asyncio.StreamReader, begun: bytes, host: str) -> tuple[bytes, bytes]:
    """The bytes of a ClientHello that names `host`, and the bytes that have come after it."""
    hello, data = await _read_until(hello_message, reader, begun)
    name = server_name(hello.body)
    if name != host:
        raise HelloError(f"it names {name!r}, and its tunnel leads to {host!r}")
    return data[: hello.num_bytes], data[hello.num_bytes :]


async def _read_until(
    found: Callable[[bytes], FoundT | None], reader: asyncio.StreamReader, data: bytes
) -> tuple[FoundT, bytes]:
    """Read until `found` has a result for the bytes; returns the result, and all bytes that were read."""
    while (result := found(data)) is None:
        more = await reader.read(_READ_BYTES)
        if not more:
            raise HelloError("the connection ends before its opening messages are whole")
        data += more
    return result, data
