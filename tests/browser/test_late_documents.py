"""Documents that come late, or never, after an action: the policy reads the next page, and no machine is blamed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.support.web import needs_browser, one_browser
from tests.support.web_servers import running
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import opened_page
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import PageError

pytestmark = [needs_browser, one_browser, pytest.mark.timeout(300)]

SETTINGS = BrowserSettings(hosts=("127.0.0.1",))
FIRST = """<a href=%s>go</a><form action=/late><input name=q></form><script>
navigation.onnavigate = (event) => { const address = event.destination.url;
  if (address.endsWith('/scripted')) event.intercept(); if (address.endsWith('/prevented')) event.preventDefault(); }
document.write('<i></i>');</script>"""
LATE = "/late"
LATE_SECONDS = 3.0
"""Longer than an element may take to be ready for an action."""


async def late(_: web.Request) -> web.Response:
    await asyncio.sleep(LATE_SECONDS)
    return web.Response(text="<h1>second</h1>", content_type="text/html")


async def never(_: web.Request) -> web.Response:
    await asyncio.sleep(3600.0)
    raise AssertionError("no test waits so long")


async def empty(_: web.Request) -> web.Response:
    return web.Response(status=204)


async def download(_: web.Request) -> web.Response:
    return web.Response(text="x", headers={"Content-Disposition": "attachment; filename=x"})


@asynccontextmanager
async def first_page(link: str, action_seconds: float = 60.0) -> AsyncIterator[WebPage]:
    """A page with a link and a form, which has been read."""

    async def first(_: web.Request) -> web.Response:
        return web.Response(text=FIRST % link, content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/", first), web.get(LATE, late), web.get("/never", never)])
    app.add_routes([web.get("/empty", empty), web.get("/download", download)])
    async with running(app) as url, opened_page(PageSettings(action_seconds=action_seconds), SETTINGS) as page:
        await page.goto(f"{url}/")
        assert (await page.read()).text.startswith('[1] link "go"')
        yield page


async def number_of_field(page: WebPage) -> int:
    lines = (await page.read()).text.splitlines()
    return next(int(line.strip()[1:].partition("]")[0]) for line in lines if "textbox" in line)


async def read_at_last(page: WebPage) -> str:
    await page.settle(0.3)
    return (await page.read()).text


async def test_a_click_on_a_link_shows_a_page_whose_server_answers_late() -> None:
    async with first_page(LATE) as page:
        await page.click(1)

        assert (await read_at_last(page)).endswith('heading "second" (level=1)')


@pytest.mark.parametrize("is_at_element", [True, False])
async def test_a_key_that_submits_a_form_shows_a_page_whose_server_answers_late(is_at_element: bool) -> None:
    async with first_page(LATE) as page:
        number = await number_of_field(page)
        await page.click(number)
        await page.press("Enter", number if is_at_element else None)

        assert (await read_at_last(page)).endswith('heading "second" (level=1)')


async def test_a_script_that_leaves_after_a_click_is_waited_for() -> None:
    async with first_page(f"javascript:void(setTimeout(function(){{location='{LATE}'}},100))") as page:
        await page.click(1)

        assert (await read_at_last(page)).endswith('heading "second" (level=1)')


@pytest.mark.parametrize(
    "link",
    [
        "javascript:void(0)", "mailto:a@b.example", "/empty", "/download", "#a", "/never target=_blank", "/scripted",
        "/prevented",
    ],
)  # fmt: skip
async def test_a_link_that_shows_no_further_document_is_not_waited_for(link: str) -> None:
    """With a time limit of a minute, a wait for a document would end in an error."""
    async with first_page(link) as page:
        await page.click(1)

        assert (await read_at_last(page)).startswith('[1] link "go"')


async def test_a_page_that_never_comes_is_told_to_the_policy_which_can_go_on() -> None:
    async with first_page("/never", action_seconds=5.0) as page:
        await page.click(1)
        with pytest.raises(PageError, match="the page: the next document did not come within 5 s"):
            await page.settle(0.3)

        number = await number_of_field(page)
        await page.fill(number, "tea")
        assert "textbox: tea" in await read_at_last(page)
        assert not page.is_gone
