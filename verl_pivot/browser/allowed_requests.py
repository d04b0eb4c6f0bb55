"""Hosts and folders -> the regular expression of the addresses that a page may not ask, and what a browser resolves."""

import re
from collections.abc import Iterable

OFFLINE_PAGE = "https://page.invalid/"
"""Address of a page whose HTML the caller gives; no name server knows it (RFC 2606)."""
_LOCAL = ("about:", "data:", "blob:")


def refused_addresses(hosts: Iterable[str], folders: Iterable[str]) -> "re.Pattern[str]":
    """Expression, for Python and JavaScript alike, that matches an address if the page must not ask for it.

    Args:
        hosts: Names of hosts, with `*.` before one for all below it.
        folders: Folders of the sandbox whose files it may load.
    """
    allowed = [re.escape(name) for name in _LOCAL]
    allowed += [rf"file://{re.escape(folder.rstrip('/'))}/" for folder in folders]
    allowed += [rf"(?:https?|wss?)://{_host(host)}(?::\d+)?(?:[/?#]|$)" for host in hosts]
    return re.compile(rf"^(?!(?:{'|'.join(allowed)}))(?!{re.escape(OFFLINE_PAGE)}$)")


def resolver_rules(hosts: Iterable[str]) -> str:
    """Chromium's `--host-resolver-rules`, by which no other name has an address, for whatever a page asks with."""
    return ", ".join(("MAP * ~NOTFOUND", *(f"EXCLUDE {host}" for host in hosts)))


def _host(host: str) -> str:
    if host.startswith("*."):
        return rf"[A-Za-z0-9.-]+\.{re.escape(host[2:])}"
    return re.escape(host)
