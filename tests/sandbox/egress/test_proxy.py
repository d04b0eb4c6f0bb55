"""The proxy before servers on loopback: what reaches a listed host, what is refused and why, and its bounds."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from tests.sandbox.egress.test_client_hello import client_context, client_hello
from tests.support.tls_server import server_context
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.egress import proxy
from verl_pivot.sandbox.egress.listed_hosts import parse_host
from verl_pivot.sandbox.egress.pod_share import EgressBounds, bounds_for
from verl_pivot.sandbox.egress.proxy import EgressProxy

SERVER_HELLO = b"\x16\x03\x03\x00\x28\x02\x00\x00\x24\x03\x03" + bytes(34)
EARLY = b"\x17\x03\x03\x00\x01x"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@dataclass(kw_only=True)
class Farm:
    """Proxy before one server; the server keeps what it reads, and answers each connection once."""

    port: int = 0
    server_port: int = 0
    received: list[bytes] = field(default_factory=list)
    """What the server has read, by connection."""

    async def ask(self, request: bytes, *, then: bytes = b"", seconds: float = 5.0) -> bytes:
        """Bytes that come back over one connection to the proxy; `then` is sent after the first answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request.replace(b"PORT", str(self.server_port).encode()))
        answer = b""
        async with asyncio.timeout(seconds):
            if then:
                answer = await reader.readuntil(b"\r\n\r\n")
                writer.write(then)
            answer += await reader.read(-1)
        writer.close()
        return answer


@contextlib.asynccontextmanager
async def farm(
    *entries: str,
    bounds: EgressBounds | None = None,
    found: Sequence[str] = (),
    answer: bytes = ANSWER,
    later: Sequence[bytes] = (),
    reaches_own_machine: bool = True,
) -> AsyncIterator[Farm]:
    """Run a proxy and its server; PORT in an entry stands for the server's port.

    Args:
        entries: Entries of the list.
        bounds: Bounds of the proxy.
        found: Addresses that DNS gives for every name.
        answer: Answer of the server; with an empty one it reads on.
        later: Pieces that follow the answer, 0.1 s apart; then the server closes the connection.
        reaches_own_machine: Whether the proxy may reach listed addresses of this machine.
    """
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = len(received)
        received.append(b"")
        while data := await reader.read(65536):
            received[index] += data
            if received[index] == data:
                writer.write(answer)
                for piece in later:
                    await asyncio.sleep(0.1)
                    writer.write(piece)
                if later or (answer and b"Connection: close" in data):
                    break
        writer.close()

    async def resolve(name: str, port: int) -> list[str]:
        return list(found)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hosts = [parse_host(entry.replace("PORT", str(port)), reaches_own_machine=True) for entry in entries]
    made_proxy = EgressProxy(hosts, bounds, resolve=resolve, reaches_own_machine=reaches_own_machine)
    listener = socket.create_server(("127.0.0.1", 0))
    made = Farm(received=received, server_port=port, port=listener.getsockname()[1])
    serving = asyncio.create_task(made_proxy.serve_pod(listener))
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        server.close()
        await server.wait_closed()


HTTP = "http://web.test:PORT=127.0.0.1"
TLS = "https://web.test:PORT=127.0.0.1"
CONNECT = b"CONNECT web.test:PORT HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n"


async def test_a_plain_request_reaches_a_listed_host_as_a_request_of_its_own() -> None:
    request = (
        b"POST http://web.test:PORT/a?b=c HTTP/1.1\r\nHost: web.test:PORT\r\nProxy-Authorization: Basic x\r\n"
        b"Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n"
        b"Content-Length: 4\r\n\r\nbodyGET http://evil.test/ HTTP/1.1\r\n\r\n"
    )
    async with farm(HTTP) as made:
        assert await made.ask(request) == ANSWER
        head, _, body = made.received[0].partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        assert lines[0] == b"post /a?b=c http/1.1"
        host = f"host: web.test:{made.server_port}".encode()
        assert sorted(lines[1:]) == [b"connection: close", b"content-length: 4", host, b"x-kept: 2"]
        assert body == b"body"


