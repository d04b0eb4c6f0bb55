"""HTML -> Rendering of the page at load and later, or why the page is invalid; in the browser, offline."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from verl_pivot.browser.allowed_requests import OFFLINE_PAGE
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import opened_page
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import BrowserError, PageError
from verl_pivot.types import Verdict
from verl_pivot.verifiers.render_assertions import Measured, measuring, read_measured
from verl_pivot.verifiers.render_pictures import num_drawn_pixels, read_picture
from verl_pivot.verifiers.verdicts import Reason, refuse

MIN_DRAWN_PIXELS = 64
"""Fewest pixels that must differ from the background; a page with fewer shows nothing."""
_MAX_ATTEMPTS = 3
"""Most attempts to render a page, including those in which the browser fails, before the page is left undecided."""
_CONTROL_PAGE = "<h1>Control</h1>"
_CONTROL_SHARE = 0.5
"""Share of `wall_seconds` within which a control page of one word must be done, after another page was too slow."""

_PAGES_PER_PROCESSOR = 4
"""Pages that are rendered at a time per processor; some of them only wait for their next screenshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderRequest:
    """Request to render a page."""

    width: int
    height: int
    seconds: tuple[float, ...]
    """[num_screenshots] Seconds after loading, ascending."""
    selectors: tuple[str, ...]
    wall_seconds: float
    """Time limit in seconds for the whole request, in addition to the last of `seconds`."""
    allow_pictures: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Result of rendering a valid page."""

    screenshots: tuple[bytes, ...]
    """[num_screenshots] PNG"""
    last: NDArray[np.uint8]
    """[height, width, 3] The last screenshot."""
    measured: tuple[Measured, ...]
    """Measured elements before and after the last screenshot."""
    notes: tuple[str, ...]
    """Errors that the page wrote to the console, and requests that were refused."""


async def rendered(html: str, request: RenderRequest) -> Rendering | Verdict:
    """The rendered page, or the verdict that it is invalid, whatever a judge would say about it.

    A page that hangs or fails in the browser is tried twice, with a control page of one word in between, since a busy
    machine is not the fault of the page.

    Raises:
        BrowserError: If a browser dies, or takes too long for the control page, and no further attempt is left.
        ConfigError: If no browser is installed.
    """
    was_invalid = False
    for attempt in range(_MAX_ATTEMPTS):
        try:
            found = await _rendered_once(html, request)
            if not isinstance(found, Verdict) or found.reason != Reason.INVALID_PAGE or was_invalid:
                return found
            await _check_speed(request)
            was_invalid = True
        except BrowserError:
            if attempt == _MAX_ATTEMPTS - 1:
                raise
    raise BrowserError("the browser died between two attempts to render a page that was not done in time")


async def _check_speed(request: RenderRequest) -> None:
    """Render the control page of one word, after another page was not done in time.

    Raises:
        BrowserError: If the control page takes more than its share of the time, and so the machine may be at fault.
    """
    control = replace(request, seconds=(0.0,), selectors=(), allow_pictures=True)
    async with _page(request) as page:
        began = asyncio.get_running_loop().time()  # from here: the wait for a free page says nothing about the machine
        found = await _in_time(page, _CONTROL_PAGE, control)
        seconds = asyncio.get_running_loop().time() - began
    if isinstance(found, Verdict) or seconds > _CONTROL_SHARE * request.wall_seconds:
        raise BrowserError(f"the machine is too busy to render: a page of one word took {seconds:.1f} s")


async def _rendered_once(html: str, request: RenderRequest) -> Rendering | Verdict:
    async with _page(request) as page:
        try:
            return await _in_time(page, html, request)
        except BrowserError as error:
            if not await page.browser_answers():
                raise
            return refuse(Reason.INVALID_PAGE, str(error))  # page or machine is at fault; the control page tells which


def _page(request: RenderRequest) -> AbstractAsyncContextManager[WebPage]:
    settings = PageSettings(
        width=request.width,
        height=request.height,
        seed=0,
        keeps_console=True,
        action_seconds=request.wall_seconds,
    )
    return opened_page(settings, BrowserSettings(max_pages=_pages_at_once()))


async def _in_time(page: WebPage, html: str, request: RenderRequest) -> Rendering | Verdict:
    work = asyncio.ensure_future(_shown(page, html, request))
    seconds = request.wall_seconds + request.seconds[-1]
    try:
        done, _ = await asyncio.wait({work}, timeout=seconds)
    finally:
        if not work.done():
            work.cancel()
    if not done:
        return refuse(Reason.INVALID_PAGE, f"the page was not done within {seconds:g} s")
    try:
        return work.result()
    except PageError as error:
        return refuse(Reason.INVALID_PAGE, str(error))


def _pages_at_once() -> int:
    """Number of pages that the browser renders at a time; more would wait for a processor while their time runs."""
    return min(BrowserSettings().max_pages, _PAGES_PER_PROCESSOR * len(os.sched_getaffinity(0)))


async def _shown(page: WebPage, html: str, request: RenderRequest) -> Rendering | Verdict:
    await page.show(html)
    screenshots: list[bytes] = []
    waited = 0.0
    measured: list[Measured | None] = []
    for at in request.seconds:
        await asyncio.sleep(at - waited)
        waited = at
        is_last = at == request.seconds[-1]
        asked = request if is_last else replace(request, selectors=())  # for pictures alone, which a judge would see
        measured.append(await _measured(page, asked))
        screenshots.append(await page.screenshot())
        if not screenshots[1:] and page.events.num_script_errors:
            return refuse(Reason.SCRIPT_ERROR, "; ".join(page.events.script_errors))
        if not is_last:
            measured.append(await _measured(page, asked))
    after, (last, num_drawn) = await asyncio.gather(
        _measured(page, request), asyncio.to_thread(_read_drawn, screenshots[-1])
    )
    measured.append(after)
    if any(each is None for each in measured):
        return refuse(
            Reason.HAS_PICTURES,
            "the page holds a picture, a canvas, a frame, a style with url(), a font of its own or a shadow tree",
        )
    if page.url.partition("#")[0] != OFFLINE_PAGE:
        return refuse(Reason.LEFT_PAGE, page.url[:200])
    if num_drawn < MIN_DRAWN_PIXELS:
        return refuse(Reason.NOTHING_SHOWN, f"{num_drawn} pixels differ from the background")
    notes = [*page.events.console_errors, *(f"refused: {each}" for each in page.events.refused_requests)]
    return Rendering(
        screenshots=tuple(screenshots),
        last=last,
        measured=tuple(each for each in measured[-2:] if each is not None),
        notes=tuple(notes),
    )


def _read_drawn(screenshot: bytes) -> tuple[NDArray[np.uint8], int]:
    """The picture, and how many of its pixels differ from the background."""
    picture = read_picture(screenshot)
    return picture, num_drawn_pixels(picture)


async def _measured(page: WebPage, request: RenderRequest) -> Measured | None:
    """The elements as they are now; None for a page that holds a picture although pictures are not allowed."""
    selectors = list(request.selectors)
    if request.allow_pictures and not selectors:
        return {}
    value = await page.evaluate_apart(measuring(selectors, allow_pictures=request.allow_pictures))
    if value is None or (not request.allow_pictures and await page.has_shadow_trees()):
        return None
    return read_measured(selectors, value)
