"""A page and an expression -> its value in an isolated world, which the page's scripts cannot reach."""

from typing import Any

from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, Page
    from playwright.async_api import Error as PlaywrightError


async def value_apart(context: BrowserContext, page: Page, expression: str, milliseconds: float) -> Any:
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
