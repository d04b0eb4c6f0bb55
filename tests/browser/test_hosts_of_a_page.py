"""Hosts of a page that are fewer than those of its browser: also redirects and WebSockets reach no other one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from aiohttp import web

from tests.support.web import needs_browser
from tests.support.web_servers import running
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import opened_page
from verl_pivot.browser.web_page import WebPage
from verl_pivot.errors import PageError

pytestmark = [needs_browser, pytest.mark.timeout(200)]

SETTINGS = BrowserSettings(hosts=("localhost", "127.0.0.1"))
BUTTON = "<button>OK</button>"


class TwoHosts(NamedTuple):
    """A page, the server at localhost, and the one at 127.0.0.1, to which the first one redirects."""

    page: WebPage
    url: str
    other_url: str
    reached: list[str]
    """Paths of the requests that the other server was sent."""


@asynccontextmanager
async def two_hosts(hosts: tuple[str, ...] | None) -> AsyncIterator[TwoHosts]:
    """A page that may contact `hosts`; None: both."""
    reached = list[str]()

    async def other(request: web.Request) -> web.StreamResponse:
        reached.append(request.path)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.Response(text="<h1>other</h1>", content_type="text/html")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        return socket

    there = web.Application()
    there.add_routes([web.get("/{path:.*}", other)])
    async with running(there) as other_url:

        async def redirecting(request: web.Request) -> web.Response:
            raise web.HTTPFound(other_url + request.path)

        async def shown(_: web.Request) -> web.Response:
            return web.Response(text=BUTTON, content_type="text/html")

        async def nearby(_: web.Request) -> web.Response:
            raise web.HTTPFound("/")

        here = web.Application()
        here.add_routes([web.get("/", shown), web.get("/nearby", nearby), web.get("/{path:.*}", redirecting)])
        async with running(here) as url, opened_page(PageSettings(hosts=hosts), SETTINGS) as page:
            yield TwoHosts(page, url.replace("127.0.0.1", "localhost"), other_url, reached)


async def test_a_redirect_to_a_host_that_the_page_may_not_contact_is_refused_and_counted() -> None:
    async with two_hosts(("localhost",)) as both:
        page = both.page
        with pytest.raises(PageError, match="ERR_FAILED"):
            await page.goto(f"{both.url}/document")
        await page.settle(0.5)
        await page.goto(f"{both.url}/nearby")
        assert (await page.read()).text.endswith('button "OK"')
        await page.evaluate("fetch('/picture', {mode: 'no-cors'}).catch(() => 0)")

        assert both.reached == []
        assert page.events.refused_requests == [f"{both.other_url}/document", f"{both.other_url}/picture"]


async def test_a_web_socket_to_a_host_that_the_page_may_not_contact_is_refused_and_counted() -> None:
    async with two_hosts(("localhost",)) as both:
        await both.page.goto(f"{both.url}/")
        address = f"ws{both.other_url.removeprefix('http')}/socket"
        opening = """(address) => new Promise((done) => { const socket = new WebSocket(address);
            socket.onopen = () => done(true); socket.onclose = () => done(false); })"""

        assert await both.page.evaluate(opening, address) is False
        assert both.reached == []
        assert both.page.events.refused_requests == [address]


async def test_a_page_with_all_hosts_of_its_browser_follows_redirects_to_them() -> None:
    async with two_hosts(None) as both:
        await both.page.goto(f"{both.url}/document")

        assert (await both.page.read()).text.endswith('heading "other" (level=1)')
        assert both.reached[0] == "/document"
