"""Programs and sessions that reach the hosts which their service lists, and no others, on both backends."""

import asyncio
import functools
import http.server
import os
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import IS_ROOT, Kind, Service, service, start_service, until
from tests.support.tls_server import server_context
from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.execution import Limits, Network, Program

pytestmark = needs_sandbox

Reaching = Callable[[Kind], Service]
LIMITS = Limits(wall_seconds=20.0)
BACKENDS = {Kind.ZYGOTE: "ReachingZygoteBackend", Kind.BWRAP_EXEC: "ReachingBwrapBackend"}
KINDS = [Kind.ZYGOTE, Kind.BWRAP_EXEC, *([Kind.BY_ROOT] if IS_ROOT else []), Kind.WITHOUT_PROC]
FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode().strip())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print(type(error).__name__, error)
"""
DIRECT = """
import os, socket
for name in list(os.environ):
    if name.lower().endswith("_proxy"):
        del os.environ[name]
def reach(*address):
    with socket.socket() as probe:
        probe.settimeout(2)
        try:
            probe.connect(address)
            return "reached"
        except OSError as error:
            return type(error).__name__
print(reach("127.0.0.1", PORT), reach("10.0.0.1", 80), reach("127.0.0.1", 3128))
try:
    print(socket.getaddrinfo("web.test", 80))
except OSError as error:
    print(type(error).__name__)
