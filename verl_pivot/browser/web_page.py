"""WebPage: one page with its own cookies and storage; actions name its elements by number."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

from verl_pivot.browser.allowed_requests import OFFLINE_PAGE, are_resolved_alone, refused_addresses
from verl_pivot.browser.browser_process import BrowserProcess
from verl_pivot.browser.element_log import reason_of
from verl_pivot.browser.isolated_world import IsolatedWorld
from verl_pivot.browser.page_answers import PageAnswers
from verl_pivot.browser.page_events import PageEvents
from verl_pivot.browser.page_text import MAX_DEPTH, PageText, page_text
from verl_pivot.browser.page_watch import PageWatch, quietly
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.errors import BrowserError, PageError
from verl_pivot.extras import extra
from verl_pivot.off_loop import run_off_loop

with extra("web"):
    from playwright.async_api import BrowserContext, Locator, Page, Route
    from playwright.async_api import Error as PlaywrightError

ResultT = TypeVar("ResultT")

MAX_HTML_CHARACTERS = 4 * 1024 * 1024
"""Most characters of HTML that `show` takes."""
MAX_ELEMENTS = 20_000
MAX_TEXT = 2_000_000
"""Most elements (MAX_ELEMENTS) and characters (MAX_TEXT) of a page that `read` gives; a larger page gives a note."""
MAX_SNAPSHOT = 4_000_000
"""Most characters of a snapshot, which has names, frames and shadow trees, too; a larger one gives a note."""
_ELEMENT_SECONDS = 2.0
"""Seconds within which an element must be ready for an action: visible, still, and not covered."""
_READ: Literal["domcontentloaded"] = "domcontentloaded"
"""State of a document that has been parsed, while pictures and other resources may still be loading."""
_WHEEL = {"up": -400, "down": 400}
_SIZE = "[+document.getElementsByTagName('*').length, +(document.body ? document.body.textContent.length : 0)]"
# Mulberry32, a random number generator with 32 bits of state, in the public domain.
_SEED_SCRIPT = """(() => { let state = %d >>> 0; Math.random = () => {
  state = (state + 0x6D2B79F5) >>> 0; let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296; }; })();"""


class PageCloser(Protocol):
    """Object that is told when a page has closed, for example to let the next page open."""

    async def page_closed(self, process: BrowserProcess) -> None: ...


class WebPage:
    """One page of one trajectory. All methods have time limits, and only one may run at a time.

    Every method that asks the page raises:
        PageError: If the page hangs, has crashed, floods the browser, or lacks the named element.
        BrowserError: If the browser has died.

    Example:
        async with opened_page(PageSettings(seed=7)) as page:
            await page.show("<button>OK</button>")
            print((await page.read()).text)  # [1] button "OK"
            await page.click(1)
    """

    def __init__(
        self, process: BrowserProcess, context: "BrowserContext", settings: PageSettings, closer: PageCloser
    ) -> None:
        """Hold a context; `prepare` opens its page.

        Args:
            process: The browser.
            context: Its context for this page.
            settings: What the page is opened with.
            closer: Object that is told when the page has closed.
        """
        self._process, self._context, self._settings, self._closer = process, context, settings, closer
        self._answers = PageAnswers(process, settings.action_seconds, self._closed)
        self._watch = PageWatch(self._answers.events, self._answers.give_up)
        self._isolated_world = IsolatedWorld()
        self._page: Page | None = None
        self._html = ""
        self._numbers = dict[tuple[int, int, str], int]()
        """{(documents of the page, documents of its frames, Playwright's name for an element): its number}"""
        self._shown = PageText(text="")

    async def prepare(self, browser: BrowserSettings) -> None:
        """Open the page and watch what it does."""
        settings, context = self._settings, self._context
        hosts = browser.hosts if settings.hosts is None else settings.hosts
        if settings.seed is not None:
            await self._sent(context.add_init_script(_SEED_SCRIPT % (settings.seed % 2**32)))
        await self._sent(context.route(OFFLINE_PAGE, self._serve))
        refused, needs_routes = refused_addresses(hosts, browser.folders), not are_resolved_alone(hosts, browser.hosts)
        await self._sent(context.route(refused, self._watch.refuse))
        if needs_routes:
            await self._sent(context.route_web_socket(refused, self._watch.refuse_socket))
        self._page = page = await self._sent(context.new_page())
        if needs_routes:
            await self._sent(self._watch.refuse_redirects(context, page, refused))
        await self._sent(self._answers.begin(context, page))
        if settings.time is not None:
            await self._sent(page.clock.set_fixed_time(settings.time))
        self._watch.listen(context, page, keeps_console=settings.keeps_console)

    async def __aenter__(self) -> "WebPage":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def events(self) -> PageEvents:
        """What the page has done so far besides showing its content."""
        return self._watch.events

    @property
    def url(self) -> str:
        """Address of the page."""
        return "about:blank" if self._page is None else self._page.url

    async def goto(self, url: str) -> None:
        """Open an address and wait until its document is parsed; its other resources may still be loading."""
        if not url.startswith(("http://", "https://", "file://")):
            raise PageError(f"an address begins with http:// or https://, got {url!r:.80}")
        self._watch.begin_action()
        await self._answers.loaded(lambda page: page.goto(url, wait_until=_READ, timeout=self._milliseconds))

    async def show(self, html: str) -> None:
        """Show HTML as a page without a network, and wait until it has loaded, its pictures and scripts included."""
        if len(html) > MAX_HTML_CHARACTERS:
            raise PageError(f"the page has {len(html)} characters of HTML; at most {MAX_HTML_CHARACTERS} are shown")
        self._html = html
        self._watch.begin_action()
        await self._answers.loaded(lambda page: page.goto(OFFLINE_PAGE, wait_until="load", timeout=self._milliseconds))

    async def read(self) -> PageText:
        """The page as text; later actions name elements by the numbers in it."""
        size = await self.evaluate(_SIZE)
        elements, characters = size if isinstance(size, list) and len(size) == 2 else (0, 0)
        if elements > MAX_ELEMENTS or characters > MAX_TEXT:
            return self._too_large(f"{elements} elements, {characters} characters")
        snapshot = await self._answers.loaded(
            lambda page: page.aria_snapshot(mode="ai", depth=MAX_DEPTH, timeout=self._milliseconds)
        )
        if len(snapshot) > MAX_SNAPSHOT:
            return self._too_large(f"{len(snapshot)} characters with the names of its elements")
        self._shown = await run_off_loop(len(snapshot), page_text, snapshot, self._numbering())
        return self._shown

    async def click(self, number: int) -> None:
        await self._on_element(number, lambda element: element.click(timeout=_ELEMENT_SECONDS * 1000))

    async def fill(self, number: int, text: str) -> None:
        """Replace the text of a field."""
        await self._on_element(number, lambda element: element.fill(text, timeout=_ELEMENT_SECONDS * 1000))

    async def select(self, number: int, option: str) -> None:
        """Choose the option of a list that has this label or value."""
        await self._on_element(number, lambda element: element.select_option(option, timeout=_ELEMENT_SECONDS * 1000))

    async def press(self, key: str, number: int | None = None) -> None:
        """Press a key, such as Enter or Control+A, at an element, or where the focus is."""
        if number is None:
            self._watch.begin_action()
            await self._answers.asked(lambda page: page.keyboard.press(key))
        else:
            await self._on_element(
                number, lambda element: element.press(key, timeout=_ELEMENT_SECONDS * 1000, no_wait_after=True)
            )

    async def scroll(self, direction: str, number: int | None = None) -> None:
        """Turn the mouse wheel, `up` or `down`, over an element or over the middle of the page."""
        settings = self._settings
        if number is None:
            self._watch.begin_action()
            await self._answers.asked(lambda page: page.mouse.move(settings.width / 2, settings.height / 2))
        else:
            await self._on_element(number, lambda element: element.hover(timeout=_ELEMENT_SECONDS * 1000))
        await self._answers.asked(lambda page: page.mouse.wheel(0, _WHEEL[direction]))

    async def back(self) -> None:
        """Go back to the previous page."""
        self._watch.begin_action()
        if not await self._answers.has_previous():
            raise PageError("there is no page to go back to")
        await self._answers.loaded(lambda page: page.go_back(wait_until=_READ, timeout=self._milliseconds))

    async def settle(self, seconds: float) -> None:
        """Wait for scripts, and for a document that an action has begun to load."""
        await asyncio.sleep(seconds)
        await self._answers.document_arrives()
        await self._answers.loaded(lambda page: page.wait_for_load_state(_READ, timeout=self._milliseconds))

    async def screenshot(self, *, full_page: bool = False) -> bytes:
        """The visible part of the page, or with `full_page` all of it, as PNG."""
        return await self._answers.asked(
            lambda page: page.screenshot(
                full_page=full_page,
                type="png",
                timeout=self._milliseconds,
                caret="initial",  # hiding the caret changes styles, which would show the page that it is photographed
            )
        )

    async def evaluate(self, expression: str, argument: object = None) -> Any:
        """Value of a JavaScript expression or function of `argument` in the page; the page's scripts may forge it."""
        return await self._answers.asked(lambda page: page.evaluate(expression, argument))

    async def evaluate_apart(self, expression: str) -> Any:
        """Value of a JavaScript expression in an isolated world, whose functions the page's scripts cannot replace."""
        return await self._answers.asked(
            lambda page: self._isolated_world.value(self._context, page, expression, self._milliseconds)
        )

    async def has_shadow_trees(self) -> bool:
        """Whether an element of the page has a shadow tree, also a closed one, whose content no script can see."""
        return await self._answers.asked(lambda page: self._isolated_world.has_shadow_trees(self._context, page))

    async def browser_answers(self) -> bool:
        """Whether the browser is alive, whatever the state of the page."""
        return await self._process.answers()

    async def close(self) -> None:
        """Close the page, whatever its state; repeated calls are harmless."""
        await self._answers.close()

    async def _closed(self) -> None:
        await self._process.close_context(self._context)
        await self._closer.page_closed(self._process)

    @property
    def is_gone(self) -> bool:
        """Whether the page was closed, because it hung, crashed or flooded the browser, or by `close`."""
        return bool(self._answers.gone)

    @property
    def _milliseconds(self) -> float:
        return self._settings.action_seconds * 1000

    async def _on_element(self, number: int, action: "Callable[[Locator], Awaitable[object]]") -> None:
        ref = self._shown.refs.get(number)
        if ref is None:
            is_old = number in self._numbers.values()
            why = "belongs to an earlier observation" if is_old else "is not in the observation"
            raise PageError(f"the number {number} {why}; take one of the last observation")
        self._watch.begin_action()
        await self._answers.acted(lambda page: action(page.locator(f"aria-ref={ref}")), f"element {number}")

    async def _sent(self, preparing: Awaitable[ResultT]) -> ResultT:
        """Result of a browser operation in which no page's scripts take part."""
        try:
            async with asyncio.timeout(self._settings.action_seconds + 5.0):
                return await preparing
        except (PlaywrightError, TimeoutError) as error:
            await self._process.answers()
            raise BrowserError(f"the browser cannot open a page: {reason_of(str(error))}") from error

    def _too_large(self, size: str) -> PageText:
        self._shown = PageText(text=f"(A page too large to be shown: {size}.)")
        return self._shown

    def _numbering(self) -> Callable[[str], int]:
        """Function that gives numbers to the elements of one snapshot, the first of which is in no frame.

        Playwright names elements as `e3`, or with a number of their frame as `f1e3`. Its names begin anew with each
        document, but a frame keeps its number.
        """
        documents, frames, outer = self.events.num_documents, self.events.num_frame_documents, None

        def number(ref: str) -> int:
            nonlocal outer
            frame = ref.partition("e")[0]
            outer = frame if outer is None else outer
            key = (documents, 0 if frame == outer else frames, ref)
            return self._numbers.setdefault(key, len(self._numbers) + 1)

        return number

    async def _serve(self, route: "Route") -> None:
        await quietly(lambda: route.fulfill(body=self._html, content_type="text/html; charset=utf-8"))
