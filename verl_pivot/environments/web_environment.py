"""A task on web pages -> OpenedEnvironment: tools by the elements' numbers, and the page as text after each call."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field

from verl_pivot.browser.page_events import PageEvents
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import shared_browser
from verl_pivot.browser.web_page import WebPage
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.environments.web_actions import WEB_ACTIONS
from verl_pivot.errors import BrowserError, DataError, PageError, ToolFailureError
from verl_pivot.tools.contract import CallPolicy, Observation, Tool, ToolError
from verl_pivot.tools.tool_response import shortened
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import EnvironmentReturn, JsonObject, Message, Verdict
from verl_pivot.validation import Options

logger = logging.getLogger(__name__)


class WebOptions(Options):
    """Options of every environment of web pages."""

    path: str | None = None
    """Path or name of the browser; None: pivot.browser.path, or without it the first Chromium that is installed."""
    width: Annotated[int, Field(ge=50, le=4096)] = 1280
    """Width of the visible part of a page in CSS pixels."""
    height: Annotated[int, Field(ge=50, le=4096)] = 720
    action_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0
    """Seconds in which a page must answer; a page that does not is closed."""
    settle_seconds: Annotated[float, Field(ge=0.0, le=60.0)] = 0.05
    """Seconds between an action and the observation, in which scripts may change the page."""
    max_pages: Annotated[int, Field(ge=1)] = 64
    """Maximum number of pages that are open at once in one worker; further rollouts wait before they begin."""
    memory_mib: Annotated[int, Field(ge=128)] = 768
    """Maximum memory, in MiB, for the data of each browser process; a page that needs more crashes."""
    max_characters: Annotated[int, Field(ge=16)] = 16384
    """Maximum length of an observation in characters; `pivot.rollout.max_observation_tokens` limits it further."""

    def browser(self, folders: Mapping[str, Path], hosts: tuple[str, ...] = ()) -> BrowserSettings:
        """Settings with which the browser starts."""
        return BrowserSettings(
            path=self.path, folders=folders, hosts=hosts, memory_mib=self.memory_mib, max_pages=self.max_pages
        )


class TaskEnd(NamedTuple):
    """End of a task, as its page decides it."""

    outcome: float
    reason: str


class WebTask(Protocol):
    """A task of one row."""

    @property
    def is_trusted(self) -> bool:
        """Whether the task's pages never hang or crash by themselves, so that the machine is at fault if one does."""
        ...

    async def begin(self, page: WebPage) -> str:
        """Open the first document; returns what the policy must know of the task, "" if the prompt says it.

        Raises:
            PageError: If the page does not open, which is then a failure of the system.
        """
        ...

    async def end(self, page: WebPage) -> TaskEnd | None:
        """End of the task; None if it goes on."""
        ...

    def unfinished(self) -> Verdict | None:
        """The outcome of a rollout that ends before its task; None leaves it to the reward manager."""
        ...