"""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.headers['Host']} {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a web server on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a web server on this machine that speaks TLS, with a certificate of its own."""
    context = server_context(tmp_path_factory.mktemp("certificate"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def reaching(port: int, tls_port: int) -> Iterator[Reaching]:
    """Function: kind -> service of this kind, started once, whose list has web.test with both web servers."""

    @functools.cache
    def start(kind: Kind) -> Service:
        backend = f"tests.support.egress_backends:{BACKENDS.get(kind, 'ReachingZygoteBackend')}"
        entry = f"http://web.test:{port}=127.0.0.1"
        secure = f"https://web.test:{tls_port}=127.0.0.1"
        arguments = ("--backend", backend, "--egress", entry, "--egress", secure)
        started.append(start_service(kind, *arguments, lanes=1))
        return started[-1]

    started: list[Service] = []
    yield start
    for made in started:
        made.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_reaches_listed_hosts_through_the_proxy_and_nothing_else(
    kind: Kind, port: int, reaching: Reaching
) -> None:
    made = reaching(kind)
    urls = (
        f"http://web.test:{port}/a",
        f"http://evil.test:{port}/",
        f"http://127.0.0.2:{port}/",
        "https://web.test/",
    )
    lines = made.output(FETCH, args=urls, network=Network.PROXY, limits=LIMITS).splitlines()
    assert lines[0] == f"web.test:{port} /a"
    assert lines[1] == f"403 verl-pivot sandbox: http://evil.test:{port} is not listed for programs of this node"
    assert lines[2].startswith("403 verl-pivot sandbox: '127.0.0.2:")
    assert "403" in lines[3]
    direct = made.output(DIRECT.replace("PORT", str(port)), network=Network.PROXY, limits=LIMITS).splitlines()
    assert direct == ["ConnectionRefusedError OSError reached", "gaierror"]
    others = made.output(FETCH, args=urls[:1], limits=LIMITS)
    assert "Error" in others


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
def test_tls_goes_from_end_to_end_and_to_no_other_name(kind: Kind, tls_port: int, reaching: Reaching) -> None:
    code = f"""
import http.client, ssl
context = ssl._create_unverified_context()
tunnel = http.client.HTTPSConnection("127.0.0.1", 3128, context=context, timeout=10)
tunnel.set_tunnel("web.test", {tls_port})
tunnel.request("GET", "/s")
print(tunnel.getresponse().read().decode().strip())
other = http.client.HTTPConnection("127.0.0.1", 3128, timeout=10)
other.set_tunnel("web.test", {tls_port})
other.connect()
try:
    context.wrap_socket(other.sock, server_hostname="evil.test")
except OSError as error:
    print(type(error).__name__)
"""
    output = reaching(kind).output(code, network=Network.PROXY, limits=LIMITS).splitlines()
    assert output[0] == f"web.test:{tls_port} /s"
    assert output[1] in ("SSLEOFError", "ConnectionResetError")


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_out_ends_with_its_program_and_leaves_nothing_in_the_proxy(
    kind: Kind, port: int, reaching: Reaching
) -> None:
    code = FETCH + "import os, time\nif os.fork() == 0: time.sleep(100)"
    made = reaching(kind)
    (proxy,) = [pid for pid in descendants(made.pid) if _is_proxy(pid)]
    program = Program(code=code, args=(f"http://web.test:{port}/",), network=Network.PROXY, limits=LIMITS)
    before = _num_open(proxy)
    made.run_many([program] * 8)
    assert until(lambda: _num_open(proxy) <= before), (before, _num_open(proxy))


def _is_proxy(pid: int) -> bool:
    try:
        return b"egress.proxy_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _num_open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
def test_no_program_holds_the_socket_by_which_sandboxes_reach_the_proxy(kind: Kind, reaching: Reaching) -> None:
    code = """
import os
for number in range(200):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}")[:6])
    except FileNotFoundError:
        pass
"""
    assert reaching(kind).output(code, network=Network.PROXY, limits=LIMITS) == service(kind).output(
        code, limits=LIMITS
    )


FLOOD = """
import os, socket, time
def connect():
    made = socket.socket()
    made.settimeout(1)
    try:
        made.connect(("127.0.0.1", 3128))
    except OSError:
        pass
    return made
for _ in range(4):
    if os.fork() == 0:
        break
held, end = [], time.monotonic() + 4
while time.monotonic() < end:
    held.append(connect())
    for data in (b"GET http://" + b"a" * 100_000, bytes(50_000), b"CONNECT web.test:1 HTTP/1.1\\r\\n"):
        try:
            connect().send(data)
        except OSError:
            pass
    del held[:-200]
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
def test_a_program_that_floods_the_proxy_changes_no_result_of_others(kind: Kind, port: int, reaching: Reaching) -> None:
    url = f"http://web.test:{port}/h"
    honest = [Program(code=FETCH, args=(url,), network=Network.PROXY, limits=LIMITS) for _ in range(20)]
    hostile = Program(code=FLOOD, network=Network.PROXY, limits=Limits(wall_seconds=8.0))
    results = reaching(kind).run_many([hostile, *honest, hostile])
    assert {result.stdout for result in results[1:-1]} == {f"web.test:{port} /h\n"}
    (proxy,) = [pid for pid in descendants(reaching(kind).pid) if _is_proxy(pid)]
    assert until(lambda: _num_open(proxy) < 40)


def test_cells_reach_listed_hosts_and_so_do_branches_and_later_interpreters(port: int, reaching: Reaching) -> None:
    fetch = f"import urllib.request\nurllib.request.urlopen('http://web.test:{port}/c').read()"

    async def main(made: Service) -> None:
        async with made.client() as sandbox, await sandbox.open(network=Network.PROXY) as session:
            expected = repr(f"web.test:{port} /c\n".encode())
            assert (await session.run(fetch)).value == expected
            async with await session.fork() as branch:
                assert (await branch.run(fetch)).value == expected
            assert (await session.run("import os; os._exit(1)")).status == "session_killed"
            assert (await session.run(fetch)).value == expected

    made = reaching(Kind.ZYGOTE)
    asyncio.run(main(made))


def test_what_runs_while_the_proxy_ends_has_no_result_and_the_next_program_has_a_new_proxy(
    port: int, reaching: Reaching
) -> None:
    url = f"http://web.test:{port}/"

    async def main(made: Service) -> None:
        async with made.client() as sandbox:
            session = await sandbox.open(network=Network.PROXY)
            assert (await session.run("1")).value == "1"
            for pid in filter(_is_proxy, descendants(made.pid)):
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: any(map(_is_proxy, descendants(made.pid))))
            await asyncio.sleep(0.5)
            for _ in range(2):  # one of the two runs is in a pod that was made ahead
                result = await sandbox.run(FETCH, args=(url,), network=Network.PROXY, limits=LIMITS)
                assert result.stdout == f"web.test:{port} /\n"
            with pytest.raises(SessionLostError, match="the proxy of this node ended"):
                await session.run("2")
            await session.close()
            sleeping = asyncio.create_task(
                sandbox.run("import time; time.sleep(2)", network=Network.PROXY, limits=LIMITS, deadline_seconds=1.5)
            )
            await asyncio.sleep(0.7)
            for pid in filter(_is_proxy, descendants(made.pid)):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await sleeping

    made = reaching(Kind.ZYGOTE)
    asyncio.run(main(made))


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
def test_without_a_list_there_is_no_way_out_and_asking_for_it_is_the_callers_error(kind: Kind) -> None:
    with pytest.raises(SandboxRequestError, match="this service lists no hosts; start it with"):
        service(kind).run("print(1)", network=Network.PROXY)
    assert not any(map(_is_proxy, descendants(service(kind).pid)))


def test_a_service_whose_list_has_a_wrong_entry_does_not_start() -> None:
    with pytest.raises(RuntimeError, match=r"egress: 'http://me=127\.0\.0\.1' has the address 127\.0\.0\.1"):
        start_service(Kind.ZYGOTE, "--egress", "http://me=127.0.0.1")


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC])
def test_programs_know_the_certificates_of_public_authorities(kind: Kind) -> None:
    known = ssl.create_default_context().cert_store_stats()["x509_ca"]
    if not known:
        pytest.skip("this machine knows none")
    code = "import ssl\nprint(ssl.create_default_context().cert_store_stats()['x509_ca'])"
    assert service(kind).output(code, limits=LIMITS) == f"{known}\n"
