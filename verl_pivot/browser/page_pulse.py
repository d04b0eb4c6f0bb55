"""PagePulse: whether a page that does not answer works for itself, or is not given the processor."""

import asyncio
from enum import Enum, auto

from verl_pivot.browser.browser_process import forget_result
from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, CDPSession, Page
    from playwright.async_api import Error as PlaywrightError

OWN_SECONDS = 1.0
"""Seconds that the main thread of a silent page works, by its own clock, before the page is at fault."""
_SILENT_SECONDS = 10.0
"""Seconds in which a page that does not answer must have spent them; else the machine does not give it the time."""
_POLL_SECONDS = 0.25
_FRAMES = """new Promise(done => { let left = %d;
  const next = () => --left > 0 ? requestAnimationFrame(next) : done(true); requestAnimationFrame(next); })"""


class Silence(Enum):
    """What came of waiting for a page that did not answer in time."""

    ENDED = auto()
    """It answers again."""
    OWN = auto()
    """Its scripts or its size keep its main thread at work, whatever else the machine does."""
    STARVED = auto()
    """It neither answers nor works: another page or another program has the processor, or it waits for the browser."""


class PagePulse:
    """Looks at a page from outside of its scripts, which cannot change what is seen here.

    Chromium tells the processor time of a page's main thread also while a script runs there, and the function that
    counts frames is that of an isolated world.
    """

    def __init__(self) -> None:
        self._session: CDPSession | None = None

    async def start(self, context: "BrowserContext", page: "Page") -> None:
        """Begin to look, while the page is blank: one that hangs could not be asked to allow it."""
        self._session = await context.new_cdp_session(page)
        await self._session.send("Performance.enable")

    async def frames(self, number: int) -> bool:
        """Wait until the page had time to draw itself so often; one that goes to another document had it, too."""
        assert self._session is not None
        try:
            tree = await self._session.send("Page.getFrameTree")
            frame = tree["frameTree"]["frame"]["id"]
            world = await self._session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "pulse"})
            asked = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
            await self._session.send("Runtime.evaluate", {"expression": _FRAMES % number, **asked})
        except PlaywrightError:
            return True
        return True

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
        if answer.done():  # also with an error: that of a page which has gone to another document
            return Silence.ENDED
        return Silence.OWN if works.done() and not works.cancelled() and works.exception() is None else Silence.STARVED

    async def has_worked(self, seconds: float) -> bool:
        """Whether the page's main thread has worked so long since it was opened; a page that is silent has not."""
        asked = asyncio.ensure_future(self._main_thread_seconds())
        asked.add_done_callback(forget_result)
        done, _ = await asyncio.wait({asked}, timeout=_SILENT_SECONDS)
        return bool(done) and asked.exception() is None and asked.result() >= seconds

    async def _works_for_itself(self) -> None:
        """Wait until the page's main thread has spent OWN_SECONDS."""
        least = await self._main_thread_seconds()
        while (seconds := await self._main_thread_seconds()) - least < OWN_SECONDS:
            least = min(least, seconds)  # another document may have another process
            await asyncio.sleep(_POLL_SECONDS)

    async def _main_thread_seconds(self) -> float:
        assert self._session is not None
        metrics = (await self._session.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "ThreadTime")
