"""RolloutListing -> the screen with the list of rollouts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import msgspec

from verl_pivot.errors import PivotError
from verl_pivot.extras import extra
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.listing import RolloutListing, filter_text, parse_filter, parse_order, place_of
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.terminal_lines import PickedLines
from verl_pivot.inspect.terminal_rollout import RolloutScreen, compare
from verl_pivot.inspect.terminal_screens import ALONG_THE_LIST, AskScreen, ViewScreen
from verl_pivot.inspect.terminal_table import head_line, row_parts
from verl_pivot.inspect.visible_text import on_one_line

with extra("inspect"):
    from textual.binding import Binding, BindingType


class ListScreen(ViewScreen):
    """The list of rollouts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *ALONG_THE_LIST,
        Binding("enter", "open", show=False),
        Binding("slash", "ask('words')", show=False),
        Binding("f", "ask('filter')", show=False),
        Binding("s", "ask('order')", show=False),
        Binding("escape", "clear", show=False),
    ]
    KEYS = "j k line  n p group  Enter open  / words  f filter  s sort  [ ] step  ? all keys"

    def __init__(self, listing: RolloutListing, names: Sequence[str]) -> None:
        """Create the screen; nothing is shown yet.

        Args:
            listing: The rollouts that are listed.
            names: [num_runs] names of the runs.
        """
        self.table = PickedLines(self._note_pick)
        super().__init__(self.table)
        self.listing, self._names = listing, names
        self._asking = asyncio.Lock()

    def _note_pick(self, at: int) -> None:
        self.listing.at = at

    def on_resize(self) -> None:
        self.draw_list()

    def draw_list(self) -> None:
        """Draw the present content of the listing."""
        listing, has_runs = self.listing, len(self._names) > 1
        index = listing.index
        mean = "" if listing.mean_score is None else f", mean score {short_number(listing.mean_score)}"
        of = "" if len(listing) == index.num_rollouts else f" of {index.num_rollouts:,}"
        reading = f"; reading {index.num_files - index.num_unread:,} of {index.num_files:,} dumps"
        order = f"{'-' * listing.order.is_descending}{listing.order.sort}"
        about = [
            f"{', '.join(self._names)}: {len(listing):,}{of} rollouts{mean}{reading if index.num_unread else ''}",
            "" if order == "id" else f"sorted by {order}",
            filter_text(listing.filter),
        ]
        self.draw_head(on_one_line("; ".join(each for each in about if each)), head_line(self.size.width, has_runs))
        self.table.show(len(listing), self._parts)
        self.table.pick(listing.at)
        if not len(listing):
            self.say(self._why_empty())
        elif index.problems:
            self.say(index.problems[0])

    def _why_empty(self) -> str:
        index = self.listing.index
        if index.num_unread or not index.generation:
            return "Nothing yet: dumps are being read."
        if index.num_rollouts:
            return "No rollout passes the filter; Esc clears it."
        return "There are no dumps of rollouts: set trainer.rollout_data_dir in the launch."

    def _parts(self, first: int, number: int) -> list[list[tuple[str, str]]]:
        listing = self.listing
        return [
            row_parts(row, self.size.width, self._names, is_marked=row is not None and place_of(row) in listing.marks)
            for row in listing.rows(first, number)
        ]

    def action_go(self, number: int) -> None:
        self.table.pick(self.table.at + number)

    def action_group(self, direction: int) -> None:
        self.table.pick(self.listing.other_group(direction))

    async def action_step(self, direction: int) -> None:
        wanted = self.listing.other_step(self.listing.filter.step, direction)
        if wanted is not None:
            await self.relist(wanted)

    async def relist(self, wanted: RolloutFilter | None = None, order: RolloutOrder | None = None) -> None:
        """List the rollouts by another filter or order, with those that are new; or say why this is not possible."""
        async with self._asking:
            listing = self.listing
            wanted, order = wanted or listing.filter, order or listing.order
            try:
                found = await asyncio.to_thread(listing.index.ordered, wanted, order)
            except PivotError as error:
                self.say(str(error))
                return
            self.say("")
            listing.show(wanted, order, found)
            self.draw_list()

    async def action_clear(self) -> None:
        await self.relist(RolloutFilter())

    def action_open(self) -> None:
        if (row := self.listing.picked()) is not None:
            self.app.push_screen(RolloutScreen(self.listing, row), self._came_back)

    async def _came_back(self, wanted: RolloutFilter | None) -> None:
        self.draw_list()
        if wanted is not None:
            await self.relist(wanted)

    def action_mark(self) -> None:
        if (row := self.listing.picked()) is not None:
            self.listing.toggle_mark(row)
            self.draw_list()

    def action_compare(self) -> None:
        compare(self, self.listing)

    def action_ask(self, what: str) -> None:
        listing = self.listing
        title, given, use = {
            "words": ("Words to search for", listing.filter.words or "", self._use_words),
            "filter": ("Filter, such as step=12 score_to=0", filter_text(listing.filter), self._use_filter),
            "order": ("Sort by a column, such as score or -sampled_tokens", "", self._use_order),
        }[what]
        self.app.push_screen(AskScreen(title, given), lambda answer: self._use(use, answer))

    def _use(self, use: Callable[[str], Awaitable[None]], answer: str | None) -> None:
        if answer is not None:
            self.run_worker(use(answer), exclusive=True)

    async def _use_words(self, text: str) -> None:
        await self.relist(msgspec.structs.replace(self.listing.filter, words=text or None))

    async def _use_filter(self, text: str) -> None:
        try:
            await self.relist(parse_filter(text, RolloutFilter))
        except PivotError as error:
            self.say(str(error))

    async def _use_order(self, text: str) -> None:
        try:
            await self.relist(order=parse_order(text))
        except PivotError as error:
            self.say(str(error))
