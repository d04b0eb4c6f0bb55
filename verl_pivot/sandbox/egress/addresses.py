"""Addresses that DNS may give for a listed host: those of other machines on the public internet, and no others.

Whoever answers for a name in DNS could otherwise lead a program to this machine or to those of its cluster.
"""

import errno
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
"""IANA's registry of special IPv4 addresses, and multicast."""
_UNICAST_6 = IPv6Network("2000::/3")
"""All IPv6 addresses that are given to hosts. Outside of it lie every private one, and the forms that hold an IPv4
address: ::/96, ::ffff:0:0/96, ::ffff:0:0:0/96 and 64:ff9b::/96."""
_NOT_PUBLIC_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, which holds an IPv4 address, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4, which holds an IPv4 address
        "2620:4f:8000::/48",
        "3ffe::/16",
        "3fff::/20",
    )
)
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Third quarter of an IPv6 address whose last quarter is an IPv4 address to tunnel to."""


def is_public(text: str) -> bool:
    """Whether an address, as text, is one of a host on the public internet."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return _is_public_6(address)


def _is_public_6(address: IPv6Address) -> bool:
    if address.scope_id is not None or address not in _UNICAST_6:
        return False
    if any(address in network for network in _NOT_PUBLIC_6):
        return False
    return int(address) >> 32 & 0xFFFFFFFF not in _ISATAP


def is_of_this_machine(text: str) -> bool:
    """Whether an address belongs to an interface of this machine; an address that cannot be checked counts as one."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((text, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
