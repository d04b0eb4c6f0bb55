"""PageWatch: counts what a page does, dismisses its dialogs, closes its windows, and refuses its requests."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from verl_pivot.browser.page_events import PageEvents
from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Frame, Page, Route, WebSocketRoute
    from playwright.async_api import Error as PlaywrightError


class PageWatch:
    """Listens to one page."""

    def __init__(self, events: PageEvents, give_up: Callable[[str], Awaitable[object]]) -> None:
        """Make the watch; `listen` starts it.

        Args:
            events: Record to which the page's events are added.
            give_up: Closes a page that floods the browser, with the reason; called once.
        """
        self.events = events
        self._before_action = events.copy()
        self._give_up = give_up
        self._is_given_up = False
        self._tasks = set[asyncio.Task[None]]()

    def listen(self, context: "BrowserContext", page: "Page", *, keeps_console: bool) -> None:
        """Begin to listen.

        Args:
            context: Context of the page alone.
            page: The page.
            keeps_console: Whether error lines of the console are kept, too.
        """
        context.on("page", self._on_window)
        page.on("framenavigated", self._on_frame)
        page.on("dialog", self._on_dialog)
        page.on("download", self._on_download)
        page.on("crash", self._on_crash)
        page.on("pageerror", lambda error: self.events.add_script_error(str(error)))
        if keeps_console:
            page.on("console", self._on_console)

    def begin_action(self) -> None:
        """Begin to count for the next action: what an honest page asks for after each of many actions is no flood."""
        self._before_action = self.events.copy()

    async def refuse(self, route: "Route") -> None:
        """Count a request and abort it; the requests of a page that is being closed end with the page."""
        self.events.add_refused(route.request.url)
        self._check_flood()
        if not self._is_given_up:
            await quietly(route.abort)

    async def refuse_socket(self, socket: "WebSocketRoute") -> None:
        """Count a WebSocket and close it before it has a connection."""
        self.events.add_refused(socket.url)
        self._check_flood()
        await quietly(socket.close)

    async def refuse_redirects(self, context: "BrowserContext", page: "Page", refused: "re.Pattern[str]") -> None:
        """Refuse requests to which servers redirect the page; Playwright does not ask its routes about them.

        Args:
            context: Context of the page alone.
            page: The page.
            refused: Matches the addresses that the page must not request.
        """
        session = await context.new_cdp_session(page)

        def paused(event: dict[str, Any]) -> None:
            answer = {"requestId": event["requestId"]}
            if refused.match(event["request"]["url"]):
                self.events.add_refused(event["request"]["url"])
                self._check_flood()
                self._spawn(lambda: session.send("Fetch.failRequest", {**answer, "errorReason": "Failed"}))
            else:
                self._spawn(lambda: session.send("Fetch.continueRequest", answer))

        session.on("Fetch.requestPaused", paused)
        await session.send("Fetch.enable", {"patterns": [{"urlPattern": "http*"}]})

    def _on_frame(self, frame: "Frame") -> None:
        if frame.parent_frame is not None:
            self.events.num_frame_documents += 1

    def _on_dialog(self, dialog: "Dialog") -> None:
        self._check_flood()
        if dialog.type == "beforeunload":
            self._spawn(dialog.accept)
            return
        self.events.add_dialog(dialog.type, dialog.message)
        self._spawn(dialog.dismiss)

    def _on_window(self, window: "Page") -> None:
        self.events.num_windows += 1
        self._check_flood()
        self._spawn(window.close)

    def _on_console(self, line: "ConsoleMessage") -> None:
        if line.type == "error":
            self.events.add_console_error(line.text)

    def _on_download(self, _: object) -> None:
        self.events.num_downloads += 1

    def _on_crash(self, _: object) -> None:
        self.events.has_crashed = True

    def _check_flood(self) -> None:
        if self.events.is_flooding(self._before_action) and not self._is_given_up:
            self._is_given_up = True
            reason = "the page floods the browser with dialogs, windows or requests and was closed"
            self._spawn(lambda: self._give_up(reason))

    def _spawn(self, work: Callable[[], Awaitable[object]]) -> None:
        """React to an event in a background task; a failure because the page has gone is ignored."""
        task = asyncio.ensure_future(quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def quietly(work: Callable[[], Awaitable[object]]) -> None:
    """Do something and ignore its failure, which only means that the page has gone, as the next request finds out."""
    try:
        await work()
    except PlaywrightError:
        return
