"""Texts of large pages are made beside the event loop, which other pages of the worker need meanwhile."""

import asyncio
import threading
from typing import Any

import pytest

from verl_pivot.browser import web_page
from verl_pivot.browser.page_events import PageEvents
from verl_pivot.browser.page_text import PageText
from verl_pivot.browser.settings import PageSettings
from verl_pivot.browser.web_page import WebPage
from verl_pivot.off_loop import SIZE_ON_LOOP


class LargePage:
    """Stands in for a page that answers at once, with a large snapshot."""

    def __init__(self) -> None:
        self.events = PageEvents()

    async def asked(self, ask: Any) -> list[int]:
        return [1, 1]

    async def loaded(self, ask: Any) -> str:
        return "- text: long\n" * SIZE_ON_LOOP


async def test_the_loop_goes_on_while_the_text_of_a_large_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    is_set_by_the_loop = threading.Event()

    def made(snapshot: str, number_of: Any) -> PageText:
        assert is_set_by_the_loop.wait(timeout=60.0)
        return PageText(text=f"{len(snapshot)} characters")

    monkeypatch.setattr(web_page, "page_text", made)
    process: Any = None
    page = WebPage(process, process, PageSettings(), process)
    page._answers = LargePage()  # type: ignore[assignment]

    reading = asyncio.create_task(page.read())
    while not reading.done():
        await asyncio.sleep(0)
        is_set_by_the_loop.set()

    assert (await reading).text == f"{13 * SIZE_ON_LOOP} characters"
