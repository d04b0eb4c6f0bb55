"""Entry `- environment: miniwob` of a tools file -> an episode of MiniWoB++ for each rollout, by task and seed.

MiniWoB++ (Liu et al., arXiv:1802.08802; Farama's package miniwob, MIT license) has pages that make a problem from
a seed and decide whether it is solved. Its Python code, which drives a browser with Selenium, is not used.
"""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from verl_pivot.browser.settings import PageSettings, find_browser
from verl_pivot.browser.web_page import WebPage
from verl_pivot.data.json_values import as_list, decode_json
from verl_pivot.environments.stepped import seed_of
from verl_pivot.environments.web_actions import WEB_ACTIONS
from verl_pivot.environments.web_environment import TaskEnd, WebEnvironment, WebOptions, of_row
from verl_pivot.errors import DataError, PageError
from verl_pivot.extras import require
from verl_pivot.tools.registry import register_framework
from verl_pivot.types import EnvironmentReturn, JsonObject, Verdict

FOLDER = "/miniwob"
"""Folder in the sandbox that shows the package's pages."""
_ACTIONS = ("click", "fill", "select", "press", "scroll")
"""goto and back are left out: with them the policy could open a page with an easier task."""
_EPISODE_MILLISECONDS = 2_000_000_000
"""Time limit of an episode in the page, in place of 10 s: pivot.rollout sets the limits of a rollout."""
_UNFINISHED = -1.0
"""Reward that MiniWoB++ gives when its time runs out."""
_BEGIN = """async ([seed, milliseconds]) => {
  const until = async ready => {
    for (let tries = 0; tries < 500 && !ready(); tries++) await new Promise(done => setTimeout(done, 10));
    return ready(); };
  if (!await until(() => core.cover_div !== null)) return null;  // made when the page has loaded
  Math.seedrandom(seed); core.setDataMode('train'); core.EPISODE_MAX_TIME = milliseconds;
  window.pivotEpisode = true; core.startEpisodeReal(); core.hideDisplay();
  const isReady = await until(() => WOB_TASK_READY), told = core.getUtterance();
  return isReady ? (typeof told === 'string' ? told : told.utterance) : null; }"""
_STATE = "window.pivotEpisode ? [!!WOB_DONE_GLOBAL, +WOB_RAW_REWARD_GLOBAL] : null"


class MiniwobEntry(WebOptions):
    """Entry `- environment: miniwob`: tasks of MiniWoB++, whose raw reward is the outcome."""

    environment: Annotated[str, Field(max_length=0)] = ""
    width: Annotated[int, Field(ge=50, le=4096)] = 500
    height: Annotated[int, Field(ge=50, le=4096)] = 320


@register_framework("miniwob", options=MiniwobEntry)
class MiniwobSource:
    """Opens the episode of each rollout."""

    can_branch = False  # each page counts towards `max_pages`, so that rollouts would wait for each other's pages
    pays_by_turn = False

    def __init__(self, entry: MiniwobEntry) -> None:
        """Look for the browser and the pages.

        Raises:
            ConfigError: If one of them is not installed.
        """
        find_browser(entry.path)
        self._entry, self._browser = entry, entry.browser({FOLDER: pages_folder()})
        self.tools = tuple(WEB_ACTIONS[name].schema for name in _ACTIONS)

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> WebEnvironment:
        """The episode of one rollout.

        Raises:
            DataError: If `metadata.task` is no task, or `metadata.seed` no seed.
        """
        name = of_row(metadata, "task", str)
        if name not in miniwob_tasks():
            raise DataError(
                f"metadata.task of a row must be a task of MiniWoB++ such as click-button, got {name!r:.80}"
            )
        entry = self._entry
        page = PageSettings(width=entry.width, height=entry.height, action_seconds=entry.action_seconds)
        task = _MiniwobTask(name, seed_of(metadata, row), _prompt_texts(row))
        return WebEnvironment(task, _ACTIONS, self._browser, page, entry)


class _MiniwobTask:
    """One episode of MiniWoB++."""

    is_trusted = True

    def __init__(self, name: str, seed: int, told: Sequence[str]) -> None:
        """Hold a task that has not begun.

        Args:
            name: Name of the task.
            seed: Seed of its problem.
            told: Texts of the prompt, one of which may already state the task.
        """
        self._name, self._seed, self._told = name, seed, told

    async def begin(self, page: WebPage) -> str:
        sentence = await begun_sentence(page, self._name, self._seed)
        return "" if any(sentence in text for text in self._told) else f"Task: {sentence}"

    async def end(self, page: WebPage) -> TaskEnd | None:
        state = await page.evaluate(_STATE)
        if state is None:
            return TaskEnd(_UNFINISHED, "left_page")
        done, reward = state
        if not done:
            return None
        if not math.isfinite(reward):  # as bisect-angle gives where the policy's point is at the vertex
            return TaskEnd(_UNFINISHED, "failed")
        return TaskEnd(float(reward), "solved" if reward > 0 else "failed")

    def unfinished(self) -> Verdict:
        return EnvironmentReturn(score=_UNFINISHED, reason="environment_unfinished")


async def begun_sentence(page: WebPage, name: str, seed: int) -> str:
    """Begin an episode on a page; returns the sentence that states the task.

    Args:
        page: A page of a browser that shows `pages_folder()` as FOLDER.
        name: Name of the task.
        seed: Seed of its problem.

    Raises:
        PageError: If the episode does not begin.
        BrowserError: If the browser has died.
    """
    await page.goto(f"file://{FOLDER}/miniwob/{name}.html")
    await page.settle(0.0)
    told = await page.evaluate(_BEGIN, [seed, _EPISODE_MILLISECONDS])
    if not isinstance(told, str):
        raise PageError(f"the task {name} was not ready after 5 s")
    return told


def _prompt_texts(row: Mapping[str, Any]) -> list[str]:
    """Texts of the messages of a row's prompt."""
    messages = row.get("raw_prompt", row.get("prompt"))
    listed: Any = as_list(decode_json(messages), "prompt") if isinstance(messages, str) else messages
    contents = [each.get("content") for each in (() if listed is None else listed)]
    return [text for text in contents if isinstance(text, str)]


def pages_folder() -> Path:
    """Folder with the pages of the package miniwob.

    Raises:
        ConfigError: If it is not installed.
    """
    require("miniwob", "web")
    spec = importlib.util.find_spec("miniwob")
    assert spec is not None, "`require` has found it"
    assert spec.origin is not None, "a package that is installed has a file"
    return Path(spec.origin).parent / "html"


@cache
def miniwob_tasks() -> frozenset[str]:
    """Names of all tasks except those of the airlines' sites (`flight`), which need a server.

    Raises:
        ConfigError: If the package miniwob is not installed.
    """
    return frozenset(path.stem for path in (pages_folder() / "miniwob").glob("*.html"))
