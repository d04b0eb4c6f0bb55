"""Addresses that a page may request."""

import pytest

from verl_pivot.browser.allowed_requests import are_resolved_alone, refused_addresses, resolver_rules
from verl_pivot.browser.settings import BrowserSettings, PageSettings, find_browser
from verl_pivot.errors import ConfigError

REFUSED = refused_addresses(["shop.example", "*.cdn.example"], ["/pages"])


@pytest.mark.parametrize(
    "address",
    [
        "https://shop.example/a?b#c", "http://shop.example", "http://shop.example:8080/x", "https://a.b.cdn.example/x",
        "file:///pages/index.html", "data:text/html,x", "about:blank", "blob:null/1", "https://page.invalid/",
    ],
)  # fmt: skip
def test_listed_hosts_and_folders_are_asked(address: str) -> None:
    assert REFUSED.match(address) is None


@pytest.mark.parametrize(
    "address",
    [
        "https://shop.example.evil.net/", "https://evil.net/shop.example/", "https://shop.example@evil.net/",
        "https://xshop.example/", "https://cdn.example/", "ftp://shop.example/", "file:///etc/passwd",
        "file:///pagesx/a", "https://evil.net/?https://shop.example/", "https://page.invalid/other",
    ],
)  # fmt: skip
def test_everything_else_is_refused(address: str) -> None:
    assert REFUSED.match(address) is not None


ONE_PORT = refused_addresses(["localhost:8000", "a.example:443", "b.example:80"], ())


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:8000/", "ws://localhost:8000/x", "https://a.example/x", "https://a.example", "wss://a.example/",
        "http://a.example:443/", "http://b.example?x", "https://b.example:80/",
    ],
)  # fmt: skip
def test_a_host_with_a_port_is_asked_at_that_port(address: str) -> None:
    assert ONE_PORT.match(address) is None


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:8265/", "http://localhost/", "http://localhost:80000/", "http://localhost:8000@evil.net/",
        "http://a.example/", "ws://a.example/", "https://a.example:8443/", "https://b.example/", "https://a.example.net/",
    ],
)  # fmt: skip
def test_a_host_with_a_port_is_asked_at_no_other_one(address: str) -> None:
    assert ONE_PORT.match(address) is not None


def test_no_other_name_has_an_address() -> None:
    assert resolver_rules(["a.example"]) == "MAP * ~NOTFOUND, EXCLUDE a.example"
    assert resolver_rules(["a.example:80", "b.example", "a.example:81"]) == (
        "MAP * ~NOTFOUND, EXCLUDE a.example, EXCLUDE b.example"
    )


@pytest.mark.parametrize(
    ("hosts", "of_browser", "is_enough"),
    [
        ((), (), True),
        (("a.example", "b.example"), ("b.example", "a.example"), True),
        (("a.example",), ("a.example", "b.example"), False),
        ((), ("a.example",), False),
        (("a.example:80",), ("a.example:80",), False),
    ],
)
def test_names_alone_keep_a_page_from_other_hosts_only_where_it_has_all_of_its_browser_and_no_port(
    hosts: tuple[str, ...], of_browser: tuple[str, ...], is_enough: bool
) -> None:
    assert are_resolved_alone(hosts, of_browser) is is_enough


def test_a_host_in_capital_letters_is_the_host_that_browsers_ask_in_small_ones() -> None:
    browser, page = BrowserSettings(hosts=("Shop.Example", "*.CDN.example")), PageSettings(hosts=("Shop.EXAMPLE",))

    assert (browser.hosts, page.hosts) == (("shop.example", "*.cdn.example"), ("shop.example",))


@pytest.mark.parametrize(
    "host", ["https://a.example", "a.example/x", "a.example:", "a.example:0", "a.example:123456", "a:b"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"such as shop\.example\.org, \*\.example\.org or localhost:8000, got '"):
        BrowserSettings(hosts=(host,))


def test_a_missing_browser_is_one_sentence_with_the_command() -> None:
    with pytest.raises(
        ConfigError, match=r"the browser '/no/chrome' was not found: run `apt-get install .*chromium-headless-shell"
    ):
        find_browser("/no/chrome")
