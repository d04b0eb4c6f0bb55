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

        A page that goes to another document meanwhile is asked again, in that one.

        Raises:
            playwright.async_api.Error: If the expression fails or takes too long, or the page has gone.
        """
        session = await self._connected(context, page)
        try:
            answer = await self._evaluated(session, expression, milliseconds)
        except PlaywrightError:
            answer = await self._evaluated(session, expression, milliseconds)
        if "exceptionDetails" in answer:
            raise PlaywrightError(f"the expression failed: {answer['exceptionDetails'].get('text', '')}")
        return answer["result"].get("value")

    async def _evaluated(self, session: CDPSession, expression: str, milliseconds: float) -> Any:
        tree = await session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        world = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "verl-pivot"})
        asked = {
            "expression": expression,
            "contextId": world["executionContextId"],
            "returnByValue": True,
            "timeout": milliseconds,
        }
        return await session.send("Runtime.evaluate", asked)

    async def has_shadow_trees(self, context: BrowserContext, page: Page) -> bool:
        """Whether an element of the page has a shadow tree, also a closed one, which no script can see.

        Raises:
            playwright.async_api.Error: If the page has gone.
        """
        session = await self._connected(context, page)
        found = await session.send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
        kinds = [each["nodes"].get("shadowRootType", {}).get("value", []) for each in found["documents"]]
        return any(found["strings"][kind] != "user-agent" for each in kinds for kind in each)

    async def _connected(self, context: BrowserContext, page: Page) -> CDPSession:
        if self._session is None:
            self._session = await context.new_cdp_session(page)
        return self._session
