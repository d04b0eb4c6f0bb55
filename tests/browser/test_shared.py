"""The browser of an event loop: what is left of it when the loop has ended."""

import asyncio

import psutil
import pytest

from tests.support.web import needs_browser
from verl_pivot.browser.shared import opened_page

pytestmark = [needs_browser, pytest.mark.timeout(120)]


async def show() -> str:
    async with opened_page() as page:
        await page.show("<button>OK</button>")
        return (await page.read()).text


def test_an_event_loop_that_ends_leaves_no_process_and_no_descriptor() -> None:
    """asyncio ends Playwright's own tasks before anybody can tell its driver to end."""
    own = psutil.Process()
    before = {each.pid for each in own.children(recursive=True)}, own.num_fds()

    for _ in range(2):
        assert asyncio.run(show()) == '[1] button "OK"'

    assert ({each.pid for each in own.children(recursive=True)}, own.num_fds()) == before
