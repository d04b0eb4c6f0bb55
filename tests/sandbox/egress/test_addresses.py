"""Addresses that count as public: none of a private network, and none that contains an IPv4 address."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.sandbox.egress.addresses import is_of_this_machine, is_public

PRIVATE = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "172.31.0.1", "100.64.0.1", "0.0.0.0", "8.8.8.8"]


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0", "0.1.2.3", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1"),
        *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1"),
        *("198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1"),
        *("2001:db8::1", "3fff::1", "2001::1", "2001:10::1", "2001:20::1", "2002:7f00:1::", "64:ff9b::7f00:1"),
        *("64:ff9b:1::7f00:1", "5f00::1", "2620:4f:8000::1", "localhost", "", "8.8.8.8 ", "0x8.8.8.8", "08.8.8.8"),
    ],
)
def test_addresses_of_no_host_on_the_internet_are_not_public(text: str) -> None:
    assert not is_public(text)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "151.101.0.223", "2606:4700:4700::1111", "2a04:4e42::223"])
def test_addresses_of_hosts_on_the_internet_are_public(text: str) -> None:
    assert is_public(text)


@pytest.mark.parametrize("inner", PRIVATE)
@pytest.mark.parametrize(
    "outer",
    [
        *("::{0}", "::ffff:{0}", "::ffff:0:{0}", "64:ff9b::{0}", "64:ff9b:1::{0}", "64:ff9b:1:ffff:ffff:ffff:{0}"),
        *("2001:0:1:2:3:4:{0}", "2606:4700::5efe:{0}", "2606:4700::200:5efe:{0}", "fe80::5efe:{0}", "::1:{0}"),
    ],
)
def test_no_form_that_holds_an_ipv4_address_is_public(outer: str, inner: str) -> None:
    assert not is_public(outer.format(inner))


@pytest.mark.parametrize("inner", PRIVATE)
def test_6to4_is_not_public(inner: str) -> None:
    assert not is_public(str(IPv6Address((0x2002 << 112) | (int(IPv4Address(inner)) << 80) | 1)))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_is_public_is_global_for_the_standard_library_too(address: IPv4Address | IPv6Address) -> None:
    if is_public(str(address)):
        assert address.is_global
        assert not any((address.is_private, address.is_multicast, address.is_reserved, address.is_loopback))
        assert getattr(address, "ipv4_mapped", None) is None
        assert getattr(address, "sixtofour", None) is None
        assert getattr(address, "teredo", None) is None


def test_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert is_of_this_machine("0.0.0.0")
    assert not is_of_this_machine("8.8.8.8")
    assert ip_address("8.8.8.8").is_global
