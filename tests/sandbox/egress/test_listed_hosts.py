"""Entries of the list of hosts, and the destinations that each entry admits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.egress.listed_hosts import Destination, host_name, parse_host


def to(scheme: str, host: str, port: int) -> Destination:
    return Destination(scheme=scheme, host=host, port=port)


@pytest.mark.parametrize(
    ("entry", "admitted", "refused"),
    [
        (
            "https://pypi.org",
            [to("https", "pypi.org", 443)],
            [
                to("http", "pypi.org", 443),
                to("https", "pypi.org", 22),
                to("https", "a.pypi.org", 443),
                to("https", "xpypi.org", 443),
                to("https", "pypi.org.evil.example", 443),
            ],
        ),
        ("http://Mirror:8080", [to("http", "mirror", 8080)], [to("http", "mirror", 80), to("https", "mirror", 8080)]),
        (
            "https://*.example.org",
            [to("https", "a.example.org", 443), to("https", "a.b.example.org", 443)],
            [
                to("https", "example.org", 443),
                to("https", "aexample.org", 443),
                to("https", "example.org.evil.example", 443),
            ],
        ),
        ("http://mirror=10.0.0.5", [to("http", "mirror", 80)], [to("http", "10.0.0.5", 80)]),
    ],
)
def test_an_entry_admits_one_scheme_and_port_and_its_names(
    entry: str, admitted: list[Destination], refused: list[Destination]
) -> None:
    host = parse_host(entry)
    assert [host.admits(wanted) for wanted in (*admitted, *refused)] == [True] * len(admitted) + [False] * len(refused)


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "",
            "pypi.org",
            "ftp://pypi.org",
            "https://",
            "https://*",
            "https://*.",
            "https://pypi.org/simple",
            "https://a b",
        ),
        *("https://user@pypi.org", "https://[::1]", "https://10.0.0.5", "https://pypi.org:0", "https://pypi.org:65536"),
        *("https://a.*.org", "https://a..org", f"https://{'a' * 64}.org", "https://pypi.org=", "https://pypi.org=x"),
        *("https://*.org=10.0.0.5", "http://me=127.0.0.1", "http://me=169.254.169.254", "http://me=0.0.0.0"),
        *("http://me=::1", "http://me=fe80::1", "http://me=224.0.0.1", "https://bücher.example"),
    ],
)
def test_what_is_no_entry_is_refused_and_named(entry: str) -> None:
    with pytest.raises(ConfigError, match="egress: "):
        parse_host(entry)


@given(st.text(max_size=300) | st.from_regex(r"[a-zA-Z0-9._-]{1,300}", fullmatch=True))
def test_whatever_counts_as_a_name_can_be_looked_up(text: str) -> None:
    name = host_name(text)
    if name is not None:
        name.encode("idna")
        assert name == name.lower()
        assert not name.endswith(".")
        assert all(0 < len(label) < 64 for label in name.split("."))


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "0x7f.1", "1", "2130706433", "127.1", "::1", "[::1]", "a..b", "", ".", "a\n"]
)
def test_addresses_are_no_names_in_any_spelling_that_a_resolver_takes(text: str) -> None:
    assert host_name(text) is None
