"""A page -> a value from an isolated world, which its scripts cannot reach; and a picture of it, encoded for speed."""

import base64
from typing import TYPE_CHECKING, Any

from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import Error as PlaywrightError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page


async def value_apart(context: "BrowserContext", page: "Page", expression: str, milliseconds: float) -> Any:
    """Value of an expression, as JSON; a page can change its document meanwhile, but no function that is used here.

    Raises:
        playwright.async_api.Error: If the expression fails or takes too long, or the page has gone.
    """
    session = await context.new_cdp_session(page)
    try:
        tree = await session.send("Page.getFrameTree")
        world = await session.send(
            "Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"], "worldName": "verl-pivot"}
        )
        answer = await session.send(
            "Runtime.evaluate",
            {
                "expression": expression,
                "contextId": world["executionContextId"],
                "returnByValue": True,
                "timeout": milliseconds,
            },
        )
    finally:
        await session.detach()
    if "exceptionDetails" in answer:
        raise PlaywrightError(f"the expression failed: {answer['exceptionDetails'].get('text', '')}")
    return answer["result"].get("value")


async def picture(context: "BrowserContext", page: "Page") -> bytes:
    """The visible part of the page as PNG that is encoded for speed."""
    session = await context.new_cdp_session(page)
    try:
        answer = await session.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
    finally:
        await session.detach()
    return base64.b64decode(answer["data"])
