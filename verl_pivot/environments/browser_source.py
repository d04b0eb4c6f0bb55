"""Entry `- environment: browser` of a tools file -> a web page for each rollout, opened at the address in its row."""

import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from verl_pivot.browser.settings import PageSettings, find_browser, host_pattern
from verl_pivot.browser.web_page import WebPage
from verl_pivot.environments.web_actions import WEB_ACTIONS
from verl_pivot.environments.web_environment import TaskEnd, WebEnvironment, WebOptions, of_row
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.sandbox.bubblewrap.privileges import is_root
from verl_pivot.tools.registry import register_framework
from verl_pivot.types import JsonObject, Verdict

_PAGES = "/pages"
"""Folder in the sandbox that shows the entry's `pages`."""


class BrowserEntry(WebOptions):
    """Entry `- environment: browser`: pages of a folder or of listed hosts; it gives rollouts no outcome of its own."""

    environment: Annotated[str, Field(max_length=0)] = ""
    pages: Path | None = None
    """Folder with pages; the row's `metadata.url` then begins with / and is a path in it."""
    hosts: tuple[str, ...] = ()
    """Hosts that pages may contact; `*.example.org` means all hosts below example.org, and `localhost:8000` one port,
    where a bare name means all. A row may name fewer. Empty: no network at all."""
    actions: tuple[str, ...] = tuple(WEB_ACTIONS)
    """Names of the actions that the policy may take."""


@register_framework("browser", options=BrowserEntry)
class BrowserSource:
    """Opens the page of each rollout."""

    can_branch = False  # each page counts towards `max_pages`, so that rollouts would wait for each other's pages
    pays_by_turn = False

    def __init__(self, entry: BrowserEntry) -> None:
        """Check the browser, folder, hosts and actions that the entry names.

        Raises:
            ConfigError: If no browser is installed, or the folder, a host or an action is wrong.
        """
        find_browser(entry.path)
        hosts = tuple(map(host_pattern, entry.hosts))
        if entry.pages is not None and not entry.pages.is_dir():
            raise ConfigError(f"pages: there is no folder {entry.pages}")
        if entry.pages is not None and is_root() and not entry.pages.stat().st_mode & stat.S_IXOTH:
            raise ConfigError(
                f"pages: root runs the browser as an ordinary user, who cannot enter {entry.pages}: run `chmod o+rx` "
                "on it"
            )
        if entry.pages is None and not entry.hosts:
            raise ConfigError("give `pages`, a folder, or `hosts`, names of hosts: without both no page can be opened")
        if unknown := [name for name in entry.actions if name not in WEB_ACTIONS]:
            raise ConfigError(f"actions: unknown action {unknown[0]!r}; known: {', '.join(WEB_ACTIONS)}")
        folders = {} if entry.pages is None else {_PAGES: entry.pages.absolute()}
        self._entry, self._browser = entry, entry.browser(folders, hosts)
        self.tools = tuple(WEB_ACTIONS[name].schema for name in entry.actions)

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> WebEnvironment:
        """The page of one rollout.

        Raises:
            DataError: If `metadata` has no `url`, or its `hosts`, `seed` or `time` is wrong.
        """
        url = of_row(metadata, "url", str)
        if not url or (url.startswith("/") and self._entry.pages is None):
            raise DataError(f"metadata.url of a row must be an address, or a path in `pages`, got {url!r:.80}")
        hosts = of_row(metadata, "hosts", list)
        if hosts is not None and (unknown := [each for each in hosts if str(each).lower() not in self._browser.hosts]):
            raise DataError(
                f"metadata.hosts of a row names {unknown[0]!r:.80}, which `hosts` of the entry does not have"
            )
        page = PageSettings(
            width=self._entry.width,
            height=self._entry.height,
            seed=of_row(metadata, "seed", int),
            time=_time(of_row(metadata, "time", str)),
            hosts=None if hosts is None else tuple(map(str, hosts)),
            action_seconds=self._entry.action_seconds,
        )
        address = f"file://{_PAGES}{url}" if url.startswith("/") else url
        return WebEnvironment(_OpenTask(address), self._entry.actions, self._browser, page, self._entry)


class _OpenTask:
    """A task that begins at an address and gives no outcome of its own."""

    is_trusted = False

    def __init__(self, url: str) -> None:
        self._url = url

    async def begin(self, page: WebPage) -> str:
        await page.goto(self._url)
        return ""

    async def end(self, page: WebPage) -> TaskEnd | None:
        return None

    def unfinished(self) -> Verdict | None:
        return None


def _time(text: str | None) -> datetime | None:
    """Time to which a row sets the clock of its page; UTC, as the page has it, unless the text has an offset.

    Raises:
        DataError: If the text is not in the format of ISO 8601.
    """
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise DataError(f"metadata.time of a row must be like 2026-11-05T12:00:00+00:00, got {text!r:.80}") from error
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)
