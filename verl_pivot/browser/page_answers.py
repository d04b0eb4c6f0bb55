"""PageAnswers: a request to a page -> its answer, or an error that says whether page or machine is at fault."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from verl_pivot.browser.browser_process import BrowserProcess, forget_result
from verl_pivot.browser.element_log import ElementLog, read_element_log, reason_of
from verl_pivot.browser.page_events import PageEvents
from verl_pivot.browser.page_pulse import Beats, PagePulse, Silence
from verl_pivot.errors import BrowserError, PageError
from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, Page
    from playwright.async_api import Error as PlaywrightError
    from playwright.async_api import TimeoutError as PlaywrightTimeout

ResultT = TypeVar("ResultT")

_NUM_LOOKS = 4
"""Reports that an element is not ready, after which the page had enough time to get it ready.

An idle page makes 8 such reports before the timeout.
"""
_NUM_BEATS = 30
"""Frames that a page draws during an action, after which it had enough time even if it reports nothing on the element.

An action needs about ten answers of the page; an idle page gives about a hundred before the timeout.
"""
_BEATS_SECONDS = 2.0
_NUM_INTERRUPTIONS = 3
"""Number of dialogs and windows during one wait, above which a page that does not answer is at fault."""
_NUM_REFUSED = 50
"""Number of refused requests during one wait, above which a page that does not answer is at fault."""
_NUM_DOCUMENTS = 3
"""Number of documents during one wait, above which a page that has not loaded is at fault for endless navigation."""
_CLICK_SECONDS = 1.0
"""Seconds that a page's main thread works on a click or a key, from which on the page is at fault for the delay."""
_OWN_SHARE = 0.5
"""Share of a request's time limit that a page's main thread works, from which on the page is at fault for the delay."""
_QUICK_SECONDS = 0.5
"""Seconds within which most answers come; the work of the main thread is measured for slower ones alone."""


