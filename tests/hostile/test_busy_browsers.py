"""Pages that get no processor time, as processes of a real browser are stopped: no page is at fault for that."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.processes import below
from tests.support.web import needs_browser, one_browser
from verl_pivot.browser.browser_process import BrowserProcess
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import opened_page, shared_browser
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import BrowserError, PageError

pytestmark = [needs_browser, one_browser, pytest.mark.timeout(900)]

SETTINGS = BrowserSettings(memory_mib=700, start_seconds=300.0)
PATIENT = PageSettings(width=400, height=300, action_seconds=240.0)
"""Settings with a long time limit, so that a page is done in time on a busy machine too."""
COUNTING = "<button onclick='this.textContent = ++n'>0</button><script>n = 0</script>"
MOVING = """<button id=b style='position: relative'>x</button><script>
const move = () => { b.style.left = b.style.left ? '' : '50px'; requestAnimationFrame(move) }; move()</script>"""


async def browser() -> BrowserProcess:
    current = (await shared_browser(SETTINGS)).current
    assert current is not None
    return current


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes until the block ends."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def renderers(process: BrowserProcess) -> list[int]:
    return [pid for pid in below(process.pid) if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def shown(page: WebPage, html: str) -> str:
    await page.show(html)
    return (await page.read()).text


async def clicked_and_read(page: WebPage) -> str:
    await page.click(1)
    return (await page.read()).text


async def shown_again_and_again(page: WebPage, html: str) -> None:
    for _ in range(100):
        await shown(page, html)


async def test_a_click_waits_for_a_page_that_is_stopped_for_longer_than_elements_may_take() -> None:
    async with opened_page(PATIENT, SETTINGS) as page:
        assert await shown(page, COUNTING) == '[1] button "0"'
        with stopped(renderers(await browser())):
            clicking = asyncio.ensure_future(page.click(1))
            await asyncio.sleep(5.0)
            assert not clicking.done()
        await clicking

        assert (await page.read()).text == '[2] button "1"'


async def test_a_page_that_is_never_given_the_processor_is_not_at_fault_and_costs_only_itself() -> None:
    async with opened_page(PATIENT, SETTINGS) as other, opened_page(PageSettings(action_seconds=3.0), SETTINGS) as page:
        await shown(page, COUNTING)
        process = await browser()
        with stopped(renderers(process)), pytest.raises(BrowserError, match="too busy"):
            await page.click(1)

        assert page.is_gone
        assert not process.is_dead
        assert await shown(other, COUNTING) == '[1] button "0"'


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        (f"{COUNTING}<div style='position: fixed; inset: 0'>over it</div>", "intercepts pointer events"),
        (MOVING, "element is not stable"),
    ],
)
async def test_an_element_that_is_covered_or_moves_is_told_once_the_page_had_its_time(html: str, reason: str) -> None:
    async with opened_page(PATIENT, SETTINGS) as page:
        await shown(page, html)

        with pytest.raises(PageError, match=reason):
            await page.click(1)


async def test_a_click_is_made_once_though_its_page_takes_longer_than_elements_may() -> None:
    slow = COUNTING.replace("onclick='", "onclick='const end = Date.now() + 4000; while (Date.now() < end); ")
    async with opened_page(PATIENT, SETTINGS) as page:
        await shown(page, slow)
        with pytest.raises((PageError, BrowserError), match=r"busy past the time limit|whether the click or key"):
            await page.click(1)

        assert (await page.read()).text == '[2] button "1"'


@pytest.mark.parametrize("hang", ["for (;;) {}", "for (;;) alert(1)"])
async def test_a_page_that_hangs_after_a_click_is_at_fault(hang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the page longer than usual to use processor time, so that a busy machine does not hide that it works."""
    monkeypatch.setattr("verl_pivot.browser.page_pulse._SILENT_SECONDS", 300.0)
    async with opened_page(PageSettings(action_seconds=20.0), SETTINGS) as page:
        await shown(page, f"<button onclick='{hang}'>x</button>")
        with pytest.raises(PageError):
            await clicked_and_read(page)

        assert page.is_gone


async def test_a_page_is_not_blamed_for_what_another_one_asks_of_the_browser() -> None:
    """60,000 requests at once keep the whole browser busy; only the page that makes them may be at fault."""
    floods = "<script>onload = () => { for (let i = 0; i < 60000; i++) fetch('https://evil.example/' + i) }</script>"
    async with (
        opened_page(PageSettings(action_seconds=8.0), SETTINGS) as page,
        opened_page(PageSettings(action_seconds=8.0), SETTINGS) as flooder,
    ):
        await shown(page, COUNTING)

        flooding = asyncio.ensure_future(shown_again_and_again(flooder, floods))
        with suppress(BrowserError):  # allowed, since it blames no page and the policy never reads it
            for _ in range(40):
                await page.read()
                await asyncio.sleep(0.25)
        with pytest.raises((PageError, BrowserError)):
            await flooding
