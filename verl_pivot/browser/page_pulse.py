"""PagePulse: whether a page that does not answer is busy with its own work, or gets no processor time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from verl_pivot.browser.browser_process import forget_result
from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, CDPSession, Page
    from playwright.async_api import Error as PlaywrightError
    from playwright.async_api import TimeoutError as PlaywrightTimeout

_OWN_SECONDS = 3.0
"""Seconds of processor time that the main thread of a silent page uses before the page is at fault."""
_SILENT_SECONDS = 20.0
"""Seconds within which a silent page must have used _OWN_SECONDS; otherwise the machine gives it no time."""
_POLL_SECONDS = 0.25
_FRAME = "new Promise(done => requestAnimationFrame(() => done(true)))"


@dataclass(slots=True)
class Beats:
    """Number of frames that a page drew and reported."""

    num: int = 0


class Silence(Enum):
    """Outcome of waiting for a page that did not answer in time."""

    ENDED = auto()
    """The page answers again."""
    OWN = auto()
    """Scripts or the size of the page keep its main thread busy, whatever else the machine does."""
    STARVED = auto()
    """The page neither answers nor works: others have the processor, or it waits for the browser."""


class PagePulse:
    """Observes a page from outside its scripts, which cannot falsify what is measured here.

    Chromium reports the processor time of a page's main thread even while a script runs there. Frames are counted by a
    function in an isolated world.
    """

    def __init__(self) -> None:
        self._session: CDPSession | None = None
        self._marked: asyncio.Future[float] | None = None
        self._main_frame = ""
        self._has_arrived = asyncio.Event()
        """Set while the page asks for no other document than the one that it shows."""
        self._has_arrived.set()

    async def start(self, context: "BrowserContext", page: "Page", on_document: Callable[[], None]) -> None:
        """Begin to observe while the page is blank, since a page that hangs could not be asked to allow it.

        Args:
            context: Context of the page.
            page: The page.
            on_document: Called for each further document of the page's main frame, before any element of it is known.
                Playwright's own event `framenavigated` comes for mere changes of the address, too.
        """

        def requested(event: dict[str, Any]) -> None:
            if event["frameId"] == self._main_frame and event["disposition"] == "currentTab":
                self._has_arrived.clear()

        def navigated(event: dict[str, Any]) -> None:
            if "parentId" not in event["frame"]:
                self._main_frame = event["frame"]["id"]
                self._has_arrived.set()
                on_document()

        def stopped(event: dict[str, Any]) -> None:
            if event["frameId"] == self._main_frame:  # where no document comes: a download, or a script in its place
                self._has_arrived.set()

        self._session = await context.new_cdp_session(page)
        self._session.on("Page.frameRequestedNavigation", requested)
        self._session.on("Page.frameNavigated", navigated)
        self._session.on("Page.frameStoppedLoading", stopped)
        self._session.on("Page.navigatedWithinDocument", stopped)
        await self._session.send("Page.enable")
        await self._session.send("Performance.enable")
        self._main_frame = (await self._session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]

    async def document_arrives(self, seconds: float) -> None:
        """Wait for the document for which the page asks, if it asks for one.

        Raises:
            playwright.async_api.TimeoutError: If it does not come in time; it is then given up.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._has_arrived.wait()
        except TimeoutError as error:
            assert self._session is not None
            self._has_arrived.set()
            await self._session.send("Page.stopLoading")  # until then Chromium runs no script of ours in the page
            raise PlaywrightTimeout(f"the next document did not come within {seconds:g} s") from error

    async def has_previous(self) -> bool:
        """Whether the page's history has a document before this one; the blank one that it opened with is none."""
        assert self._session is not None
        history = await self._session.send("Page.getNavigationHistory")
        index = int(history["currentIndex"])
        return index > 1 or (index == 1 and history["entries"][0]["url"] != "about:blank")

    def end(self) -> None:
        """Wait for no document any more, since the page closes."""
        self._has_arrived.set()

    async def beat(self, beats: "Beats", most: int) -> None:
        """Count the frames that the page draws and reports; driver and browser need time for each frame, too.

        Args:
            beats: Counter of frames. A page that goes to another document has had the time for one frame.
            most: Number of frames at which counting ends.
        """
        assert self._session is not None
        world: int | None = None
        while beats.num < most:
            try:
                world = await self._new_world(self._session) if world is None else world
                asked = {"expression": _FRAME, "contextId": world, "awaitPromise": True, "returnByValue": True}
                await self._session.send("Runtime.evaluate", asked)
            except PlaywrightError:
                world = None
                await asyncio.sleep(_POLL_SECONDS)
            beats.num += 1

    async def _new_world(self, session: "CDPSession") -> int:
        tree = await session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        world = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "pulse"})
        return int(world["executionContextId"])

    async def silence(self, page: "Page") -> Silence:
        """Wait until a page that did not answer in time shows why."""
        answer = asyncio.ensure_future(page.evaluate("0"))
        answer.add_done_callback(forget_result)
        works = asyncio.ensure_future(self._works_for_itself())
        works.add_done_callback(forget_result)
        try:
            await asyncio.wait({answer, works}, timeout=_SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            works.cancel()
        if answer.done():  # also with an error, as when the page has gone to another document
            return Silence.ENDED
        return Silence.OWN if works.done() and not works.cancelled() and works.exception() is None else Silence.STARVED

    def mark(self) -> None:
        """Note how long the page's main thread has worked so far; a stopped page tells it only when it runs again."""
        self._marked = asyncio.ensure_future(self._main_thread_seconds())
        self._marked.add_done_callback(forget_result)

    async def worked(self) -> float:
        """Seconds that the main thread of a page that answers has worked since the last mark; 0 if unknown."""
        marked, self._marked = self._marked, None
        if marked is None:
            return 0.0
        now = asyncio.ensure_future(self._main_thread_seconds())
        now.add_done_callback(forget_result)
        done, _ = await asyncio.wait({marked, now}, timeout=_SILENT_SECONDS)
        if len(done) < 2 or marked.exception() is not None or now.exception() is not None:
            return 0.0
        return now.result() - marked.result()

    async def _works_for_itself(self) -> None:
        """Wait until the page's main thread has spent _OWN_SECONDS."""
        least = await self._main_thread_seconds()
        while (seconds := await self._main_thread_seconds()) - least < _OWN_SECONDS:
            least = min(least, seconds)  # another document may have another process
            await asyncio.sleep(_POLL_SECONDS)

    async def _main_thread_seconds(self) -> float:
        assert self._session is not None
        metrics = (await self._session.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "ThreadTime")