class PageAnswers:
    """Asks one page. A page that does not answer is at fault only if its own work, or a flood of events, is the cause.

    Every method that asks raises:
        PageError: If the page keeps its main thread busy, has crashed, floods the browser, or reports an error.
        BrowserError: If the browser has died, or the machine gives the page no processor time.
    """

    def __init__(
        self, process: BrowserProcess, action_seconds: float, closed: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Start without a page; `begin` sets it.

        Args:
            process: The browser.
            action_seconds: Seconds within which an answer must come.
            closed: Closes the page's context; called once.
        """
        self._process, self._seconds, self._closed = process, action_seconds, closed
        self._page: Page | None = None
        self._pulse = PagePulse()
        self._closing: asyncio.Future[None] | None = None
        self._before = PageEvents()
        """What the page had done before the request that is being answered."""
        self.events = PageEvents()
        self.gone = ""
        """Why the page is closed; "" while it is open."""

    async def begin(self, context: "BrowserContext", page: "Page") -> None:
        """Set the page, which must still be blank."""
        await self._pulse.start(context, page, self._count_document)
        self._page = page

    def _count_document(self) -> None:
        self.events.num_documents += 1

    async def asked(self, ask: "Callable[[Page], Awaitable[ResultT]]") -> ResultT:
        """Answer to a request that needs no element, and that a page can delay by its own work alone."""
        try:
            return await self._answer(ask, "the page")
        except PlaywrightTimeout as error:
            await self._wait_for_answer("the page")
            if await self._pulse.worked() >= _OWN_SHARE * self._seconds:
                raise PageError(f"the page: {reason_of(str(error))}") from error
            raise BrowserError("the page did not answer in time: the machine is too busy") from error

    async def loaded(self, ask: "Callable[[Page], Awaitable[ResultT]]") -> ResultT:
        """Answer to a request that a page can keep from ending without working, such as by never finishing to load."""
        try:
            return await self._answer(ask, "the page")
        except PlaywrightTimeout as error:
            if self.events.num_documents - self._before.num_documents > _NUM_DOCUMENTS:
                raise PageError("the page keeps loading other documents") from error
            await self._wait_for_answer("the page")
            if await self._pulse.worked() >= _OWN_SHARE * self._seconds or await self._has_time():
                raise PageError(f"the page: {reason_of(str(error))}") from error
            raise BrowserError("the page did not load in time: the machine is too busy") from error

    async def has_previous(self) -> bool:
        """Whether the page can go back; a page that went back to the blank one would be lost."""
        return await self.asked(lambda _: self._pulse.has_previous())

    async def document_arrives(self) -> None:
        """Wait for the document for which the page asks, as after a click on a link; its server may be slow."""
        await self.loaded(lambda _: self._pulse.document_arrives(self._seconds))

    async def _has_time(self) -> bool:
        """Whether the machine now gives the page enough time to draw _NUM_BEATS frames within _BEATS_SECONDS."""
        counting = asyncio.ensure_future(self._pulse.beat(Beats(), _NUM_BEATS))
        try:
            done, _ = await asyncio.wait({counting}, timeout=_BEATS_SECONDS)
        finally:
            counting.cancel()
        return bool(done)

    async def acted(self, act: "Callable[[Page], Awaitable[object]]", what: str) -> None:
        """Act on an element. A page that had no processor time to get the element ready is given more time.

        A click is done when the page has taken it; `document_arrives` waits for the document for which it asks.

        Args:
            act: The action, with a timeout of its own.
            what: The element, for messages.

        Raises:
            PageError: If the element is not ready although the page had enough time: it reported so repeatedly, or
                drew enough frames meanwhile. Also if the page works too long on a click or a key.
            BrowserError: If the machine gave the page no time, or it is unknown whether a click was made.
        """
        deadline, beats = _now() + self._seconds, Beats()
        async with self._turn() as waited:
            deadline += waited
            log = await self._tried(act, what)
        while log is not None and not log.is_done:
            if (log.num_looks >= _NUM_LOOKS or beats.num >= _NUM_BEATS) and not log.has_acted:
                raise PageError(f"{what}: {log.reason}")
            await self._wait_for_answer(what)
            if log.has_acted:
                raise await self._fault_of_click(what, log)
            if _now() > deadline:
                raise BrowserError(f"{what}: the machine is too busy to run its page ({log.reason})")
            beats = Beats()
            async with self._turn() as waited:
                deadline += waited
                counting = asyncio.ensure_future(self._pulse.beat(beats, _NUM_BEATS))
                try:
                    log = await self._tried(act, what)
                finally:
                    counting.cancel()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[float]:
        """Wait for a slot to act in; yields the seconds waited, which do not count against the action's time limit."""
        asked = _now()
        async with self._process.action_turns:
            yield _now() - asked

    async def _tried(self, act: "Callable[[Page], Awaitable[object]]", what: str) -> ElementLog | None:
        """Try an action once: what is known about its timeout, or None if it was done."""
        try:
            await self._answer(act, what)
        except PlaywrightTimeout as error:
            return read_element_log(str(error))
        return None

    async def _fault_of_click(self, what: str, log: ElementLog) -> PageError | BrowserError:
        """Error for a click or key that was not confirmed in time; it may have taken effect, so it is not repeated."""
        if await self._pulse.worked() >= _CLICK_SECONDS:
            effect = "the click or key may have taken effect"
            return PageError(f"{what}: the page was busy past the time limit; {effect}: {log.reason}")
        return BrowserError(f"{what}: the machine was too busy to tell whether the click or key took effect")

    async def _answer(self, ask: "Callable[[Page], Awaitable[ResultT]]", what: str) -> ResultT:
        """Answer of the page to one request.

        Raises:
            playwright.async_api.TimeoutError: If no answer comes in time.
        """
        if self.gone:
            raise PageError(self.gone)
        if self._process.is_dead or self._page is None:
            raise BrowserError("the browser has ended")
        self._before = self.events.copy()
        task = asyncio.ensure_future(ask(self._page))
        try:
            # Not asyncio.timeout: Playwright takes seconds to cancel a call that waits for a page that floods it.
            done, _ = await asyncio.wait({task}, timeout=_QUICK_SECONDS)
            if not done:
                self._pulse.mark()
                done, _ = await asyncio.wait({task}, timeout=self._seconds + 1.0)
        finally:
            task.add_done_callback(forget_result)
        error = task.exception() if done else PlaywrightTimeout("no answer in time")
        if error is None:
            return task.result()
        if isinstance(error, PlaywrightError) and not isinstance(error, PlaywrightTimeout):
            await self._check_life()
            raise PageError(f"{what}: {reason_of(str(error))}")
        raise error  # a bug of ours, a mistake of the caller, or no answer in time

    async def _wait_for_answer(self, what: str) -> None:
        """Wait until a page that did not answer in time answers again; close it and raise if it does not."""
        await self._check_life()
        assert self._page is not None
        silence = await self._pulse.silence(self._page)
        await self._check_life()
        if silence is Silence.ENDED:
            return
        if silence is Silence.OWN or self._keeps_the_browser_busy():
            raise await self.give_up("the page was closed: it did not answer, because its own work never stops")
        await self.give_up("the page was closed: the machine was too busy to run it")
        raise BrowserError(f"{what} neither answers nor does anything: the machine or the browser is too busy")

    def _keeps_the_browser_busy(self) -> bool:
        """Whether an idle page is silent because the browser is busy with its dialogs, windows or refused requests."""
        now, before = self.events, self._before
        return (
            now.num_interruptions - before.num_interruptions > _NUM_INTERRUPTIONS
            or now.num_refused_requests - before.num_refused_requests > _NUM_REFUSED
        )

    async def _check_life(self) -> None:
        """Raise if the page or the browser is dead."""
        if self.gone:
            raise PageError(self.gone)
        if self.events.has_crashed:
            raise await self.give_up("the page has crashed or exceeded its memory limit")
        if not await self._process.answers():
            raise BrowserError("the browser died, or does not answer")

    async def give_up(self, reason: str) -> PageError:
        """Close a page that only wastes time and memory; the policy reads the first reason given for it."""
        self.gone = self.gone or reason
        await self.close()
        return PageError(self.gone)

    async def close(self) -> None:
        """Close the page, whatever its state; repeated calls are harmless."""
        self.gone = self.gone or "the page is closed"
        self._pulse.end()
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._closed())
        await asyncio.shield(self._closing)


def _now() -> float:
    return asyncio.get_running_loop().time()
