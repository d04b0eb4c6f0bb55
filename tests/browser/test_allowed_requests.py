"""Addresses that a page may request."""

import pytest

from verl_pivot.browser.allowed_requests import refused_addresses, resolver_rules
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


def test_no_other_name_has_an_address() -> None:
    assert resolver_rules(["a.example"]) == "MAP * ~NOTFOUND, EXCLUDE a.example"


def test_a_host_in_capital_letters_is_the_host_that_browsers_ask_in_small_ones() -> None:
    browser, page = BrowserSettings(hosts=("Shop.Example", "*.CDN.example")), PageSettings(hosts=("Shop.EXAMPLE",))

    assert (browser.hosts, page.hosts) == (("shop.example", "*.cdn.example"), ("shop.example",))


def test_a_host_with_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"without port, got 'a\.example:80'"):
        BrowserSettings(hosts=("a.example:80",))


def test_a_missing_browser_is_one_sentence_with_the_command() -> None:
    with pytest.raises(
        ConfigError, match=r"the browser '/no/chrome' was not found: run `apt-get install .*chromium-headless-shell"
    ):
        find_browser("/no/chrome")
