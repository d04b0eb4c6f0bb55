"""Tasks on web pages: what the page has decided is the outcome, whatever became of the last action."""

import pytest

from tests.support.web import needs_browser
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.web_page import WebPage
from verl_pivot.environments.web_environment import TaskEnd, WebEnvironment, WebOptions
from verl_pivot.tools.contract import Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import EnvironmentReturn

pytestmark = [needs_browser, pytest.mark.timeout(200)]

DECIDING = """<button>go</button><script>
const decide = () => { window.decided = 0.5; const cover = document.createElement('div'); document.body.append(cover);
  cover.textContent = 'over'; cover.style = 'position: fixed; inset: 0; background: #ccc'; }</script>"""
UNFINISHED = EnvironmentReturn(score=-1.0, reason="environment_unfinished")


class DecidingTask:
    """A task whose page decides on its own, when the test calls its function."""

    is_trusted = True

    async def begin(self, page: WebPage) -> str:
        await page.show(DECIDING)
        return "Press the button."

    async def end(self, page: WebPage) -> TaskEnd | None:
        decided = await page.evaluate("window.decided ?? null")
        return None if decided is None else TaskEnd(decided, "solved")

    def unfinished(self) -> EnvironmentReturn:
        return UNFINISHED


def opened() -> WebEnvironment:
    return WebEnvironment(DecidingTask(), ["click"], BrowserSettings(), PageSettings(), WebOptions())


async def clicked(environment: WebEnvironment) -> Observation:
    (click,) = environment.tools
    observation = await click.call({"number": 1}, Workspace())
    assert isinstance(observation, Observation)
    return observation


async def decide(environment: WebEnvironment) -> None:
    assert environment._page is not None
    await environment._page.evaluate("decide()")


async def test_an_action_on_a_page_that_has_decided_meanwhile_ends_the_task() -> None:
    environment = opened()
    assert await environment.begin() == 'Press the button.\n\n[1] button "go"'
    try:
        assert (await clicked(environment)).end is None
        await decide(environment)
        ended = await clicked(environment)

        assert (ended.text, ended.reward) == ("The task has ended: solved.", 0.5)
        assert ended.end is not None
        with pytest.raises(ToolError, match="the task has ended"):
            await clicked(environment)
        assert await environment.score(None) == EnvironmentReturn(score=0.5, reason="solved")
    finally:
        await environment.close()


async def test_what_a_page_decides_after_the_last_action_is_the_outcome() -> None:
    environment = opened()
    await environment.begin()
    try:
        assert (await clicked(environment)).end is None
        assert await environment.score(None) == UNFINISHED
        await decide(environment)

        assert await environment.score(None) == EnvironmentReturn(score=0.5, reason="solved")
    finally:
        await environment.close()