async def test_a_chunked_body_stays_one() -> None:
    request = b"POST http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with farm(HTTP) as made:
        assert await made.ask(request + b"4\r\nbody\r\n0\r\n\r\n") == ANSWER
        await asyncio.sleep(0.05)
        assert made.received[0].endswith(b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n")


async def test_a_tunnel_lets_tls_through_to_the_host_that_it_names() -> None:
    hello = client_hello("web.test")
    async with farm(TLS, answer=SERVER_HELLO) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(CONNECT.replace(b"PORT", str(made.server_port).encode()))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(hello)
        assert await reader.readexactly(len(SERVER_HELLO)) == SERVER_HELLO
        writer.write(b"more")
        writer.write_eof()
        assert await reader.read(-1) == b""
        assert made.received == [hello + b"more"]
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "first",
    [
        client_hello("evil.test"),
        client_hello(None),
        client_hello("a.web.test"),
        b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"SSH-2.0-x\r\n",
        client_hello("web.test")[:100],
    ],
    ids=["another host", "no host", "a host below it", "plain http", "ssh", "a message that is cut off"],
)
async def test_a_tunnel_to_another_host_than_its_tls_names_carries_nothing(first: bytes) -> None:
    async with farm(TLS, bounds=EgressBounds(head_seconds=0.3)) as made:
        answer = await made.ask(CONNECT, then=first)
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        await asyncio.sleep(0.05)
        assert b"".join(made.received) == b""


async def test_a_server_of_another_protocol_answers_nobody_in_a_tunnel() -> None:
    hello = client_hello("web.test")
    async with farm(TLS, answer=b"SSH-2.0-x\r\n") as made:
        answer = await made.ask(CONNECT, then=hello + EARLY)
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert made.received == [hello]


@pytest.fixture(scope="module")
def asking_again(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Context of a server that takes only keys of P-521, and so asks OpenSSL's client for a second ClientHello."""
    context = server_context(tmp_path_factory.mktemp("certificate"))
    context.set_ecdh_curve("secp521r1")
    return context


async def second_hello(context: ssl.SSLContext, *, name: str) -> tuple[bytes, list[str]]:
    """(bytes that a client gets through a tunnel after a second ClientHello with `name`, names that the server got)."""
    names: list[str] = []
    context.sni_callback = lambda _, named, __: names.append(str(named))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    listener = socket.create_server(("127.0.0.1", 0))
    hosts = [parse_host(f"https://web.test:{port}=127.0.0.1", reaches_own_machine=True)]
    serving = asyncio.create_task(EgressProxy(hosts, reaches_own_machine=True).serve_pod(listener))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="web.test")
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(CONNECT.replace(b"PORT", str(port).encode()))
    await reader.readuntil(b"\r\n\r\n")
    got, flight = b"", 0
    async with asyncio.timeout(10.0):
        while not got:
            try:
                got = client.read()
            except ssl.SSLWantReadError:
                data = outgoing.read()
                flight += bool(data)
                writer.write(data.replace(b"web.test", name.encode()) if flight == 2 else data)
                incoming.write(more) if (more := await reader.read(65536)) else incoming.write_eof()
            except ssl.SSLEOFError:
                break
    writer.close()
    serving.cancel()
    await asyncio.wait([serving])
    server.close()
    return got, names


