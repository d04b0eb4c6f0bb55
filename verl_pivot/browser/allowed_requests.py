"""Hosts and folders -> a regular expression for addresses that a page must not request, and Chromium's DNS rules."""

import re
from collections.abc import Iterable

OFFLINE_PAGE = "https://page.invalid/"
"""Address under which HTML from the caller is shown; no name server resolves it (RFC 2606)."""
_LOCAL = ("about:", "data:", "blob:")
_SCHEMES = {"80": "(?:http|ws)", "443": "(?:https|wss)"}
"""{port: schemes whose addresses do not name it}"""


def refused_addresses(hosts: Iterable[str], folders: Iterable[str]) -> "re.Pattern[str]":
    """Regular expression, valid in Python and JavaScript, that matches an address if the page must not request it.

    Args:
        hosts: Host names; `*.example.org` allows every subdomain of example.org, and `example.org:8000` one port alone.
        folders: Folders of the sandbox whose files the page may load.
    """
    allowed = [re.escape(name) for name in _LOCAL]
    allowed += [rf"file://{re.escape(folder.rstrip('/'))}/" for folder in folders]
    allowed += [rf"{_origin(host)}(?:[/?#]|$)" for host in hosts]
    return re.compile(rf"^(?!(?:{'|'.join(allowed)}))(?!{re.escape(OFFLINE_PAGE)}$)")


def resolver_rules(hosts: Iterable[str]) -> str:
    """Value of Chromium's `--host-resolver-rules` with which no other name resolves, whatever the kind of request."""
    names = dict.fromkeys(host.partition(":")[0] for host in hosts)
    return ", ".join(("MAP * ~NOTFOUND", *(f"EXCLUDE {name}" for name in names)))


def are_resolved_alone(hosts: Iterable[str], of_browser: Iterable[str]) -> bool:
    """Whether Chromium's DNS rules, which know no ports, alone keep a page away from all hosts but its own.

    Args:
        hosts: Hosts that the page may contact.
        of_browser: Hosts of its browser, by which the rules were made.
    """
    hosts = set(hosts)
    return hosts == set(of_browser) and not any(":" in host for host in hosts)


def _origin(host: str) -> str:
    name, _, port = host.partition(":")
    pattern = rf"[A-Za-z0-9.-]+\.{re.escape(name[2:])}" if name.startswith("*.") else re.escape(name)
    if not port:
        return rf"(?:https?|wss?)://{pattern}(?::\d+)?"
    unnamed = rf"|{_SCHEMES[port]}://{pattern}" if port in _SCHEMES else ""
    return rf"(?:(?:https?|wss?)://{pattern}:{port}{unnamed})"
