"""Settings of a browser and of a page, as users and callers give them; the path of the browser to start."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verl_pivot.errors import ConfigError

PATH_VARIABLE = "VERL_PIVOT_BROWSER"
"""Environment variable: path or name of the browser, which `pivot.browser.path` sets where a launch names one."""
DEFAULT_BROWSER = "chromium-headless-shell"
_NAMES = (DEFAULT_BROWSER, "chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install --no-install-recommends chromium-headless-shell"
_HOST = re.compile(r"(?:\*\.)?[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """What the browser of an event loop starts with; callers with equal settings share one.

    Example:
        BrowserSettings(folders={"/pages": Path("site")})
    """

    path: str | None = None
    """Path or name of the browser; None: that of PATH_VARIABLE, or else the first Chromium that is installed."""
    folders: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """{path in the sandbox: folder of this machine} whose files pages can be loaded from, as file:///path/..."""
    hosts: tuple[str, ...] = ()
    """Hosts that pages may ask, `*.example.org` for all below one; with none the browser has no network."""
    memory_mib: int = 768
    """Most MiB of data of each process of the browser; a page that wants more crashes."""
    max_pages: int = 64
    """Pages at once in one browser; further ones wait."""
    start_seconds: float = 30.0
    """Seconds in which the browser must have started."""
    pages_per_browser: int = 2000
    """Pages after which a fresh browser takes the place of one, which ends with its last page."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            check_host(host)
        for number, name in ((self.memory_mib, "memory_mib"), (self.max_pages, "max_pages")):
            if number < 1:
                raise ConfigError(f"{name} of a browser must be at least 1, got {number}")

    @property
    def key(self) -> tuple[object, ...]:
        """Value by which equal settings are known."""
        folders = tuple(sorted((name, str(path)) for name, path in self.folders.items()))
        return (self.path, folders, self.hosts, self.memory_mib, self.max_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """What a page, with its own cookies and storage, is opened with.

    Example:
        PageSettings(width=500, height=320, seed=7)
    """

    width: int = 1280
    """Width of the visible part in CSS pixels."""
    height: int = 720
    seed: int | None = None
    """Seed of Math.random in every document; None leaves the browser's."""
    time: datetime | None = None
    """Time at which the page's clock stands, while its timers run; None: the machine's clock."""
    hosts: tuple[str, ...] | None = None
    """Hosts that this page may ask, of those of the browser; None: all of them."""
    keeps_console: bool = False
    """Whether `events.console_errors` are kept; a page can write many lines."""
    action_seconds: float = 30.0
    """Seconds in which an action or a question must have an answer."""

    def __post_init__(self) -> None:
        for host in self.hosts or ():
            check_host(host)


def check_host(host: str) -> None:
    """Refuse what is no name of a host.

    Raises:
        ConfigError: With what is allowed.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(f"a host is a name such as shop.example.org or *.example.org, without port, got {host!r:.80}")


def use_browser_of(pivot: Mapping[str, Any]) -> None:
    """Take the browser of a launch in this process, and in those that it starts.

    verl hands the environment variables of `ray_init.runtime_env` on as they are written, so that a config cannot pass
    the path of another key by them.

    Args:
        pivot: The section `pivot` of verl's config.
    """
    if "browser" in pivot and (path := str(pivot["browser"]["path"] or "").strip()):
        os.environ[PATH_VARIABLE] = path


def find_browser(path: str | None = None) -> Path:
    """Whole path of the browser.

    Args:
        path: Its path or name; None: that of PATH_VARIABLE, or else the first Chromium that is installed.

    Raises:
        ConfigError: If it is not there, with the command that installs one.
    """
    asked = path or os.environ.get(PATH_VARIABLE, "").strip()
    for name in (asked,) if asked else _NAMES:
        if found := shutil.which(name):
            return Path(found).absolute()
    what = f"there is no browser {asked!r}" if asked else "no Chromium is installed"
    raise ConfigError(f"{what}: {INSTALL}, or give the path of one as pivot.browser.path (or in {PATH_VARIABLE})")
