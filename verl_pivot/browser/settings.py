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
"""Environment variable with the path or name of the browser; a launch sets it if it gives `pivot.browser.path`."""
DEFAULT_BROWSER = "chromium-headless-shell"
_NAMES = (DEFAULT_BROWSER, "chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install --no-install-recommends chromium-headless-shell"
_HOST = re.compile(r"(?:\*\.)?[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(?::[1-9][0-9]{0,4})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Settings with which the browser of an event loop starts; callers with equal settings share one browser.

    Example:
        BrowserSettings(folders={"/pages": Path("site")})
    """

    path: str | None = None
    """Path or name of the browser; None: the value of VERL_PIVOT_BROWSER, or else the first Chromium found."""
    folders: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """{path in the sandbox: folder of this machine} whose files pages can be loaded from, as file:///path/..."""
    hosts: tuple[str, ...] = ()
    """Hosts that pages may contact, at any port or as `localhost:8000` at one, `*.example.org` for all subdomains; if
    empty, the browser has no network."""
    memory_mib: int = 768
    """Most MiB of data in memory for each process of the browser; a page that needs more crashes."""
    max_pages: int = 64
    """Most pages open at once in one browser; further pages wait."""
    start_seconds: float = 30.0
    """Seconds within which the browser must have started."""
    pages_per_browser: int = 2000
    """Number of pages after which a new browser replaces the old one, which ends when its last page closes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(map(host_pattern, self.hosts)))
        for number, name in ((self.memory_mib, "memory_mib"), (self.max_pages, "max_pages")):
            if number < 1:
                raise ConfigError(f"{name} of a browser must be at least 1, got {number}")

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is the same for equal settings."""
        folders = tuple(sorted((name, str(path)) for name, path in self.folders.items()))
        return (self.path, folders, self.hosts, self.memory_mib, self.max_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Settings with which a page, with its own cookies and storage, is opened.

    Example:
        PageSettings(width=500, height=320, seed=7)
    """

    width: int = 1280
    """Width of the visible part in CSS pixels."""
    height: int = 720
    seed: int | None = None
    """Seed of Math.random in every document; None leaves the browser's."""
    time: datetime | None = None
    """Fixed time that the page's clock shows, while its timers run; None: the machine's clock."""
    hosts: tuple[str, ...] | None = None
    """Hosts that this page may contact, out of the browser's hosts; None: all of them."""
    keeps_console: bool = False
    """Whether `events.console_errors` are kept; a page can write many lines."""
    action_seconds: float = 30.0
    """Seconds within which an action or a request must be answered."""

    def __post_init__(self) -> None:
        if self.hosts is not None:
            object.__setattr__(self, "hosts", tuple(map(host_pattern, self.hosts)))


def host_pattern(host: str) -> str:
    """Name of a host, or pattern of such names, with or without a port, in small letters, as browsers ask for it.

    Raises:
        ConfigError: If it is neither; the message says what is allowed.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(
            f"a host must be a name such as shop.example.org, *.example.org or localhost:8000, got {host!r:.80}"
        )
    return host.lower()


def use_browser_of(pivot: Mapping[str, Any]) -> None:
    """Use the browser that a launch names, in this process and in the processes that it starts.

    verl passes the environment variables of `ray_init.runtime_env` on exactly as written. A config can therefore not
    fill one of them with the value of another key, such as this path.

    Args:
        pivot: The section `pivot` of verl's config.
    """
    if "browser" in pivot and (path := str(pivot["browser"]["path"] or "").strip()):
        os.environ[PATH_VARIABLE] = path


def find_browser(path: str | None = None) -> Path:
    """Absolute path of the browser.

    Args:
        path: Its path or name; None: the value of PATH_VARIABLE, or else the first Chromium that is installed.

    Raises:
        ConfigError: If there is no such browser; the message has the command that installs one.
    """
    asked = path or os.environ.get(PATH_VARIABLE, "").strip()
    for name in (asked,) if asked else _NAMES:
        if found := shutil.which(name):
            return Path(found).absolute()
    what = f"the browser {asked!r} was not found" if asked else "no Chromium is installed"
    raise ConfigError(f"{what}: run `{INSTALL}`, or set pivot.browser.path (or {PATH_VARIABLE}) to its path")
