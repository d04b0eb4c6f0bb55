"""The browser of an event loop leaves nothing behind when the loop ends or when its start is given up."""

import asyncio

import psutil
import pytest

from tests.support.web import needs_browser
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import BrowserHost, opened_page
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import BrowserError

pytestmark = [needs_browser, pytest.mark.timeout(120)]


async def show() -> str:
    async with opened_page() as page:
        await page.show("<button>OK</button>")
        return (await page.read()).text


def test_an_event_loop_that_ends_leaves_no_process_and_no_descriptor() -> None:
    """asyncio cancels Playwright's own tasks before our code can tell Playwright's driver to end."""
    own = psutil.Process()
    before = {each.pid for each in own.children(recursive=True)}, own.num_fds()

    for _ in range(2):
        assert asyncio.run(show()) == '[1] button "OK"'

    assert ({each.pid for each in own.children(recursive=True)}, own.num_fds()) == before


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5])
async def test_a_start_that_is_given_up_leaves_no_browser_and_no_driver(seconds: float) -> None:
    own = psutil.Process()
    before = set(own.children(recursive=True))
    host = BrowserHost(BrowserSettings())
    opening = asyncio.ensure_future(host.open(PageSettings()))
    while not set(own.children(recursive=True)) - before:  # noqa: ASYNC110  # a process starts without an event
        await asyncio.sleep(0.01)

    await asyncio.sleep(seconds)
    opening.cancel()
    await asyncio.wait({opening})
    await host.close()  # on a fast machine the browser had started, and was kept for the next page

    _, alive = psutil.wait_procs(set(own.children(recursive=True)) - before, timeout=20)
    assert alive == []


async def test_a_browser_that_has_died_is_not_ended_by_a_number_that_another_process_has_by_now() -> None:
    host = BrowserHost(BrowserSettings())
    page = await host.open(PageSettings())
    process = host.current
    assert process is not None
    psutil.Process(process.pid).kill()
    other = await asyncio.create_subprocess_exec("sleep", "600")
    (process._folder / "pid").write_text(str(other.pid))  # as if the system had given out the number again

    try:
        await page.close()
        await host.close()

        assert not process._folder.exists()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.wait(), 0.5)
    finally:
        other.kill()
        await other.wait()


async def test_a_dead_browser_is_ended_also_if_its_last_page_was_still_being_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, goes_on = WebPage.prepare, asyncio.Event()

    async def prepare_late(page: WebPage, browser: BrowserSettings) -> None:
        await goes_on.wait()
        raise BrowserError("the browser cannot open a page")

    host = BrowserHost(BrowserSettings())
    one = await host.open(PageSettings())
    dead = host.current
    assert dead is not None
    monkeypatch.setattr(WebPage, "prepare", prepare_late)
    opening = asyncio.ensure_future(host.open(PageSettings()))
    while dead.num_open < 2:  # noqa: ASYNC110  # a context is opened without an event
        await asyncio.sleep(0.01)
    monkeypatch.setattr(WebPage, "prepare", prepare)

    dead.kill()
    three = await host.open(PageSettings())
    await one.close()
    was_kept = dead._folder.exists()
    goes_on.set()
    two = await opening

    assert (was_kept, dead._folder.exists(), host.num_started) == (True, False, 2)
    await two.close()
    await three.close()
    assert host._room._value == BrowserSettings().max_pages
    await host.close()
