"""The running event loop and settings -> the loop's one browser, and a page of it for each trajectory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from verl_pivot.browser.browser_process import BrowserProcess
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import BrowserError
from verl_pivot.loop_local import LoopLocal


class BrowserHost:
    """The browser of an event loop for equal settings. The first page starts it; after a crash, the next page does."""

    def __init__(self, settings: BrowserSettings) -> None:
        self._settings = settings
        self._room = asyncio.Semaphore(settings.max_pages)
        self._starting = asyncio.Lock()
        self._current: BrowserProcess | None = None
        self._retired = set[BrowserProcess]()
        self.num_started = 0
        """Browsers that were started so far."""

    @property
    def current(self) -> BrowserProcess | None:
        """The browser that the next page would come from; None before the first one."""
        return self._current

    async def open(self, settings: PageSettings) -> WebPage:
        """A page, as soon as there is room for it; the caller closes it.

        Raises:
            ConfigError: If no browser is installed, or this machine has no sandbox for it.
            BrowserError: If two browsers in a row open no page.
        """
        await self._room.acquire()
        try:
            try:
                return await self._opened(settings)
            except BrowserError:
                return await self._opened(settings)
        except BaseException:  # also a wait that is given up: a page that does not open takes no room
            self._room.release()
            raise

    async def page_closed(self, process: BrowserProcess) -> None:
        """Let the next page open, and end a replaced browser whose last page has closed."""
        self._room.release()
        await self._end_if_replaced(process)

    async def close(self) -> None:
        """End the browser, and replaced ones that still have pages."""
        processes = [*self._retired, *([self._current] if self._current is not None else [])]
        self._retired.clear()
        self._current = None
        await asyncio.gather(*(process.close() for process in processes))

    async def _opened(self, settings: PageSettings) -> WebPage:
        process = await self._living()
        context = await process.open(settings.width, settings.height)
        page = WebPage(process, context, settings, self)
        try:
            await page.prepare(self._settings)
        except BaseException:  # also a wait that is given up: nobody else closes its context
            await process.close_context(context)
            await self._end_if_replaced(process)
            raise
        return page

    async def _end_if_replaced(self, process: BrowserProcess) -> None:
        """End a replaced browser whose last page has closed."""
        if process in self._retired and process.num_open == 0:
            self._retired.discard(process)
            await process.close()

    async def _living(self) -> BrowserProcess:
        async with self._starting:
            current = self._current
            if current is not None and not current.is_dead and current.num_opened < self._settings.pages_per_browser:
                return current
            self._current = None
            if current is not None and current.num_open:
                self._retired.add(current)
            elif current is not None:
                await current.close()
            fresh = BrowserProcess(self._settings)
            await fresh.start()
            self._current = fresh
            self.num_started += 1
            return fresh


class _LoopBrowsers:
    """The browsers of one event loop, by their settings; closed with the loop."""

    def __init__(self) -> None:
        self.hosts = dict[tuple[object, ...], BrowserHost]()

    async def __aenter__(self) -> "_LoopBrowsers":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(host.close() for host in self.hosts.values()))


_browsers = LoopLocal(_LoopBrowsers)


async def shared_browser(settings: BrowserSettings) -> BrowserHost:
    """Browser of the running event loop; it starts with its first page, and ends with the loop."""
    hosts = (await _browsers.get()).hosts
    return hosts.setdefault(settings.key, BrowserHost(settings))


@asynccontextmanager
async def opened_page(
    page: PageSettings | None = None, browser: BrowserSettings | None = None
) -> AsyncIterator[WebPage]:
    """A page of the running event loop's browser, closed at the end.

    Example:
        async with opened_page(PageSettings(width=800, height=600)) as page:
            await page.show("<h1>Hello</h1>")
            picture = await page.screenshot()
    """
    host = await shared_browser(browser or BrowserSettings())
    async with await host.open(page or PageSettings()) as opened:
        yield opened
