"""The browser of an event loop leaves nothing behind when the loop ends or when its start is given up."""

import asyncio

import psutil
import pytest

from tests.support.web import needs_browser
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import BrowserHost, opened_page

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