async def test_a_second_client_hello_names_the_host_of_the_tunnel_too(asking_again: ssl.SSLContext) -> None:
    assert await second_hello(asking_again, name="web.test") == (b"hello", ["web.test", "web.test"])
    assert await second_hello(asking_again, name="bad.test") == (b"", ["web.test"])


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403),
        (b"GET http://web.test:22/ HTTP/1.1\r\nHost: web.test:22\r\n\r\n", 403),
        (b"GET http://web.test:99999999/ HTTP/1.1\r\nHost: web.test\r\n\r\n", 403),
        (b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 403),
        (b"GET http://[::1]:PORT/ HTTP/1.1\r\nHost: [::1]:PORT\r\n\r\n", 403),
        (b"GET http://0x7f.1:PORT/ HTTP/1.1\r\nHost: 0x7f.1:PORT\r\n\r\n", 403),
        (b"GET http://web.test:PORT@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403),
        (b"GET http://evil.test#web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 400),
        (b"GET http://evil.test\\web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 403),
        (b"GET http://web..test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 403),
        (b"GET http://" + b"a" * 64 + b".test/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 403),
        (b"GET http://" + b"a." * 200 + b"test/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 403),
        (b"GET http://web.test\xff:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 400),
        (b"GET http://web.test:PORT/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 400),
        (b"GET http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:1\r\n\r\n", 400),
        (b"GET http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\nHost: evil.test\r\n\r\n", 400),
        (b"GET http://web.test:PORT/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 400),
        (b"GET ftp://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 400),
        (b"CONNECT web.test:PORT HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 403),  # listed only for plain requests
        (b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", 403),
        (b"CONNECT evil.test:443 HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n", 400),
        (b"CONNECT web.test HTTP/1.1\r\nHost: web.test\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", 400),
        (
            b"POST http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"GET http://web.test:PORT/" + b"a" * 70000, 400),
    ],
)
async def test_what_names_no_listed_host_or_names_two_is_refused(request_text: bytes, status: int) -> None:
    async with farm(HTTP) as made:
        answer = await made.ask(request_text)
        assert int(answer.split()[1]) == status
        assert b"\r\n\r\nverl-pivot sandbox: " in answer
        assert made.received == []


PLAIN = b"GET http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n"


@pytest.mark.parametrize("found", [["127.0.0.1"], ["10.0.0.1", "::ffff:127.0.0.1"], ["::127.0.0.1", "fe80::1%lo"], []])
async def test_a_name_that_dns_leads_into_this_network_is_refused(found: list[str]) -> None:
    async with farm("http://web.test:PORT", found=found) as made:
        answer = await made.ask(PLAIN)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"no address on the public internet" in answer
        assert made.received == []


async def test_without_the_allowance_of_tests_this_machine_is_not_reached() -> None:
    async with farm(HTTP, reaches_own_machine=False) as made:
        assert b"web.test has an address of this machine" in await made.ask(PLAIN)
        assert made.received == []


async def test_the_address_that_was_checked_is_the_one_that_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []

    async def refuse(address: str, port: int) -> None:
        opened.append((address, port))
        raise OSError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(proxy, "_open", refuse)
    async with farm("http://web.test:PORT", found=["127.0.0.1", "8.8.4.4", "10.0.0.1", "8.8.8.8"]) as made:
        assert b"web.test cannot be reached: Connection refused" in await made.ask(PLAIN)
        assert opened == [("8.8.4.4", made.server_port), ("8.8.8.8", made.server_port)]


async def test_a_program_has_a_bounded_number_of_connections_and_more_wait_for_one_that_ends() -> None:
    async with farm(HTTP, bounds=EgressBounds(pod_connections=2, head_seconds=30.0)) as made:
        idle = [await asyncio.open_connection("127.0.0.1", made.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        asking = asyncio.create_task(made.ask(PLAIN))
        await asyncio.sleep(0.2)
        assert not asking.done()
        idle[0][1].close()
        assert await asking == ANSWER
        idle[1][1].close()


async def test_all_programs_together_have_a_bounded_number_of_connections() -> None:
    async with farm(TLS, bounds=EgressBounds(all_connections=1, idle_seconds=30.0)) as made:
        connect = CONNECT.replace(b"PORT", str(made.server_port).encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(connect)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        asking = asyncio.create_task(made.ask(connect, then=b"x"))
        await asyncio.sleep(0.2)
        assert not asking.done()
        writer.close()
        assert b" 200 " in await asking


def test_the_proxy_has_room_for_all_programs_or_does_not_start() -> None:
    assert bounds_for(num_pods=1024, num_fds=1_048_576).all_connections == 8 * 1024
    assert bounds_for(num_pods=160, num_fds=1024).all_connections == (1024 - 128 - 320) // 3
    with pytest.raises(ConfigError, match="1024 open files is too low for a proxy of 512 programs"):
        bounds_for(num_pods=512, num_fds=1024)


async def test_a_program_has_a_bounded_number_of_bytes_in_both_directions_together() -> None:
    body = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(400_000)
    async with farm(HTTP, bounds=EgressBounds(pod_bytes=500_000), answer=body) as made:
        assert len(await made.ask(PLAIN)) == len(body)
        assert len(await made.ask(PLAIN)) <= 500_000 - len(body)
        assert await made.ask(PLAIN) == b""
        assert len(b"".join(made.received)) < 500


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with farm(HTTP, bounds=EgressBounds(head_seconds=0.1)) as made:
        assert await made.ask(b"", seconds=2.0) == b""
    async with farm(TLS, bounds=EgressBounds(idle_seconds=0.1), answer=b"") as made:
        answer = await made.ask(CONNECT, then=client_hello("web.test"), seconds=2.0)
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"


async def test_a_long_answer_comes_whole_though_the_program_is_silent_meanwhile() -> None:
    pieces = [EARLY] * 10
    async with farm(TLS, bounds=EgressBounds(idle_seconds=0.4), answer=SERVER_HELLO, later=pieces) as made:
        answer = await made.ask(CONNECT, then=client_hello("web.test"))
        assert answer.endswith(SERVER_HELLO + b"".join(pieces))


async def test_a_long_request_goes_out_whole_though_the_host_is_silent_meanwhile() -> None:
    head = b"POST http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\nContent-Length: 10\r\n\r\n"
    async with farm(HTTP, bounds=EgressBounds(idle_seconds=0.4), answer=b"") as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(head.replace(b"PORT", str(made.server_port).encode()))
        for digit in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"%d" % digit)
        assert await reader.read(-1) == b""  # the proxy closes what is idle
        writer.close()

        assert made.received[0].endswith(b"\r\n\r\n0123456789")
