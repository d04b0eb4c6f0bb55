"""Hosts and folders -> a regular expression for addresses that a page must not request, and Chromium's DNS rules."""

import re
from collections.abc import Iterable

OFFLINE_PAGE = "https://page.invalid/"
"""Address under which HTML from the caller is shown; no name server resolves it (RFC 2606)."""
_LOCAL = ("about:", "data:", "blob:")


def refused_addresses(hosts: Iterable[str], folders: Iterable[str]) -> "re.Pattern[str]":
    """Regular expression, valid in Python and JavaScript, that matches an address if the page must not request it.

    Args:
        hosts: Host names; `*.example.org` allows every subdomain of example.org.
        folders: Folders of the sandbox whose files the page may load.
    """
    allowed = [re.escape(name) for name in _LOCAL]
    allowed += [rf"file://{re.escape(folder.rstrip('/'))}/" for folder in folders]
    allowed += [rf"(?:https?|wss?)://{_host(host)}(?::\d+)?(?:[/?#]|$)" for host in hosts]
    return re.compile(rf"^(?!(?:{'|'.join(allowed)}))(?!{re.escape(OFFLINE_PAGE)}$)")


def resolver_rules(hosts: Iterable[str]) -> str:
    """Value of Chromium's `--host-resolver-rules` with which no other name resolves, whatever the kind of request."""
    return ", ".join(("MAP * ~NOTFOUND", *(f"EXCLUDE {host}" for host in hosts)))


def are_resolved_alone(hosts: Iterable[str], of_browser: Iterable[str]) -> bool:
    """Whether Chromium's DNS rules alone keep a page away from all hosts but its own.

    Args:
        hosts: Hosts that the page may contact.
        of_browser: Hosts of its browser, by which the rules were made.
    """
    return set(hosts) == set(of_browser)


def _host(host: str) -> str:
    if host.startswith("*."):
        return rf"[A-Za-z0-9.-]+\.{re.escape(host[2:])}"
    return re.escape(host)
