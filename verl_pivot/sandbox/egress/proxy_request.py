"""A request to the proxy -> its destination, and the request to send on; an ambiguous request is refused."""

import re
from dataclasses import dataclass

from verl_pivot.extras import extra
from verl_pivot.sandbox.egress.listed_hosts import DEFAULT_PORTS, Destination, host_name

with extra("sandbox"):
    import h11

_AUTHORITY = re.compile(r"([^:@/?#\[\]]+)(?::([0-9]{1,5}))?")
_URL = re.compile(r"(?i:http)://([^/?#]*)([/?][^#]*)?")
_OF_ONE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"host")
)
"""Headers that are not sent on, or are written anew; those that begin with `proxy-` are not sent on either."""


class Refused(Exception):
    """Error for a request that the proxy refuses."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        """Status of the answer in HTTP."""
        self.reason = reason
        """Reason, which the program reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """A request that was read without doubt."""

    destination: Destination
    forwarded: h11.Request | None
    """Plain request to send on; None for a tunnel, through which TLS goes."""


def read_request(request: h11.Request) -> ProxyRequest:
    """Read the head of a request.

    Raises:
        Refused: If it names no host, or names two.
    """
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise Refused(400, "the request has both Content-Length and Transfer-Encoding")
    target = request.target.decode("ascii", "replace")
    hosts = [value.decode("latin-1") for name, value in request.headers if name == b"host"]
    if request.method == b"CONNECT":
        destination = _destination("https", target)
        _check_host(hosts, destination)
        return ProxyRequest(destination=destination, forwarded=None)
    match = _URL.fullmatch(target)
    if match is None:
        raise Refused(400, "this is a proxy: request http://HOST/PATH, or open a tunnel by CONNECT HOST:PORT")
    destination = _destination("http", match[1])
    _check_host(hosts, destination)
    return ProxyRequest(destination=destination, forwarded=_forwarded(request, destination, match[2] or "/"))


def _destination(scheme: str, authority: str) -> Destination:
    match = _AUTHORITY.fullmatch(authority)
    name = None if match is None else host_name(match[1])
    if match is None or name is None:
        raise Refused(403, f"{authority[:300]!r} is not a host name; IP addresses are not allowed")
    port = int(match[2] or DEFAULT_PORTS[scheme])
    return Destination(scheme=scheme, host=name, port=port)


def _check_host(hosts: list[str], destination: Destination) -> None:
    """Refuse a Host header that does not match the destination, as a server would follow the header.

    Raises:
        Refused: If a header names another host or port.
    """
    for header in hosts:
        match = _AUTHORITY.fullmatch(header)
        name = None if match is None else host_name(match[1])
        port = None if match is None or match[2] is None else int(match[2])
        if name != destination.host or port not in (None, destination.port):
            raise Refused(400, f"the header Host names {header[:300]!r}, but the request line {destination.host!r}")


def _forwarded(request: h11.Request, destination: Destination, path: str) -> h11.Request:
    """The request for the host itself, which closes the connection after its one answer."""
    fields = [(name, value) for name, value in request.headers if name not in _OF_ONE_CONNECTION]
    named = b",".join(value for name, value in request.headers if name == b"connection").lower().split(b",")
    dropped = {name.strip() for name in named} - {b"content-length"}
    kept = [(name, value) for name, value in fields if name not in dropped and not name.startswith(b"proxy-")]
    is_default = destination.port == DEFAULT_PORTS["http"]
    host = destination.host if is_default else f"{destination.host}:{destination.port}"
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        kept.append((b"Transfer-Encoding", b"chunked"))
    headers = [(b"Host", host.encode()), *kept, (b"Connection", b"close")]
    target = path if path.startswith("/") else f"/{path}"
    try:
        return h11.Request(method=request.method, target=target.encode(), headers=headers)
    except h11.LocalProtocolError as error:
        raise Refused(400, f"the request cannot be forwarded: {error}") from error
