"""`https://*.example.org` and the like -> hosts that programs may reach, each with its scheme and port."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from verl_pivot.errors import ConfigError

DEFAULT_PORTS = {"https": 443, "http": 80}
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)
"""Name of a host in DNS: labels of at most 63 letters, digits, hyphens and underscores."""
_ENTRY = re.compile(r"(https?)://(\*\.)?([^/:=*]+)(?::([0-9]{1,5}))?(?:=([0-9a-fA-F:.]+))?")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Target of a program's connection."""

    scheme: str
    """"https" for a connection that begins with TLS, "http" for a plain request."""
    host: str
    """Name in small letters, without a dot at its end."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedHost:
    """One entry of the list of hosts that programs may reach."""

    destination: Destination
    has_subdomains: bool
    """Whether it stands for all names below `destination.host`, and not for that name itself."""
    address: IPv4Address | IPv6Address | None
    """The host's address; None if it is looked up in DNS."""

    def admits(self, wanted: Destination) -> bool:
        own = self.destination
        if (wanted.scheme, wanted.port) != (own.scheme, own.port):
            return False
        return wanted.host.endswith("." + own.host) if self.has_subdomains else wanted.host == own.host


def parse_host(text: str, *, reaches_own_machine: bool = False) -> ListedHost:
    """`https://host`, `http://host:8080`, `https://*.example.org` or `https://host=10.0.0.5` -> an entry of the list.

    Args:
        text: The entry.
        reaches_own_machine: Admit an address of this machine itself.

    Raises:
        ConfigError: If it is none of these, or its address is one that no program may reach.
    """
    match = _ENTRY.fullmatch(text)
    name = None if match is None else host_name(match[3])
    if match is None or name is None:
        raise ConfigError(
            f"egress: {text!r} is not a host; write https://NAME, http://NAME:PORT, https://*.NAME, or "
            "https://NAME=ADDRESS for a host with a fixed address"
        )
    port = int(match[4] or DEFAULT_PORTS[match[1]])
    if not 0 < port <= _MAX_PORT:
        raise ConfigError(f"egress: {text!r} needs a port from 1 to {_MAX_PORT}")
    address = None if match[5] is None else _pinned_address(match[5], text, reaches_own_machine=reaches_own_machine)
    if match[2] and address is not None:
        raise ConfigError(f"egress: {text!r} has a wildcard, which cannot have a fixed address; list each host")
    destination = Destination(scheme=match[1], host=name, port=port)
    return ListedHost(destination=destination, has_subdomains=bool(match[2]), address=address)


def host_name(text: str) -> str | None:
    """The name in small letters, without a dot at its end; None if it is no name of a host, such as an address."""
    name = text.removesuffix(".")
    if not name.isascii() or not _NAME.fullmatch(name := name.lower()):
        return None
    return None if name.rpartition(".")[2].isdigit() else name


def listed_host(hosts: Iterable[ListedHost], wanted: Destination) -> ListedHost | None:
    """The first entry that admits the destination; None if none does."""
    return next((host for host in hosts if host.admits(wanted)), None)


def _pinned_address(text: str, entry: str, *, reaches_own_machine: bool) -> IPv4Address | IPv6Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ConfigError(f"egress: {entry!r} needs an IP address after '=': {error}") from error
    is_of_no_host = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    if is_of_no_host and not reaches_own_machine:
        raise ConfigError(f"egress: {entry!r} has the address {address}, which belongs to this machine or to no host")
    return address
