"""RunIndex -> the view of `verl-pivot inspect --terminal`, which follows the dumps as they grow."""

import asyncio
import sys
import time
from typing import ClassVar

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.inspect.listing import RolloutListing
from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.terminal_list import ListScreen
from verl_pivot.inspect.terminal_screens import KEYS, HelpScreen
from verl_pivot.runs.run import run_names

with extra("inspect"):
    from textual.app import App
    from textual.binding import Binding, BindingType

_SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two checks of the files, and between two drawings of the list while they are read."""


class TerminalView(App[None]):
    """The terminal view of one index."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", show=False),
        Binding("question_mark", "help", show=False),
    ]

    def __init__(self, index: RunIndex) -> None:
        """Create the view; nothing is read yet.

        Args:
            index: Index of the runs that are shown.
        """
        super().__init__()
        self._index = index
        self._list = ListScreen(RolloutListing(index), run_names([run.path for run in index.runs]))

    async def on_mount(self) -> None:
        await self.push_screen(self._list)
        self.run_worker(self._follow())

    def action_help(self) -> None:
        self.push_screen(HelpScreen(KEYS))

    async def _follow(self) -> None:
        shown, shown_at = -1, float("-inf")
        while True:
            is_more = await asyncio.to_thread(self._index.refresh)
            is_due = time.monotonic() - shown_at > _SECONDS_BETWEEN_LOOKS
            if self._index.generation != shown and (is_due or not is_more):
                shown, shown_at = self._index.generation, time.monotonic()
                await self._list.relist()
            await asyncio.sleep(0 if is_more else _SECONDS_BETWEEN_LOOKS)


def show_in_terminal(index: RunIndex) -> None:
    """Show the view until the user ends it.

    Raises:
        ConfigError: If there is no terminal.
    """
    refuse_without_terminal()
    TerminalView(index).run(mouse=False)


def refuse_without_terminal() -> None:
    """Refuse to draw without a terminal.

    Raises:
        ConfigError: If there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("--terminal needs a terminal: leave the option out to get a web page, or connect with ssh -t")
