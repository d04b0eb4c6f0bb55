"""A page and an expression -> its value in an isolated world, which the page's scripts cannot reach."""

from typing import Any

from verl_pivot.extras import extra

with extra("web"):
    from playwright.async_api import BrowserContext, CDPSession, Page
    from playwright.async_api import Error as PlaywrightError


class IsolatedWorld:
    """Isolated JavaScript world of one page for our own expressions, over a connection that is opened once."""

    def __init__(self) -> None:
        self._session: CDPSession | None = None

    async def value(self, context: BrowserContext, page: Page, expression: str, milliseconds: float) -> Any:
        """Value of an expression, as JSON. A page can change its document meanwhile, but none of the functions used.

        Raises:
            playwright.async_api.Error: If the expression fails or takes too long, or the page has gone.
        """
        if self._session is None:
            self._session = await context.new_cdp_session(page)
        tree = await self._session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        world = await self._session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "verl-pivot"})
        asked = {
            "expression": expression,
            "contextId": world["executionContextId"],
            "returnByValue": True,
            "timeout": milliseconds,
        }
        answer = await self._session.send("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            raise PlaywrightError(f"the expression failed: {answer['exceptionDetails'].get('text', '')}")
        return answer["result"].get("value")