class WebEnvironment:
    """A page during one rollout."""

    def __init__(
        self, task: WebTask, names: Sequence[str], browser: BrowserSettings, page: PageSettings, options: WebOptions
    ) -> None:
        """Hold a page that is not open yet.

        Args:
            task: The task.
            names: Names of the actions that the policy may take.
            browser: Settings with which the browser starts.
            page: Settings with which the page is opened.
            options: The entry of the tools file.
        """
        self.tools: tuple[Tool, ...] = tuple(
            _WebTool(WEB_ACTIONS[name].schema, partial(self._act, name)) for name in names
        )
        self._task, self._browser, self._settings, self._options = task, browser, page, options
        self._page: WebPage | None = None
        self._seen = PageEvents()
        self._end: TaskEnd | None = None
        self._is_lost = False
        """Whether the browser failed, so that the outcome cannot be known."""

    async def begin(self) -> str:
        """Open the page; returns the task and the page as text.

        Raises:
            ToolFailureError: If the browser or the page fails.
        """
        self._is_lost = True
        try:
            self._page = page = await (await shared_browser(self._browser)).open(self._settings)
            told = await self._task.begin(page)
            shown = await self._observed(page)
        except (BrowserError, PageError) as error:
            raise ToolFailureError(f"the first page did not open: {error}") from error
        self._is_lost = False
        return "\n\n".join(filter(None, (told, shown)))

    async def score(self, answer: Message | None) -> Verdict | None:
        """The outcome that the task's page gave, also since the last action; undecided if the browser failed."""
        page, is_lost = self._page, self._is_lost
        if self._end is None and page is not None and not page.is_gone and not is_lost:
            try:
                await self._ended(page)
            except PageError:
                is_lost = page.is_gone and self._task.is_trusted
            except BrowserError:
                is_lost = True
        if is_lost:
            return Verdict.undecided("environment_failed", "the browser failed")
        if self._end is None:
            return self._task.unfinished()
        return EnvironmentReturn(score=self._end.outcome, reason=self._end.reason)

    def progress(self) -> float | None:
        """None: only the end of a task shows its progress."""
        return None

    async def close(self) -> None:
        """Close the page."""
        if self._page is not None:
            await self._page.close()

    async def _act(self, name: str, arguments: JsonObject) -> Observation:
        """Take an action.

        Raises:
            ToolError: If the page does not allow it, or the task has ended.
            ToolFailureError: If the browser failed.
        """
        if self._is_lost or self._page is None:
            raise ToolFailureError("the browser failed in an earlier call")
        if self._end is not None:
            raise ToolError("the task has ended; it takes no further action")
        self._is_lost = True  # until the page has answered, since a cancelled call leaves an unknown state
        page = self._page
        try:
            observation = await self._answered(page, name, arguments)
        except PageError as error:
            if page.is_gone and self._task.is_trusted:
                raise ToolFailureError(str(error)) from error
            self._is_lost = False
            raise ToolError(str(error)) from error
        except BrowserError as error:
            raise ToolFailureError(str(error)) from error
        self._is_lost = False
        return observation

    async def _answered(self, page: WebPage, name: str, arguments: JsonObject) -> Observation:
        try:
            await WEB_ACTIONS[name].act(page, arguments)
            await page.settle(self._options.settle_seconds)
            shown = await self._observed(page)
        except PageError:
            # The page may have decided all the same: by its own timer, or by an action that it took but did not answer.
            ended = None if page.is_gone else await self._ended(page)
            if ended is None:
                raise
            return ended
        return await self._ended(page) or Observation(shown)  # asked last: no policy reads a page that has decided

    async def _ended(self, page: WebPage) -> Observation | None:
        """What the policy reads when the page has decided the task; None while the task goes on."""
        self._end = await self._task.end(page)
        if self._end is None:
            return None
        text = f"The task has ended: {self._end.reason}."
        return Observation(text, reward=self._end.outcome, end=StopReason.ENVIRONMENT_TERMINATED)

    async def _observed(self, page: WebPage) -> str:
        text = (await page.read()).text or "(The page shows nothing.)"
        notes = list(page.events.notes(self._seen))
        self._seen = page.events.copy()
        shown = shortened("\n".join((*notes, text)), self._options.max_characters)
        return shown.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair, which no tokenizer takes


class _WebTool:
    """One action on the page of one rollout. The page has time limits of its own."""

    policy = CallPolicy(timeout_seconds=None, in_order=True)

    def __init__(self, schema: JsonObject, take: "Callable[[JsonObject], Awaitable[Observation]]") -> None:
        self.schema, self._take = schema, take

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._take(arguments)


def of_row(metadata: JsonObject, name: str, kind: type, default: Any = None) -> Any:
    """Value of a row's column `metadata`.

    Raises:
        DataError: If the value has another type.
    """
    value = metadata.get(name, default)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise DataError(f"metadata.{name} of a row must be {kind.__name__}, got {value!r:.80}")
    return value
