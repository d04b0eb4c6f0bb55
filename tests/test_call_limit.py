"""The time limit of a call: what counts in it, and what does not."""

import asyncio

import pytest

from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import BrowserHost
from verl_pivot.call_limit import call_limit, uncounted_wait


async def wait(seconds: float) -> None:
    with uncounted_wait():
        await asyncio.sleep(seconds)


async def work_after_a_wait() -> None:
    async with call_limit(0.1):
        await wait(0)
        await asyncio.sleep(30)


async def test_a_wait_for_others_does_not_count() -> None:
    async with call_limit(0.2):
        with uncounted_wait():
            await asyncio.sleep(0.4)


async def test_the_time_before_and_after_a_wait_counts_together() -> None:
    async with call_limit(60.0) as limit:
        before = limit.when()
        assert before is not None
        with uncounted_wait():
            assert limit.when() is None
            await asyncio.sleep(0.2)
        after = limit.when()
        assert after is not None
        assert after - before >= 0.2

    with pytest.raises(TimeoutError):
        await work_after_a_wait()


async def test_waits_side_by_side_stop_the_clock_until_the_last_has_ended() -> None:
    async with call_limit(60.0) as limit:
        long = asyncio.ensure_future(wait(0.2))
        await wait(0.05)
        assert limit.when() is None
        await long
        assert limit.when() is not None


async def test_a_wait_of_no_limited_call_is_only_a_wait() -> None:
    await wait(0)
    async with call_limit(None) as limit:
        await wait(0)
        assert limit.when() is None
        left_over = asyncio.ensure_future(wait(0.05))
    await left_over


async def test_a_wait_that_is_given_up_lets_the_clock_go_on() -> None:
    async with call_limit(60.0) as limit:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(30), 0.05)
        assert limit.when() is not None


async def test_the_wait_for_a_page_of_a_full_browser_does_not_count() -> None:
    host = BrowserHost(BrowserSettings(max_pages=1))
    async with call_limit(60.0) as limit:
        await host._room.acquire()
        waiting = asyncio.ensure_future(host.open(PageSettings()))
        await asyncio.sleep(0)
        assert limit.when() is None
        waiting.cancel()
        await asyncio.wait({waiting})
        assert limit.when() is not None
