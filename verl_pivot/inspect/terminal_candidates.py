"""CandidateFiles -> the view of `verl-pivot inspect --terminal` for a profile, pivots and trajectories."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from verl_pivot.errors import PivotError
from verl_pivot.extras import extra
from verl_pivot.inspect.candidate_files import CandidateFiles
from verl_pivot.inspect.candidate_lines import ListedTurn, listed_turns, turn_lines, turn_parts
from verl_pivot.inspect.candidates import CandidateFilter
from verl_pivot.inspect.listing import filter_text, parse_filter
from verl_pivot.inspect.rollout_lines import ShownLine
from verl_pivot.inspect.terminal import refuse_without_terminal
from verl_pivot.inspect.terminal_lines import PickedLines
from verl_pivot.inspect.terminal_rollout import TextScreen
from verl_pivot.inspect.terminal_screens import AskScreen, HelpScreen, ViewScreen
from verl_pivot.inspect.visible_text import on_one_line

with extra("inspect"):
    from textual.app import App
    from textual.binding import Binding, BindingType

_KEYS: Sequence[tuple[str, str]] = (
    ("j, k", "next and previous turn, in the list and in a turn"),
    ("n, p", "next and previous trajectory"),
    ("Enter, Esc", "open the turn, and back to the list"),
    ("/", "search for a part of an id"),
    ("f", "filter, as outcome=mixed decision=kept; the names are those of the page's address"),
    ("Esc", "in the list: clear the filter"),
    ("Tab, Shift+Tab", "in a turn: next and previous message or sample"),
    ("o", "in a turn: show long texts in full, or shorten them again"),
    ("arrows, Space, b", "scroll by a line or a page; Home, End: to the start or end"),
    ("q", "quit"),
)
_ALONG_THE_LIST: Sequence[BindingType] = (
    Binding("j", "go(1)", show=False),
    Binding("k", "go(-1)", show=False),
    Binding("n", "trajectory(1)", show=False),
    Binding("p", "trajectory(-1)", show=False),
)


class TurnListing:
    """Turns that a filter leaves, and the picked one."""

    def __init__(self, files: CandidateFiles) -> None:
        self.files = files
        self.filter = CandidateFilter()
        self.turns = listed_turns(files, self.filter)
        self.at = 0
        """Position of the picked turn."""

    def show(self, wanted: CandidateFilter) -> None:
        self.filter, self.turns, self.at = wanted, listed_turns(self.files, wanted), 0

    def other_trajectory(self, direction: int) -> int:
        """Position of the first turn of the next trajectory (direction 1) or of the previous one (-1)."""
        starts = [
            at for at, each in enumerate(self.turns) if at == 0 or each.trajectory is not self.turns[at - 1].trajectory
        ]
        number = sum(start <= self.at for start in starts) - 1 + direction
        return starts[number] if 0 <= number < len(starts) else self.at


class TurnListScreen(ViewScreen):
    """The list of turns, trajectory by trajectory."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_ALONG_THE_LIST,
        Binding("enter", "open", show=False),
        Binding("slash", "ask_id", show=False),
        Binding("f", "ask_filter", show=False),
        Binding("escape", "clear", show=False),
    ]
    KEYS = "j k turn  n p trajectory  Enter open  / id  f filter  ? all keys"

    def __init__(self, listing: TurnListing) -> None:
        self.table = PickedLines(self._note_pick)
        super().__init__(self.table)
        self.listing = listing

    def _note_pick(self, at: int) -> None:
        self.listing.at = at

    def on_resize(self) -> None:
        self.draw_list()

    def draw_list(self) -> None:
        """Draw the present content of the listing."""
        listing = self.listing
        files = ", ".join(path.name for path in listing.files.paths)
        num_found = len({each.trajectory.id for each in listing.turns})
        of = f" of {num_all:,}" if (num_all := len(listing.files.trajectories)) != num_found else ""
        counts = f"{num_found:,}{of} trajectories, {len(listing.turns):,} turns"
        about = [f"{files}: {counts}", filter_text(listing.filter)]
        self.draw_head(on_one_line("; ".join(each for each in about if each)), "")
        self.say("" if listing.turns else "No trajectory passes the filter; Esc clears it.")
        self.table.show(len(listing.turns), self._parts)
        self.table.pick(listing.at)

    def _parts(self, first: int, number: int) -> list[list[tuple[str, str]]]:
        return [turn_parts(each, self.size.width) for each in self.listing.turns[first : first + number]]

    def action_go(self, number: int) -> None:
        self.table.pick(self.table.at + number)

    def action_trajectory(self, direction: int) -> None:
        self.table.pick(self.listing.other_trajectory(direction))

    def action_open(self) -> None:
        if self.listing.turns:
            self.app.push_screen(TurnScreen(self.listing), lambda _: self.draw_list())

    def action_clear(self) -> None:
        self._list(CandidateFilter())

    def _list(self, wanted: CandidateFilter) -> None:
        self.listing.show(wanted)
        self.draw_list()

    def action_ask_id(self) -> None:
        self.app.push_screen(AskScreen("A part of an id", self.listing.filter.id or ""), self._use_id)

    def _use_id(self, text: str | None) -> None:
        if text is not None:
            self._list(msgspec.structs.replace(self.listing.filter, id=text or None))

    def action_ask_filter(self) -> None:
        title = "Filter, such as outcome=mixed decision=kept"
        self.app.push_screen(AskScreen(title, filter_text(self.listing.filter)), self._use_filter)

    def _use_filter(self, text: str | None) -> None:
        if text is None:
            return
        try:
            self._list(parse_filter(text, CandidateFilter))
        except PivotError as error:
            self.say(str(error))


class TurnScreen(TextScreen):
    """One turn; keys open the next and previous ones of the list."""

    BINDINGS: ClassVar[list[BindingType]] = [*_ALONG_THE_LIST]
    KEYS = "j k turn  n p trajectory  Tab next part  o whole  Esc list  ? keys"

    def __init__(self, listing: TurnListing) -> None:
        super().__init__(self._turn_lines)
        self._listing = listing

    def on_mount(self) -> None:
        self._go_to(self._listing.at)

    def _turn_lines(self, width: int, is_whole: bool) -> list[ShownLine]:
        try:
            return turn_lines(self._listing.files, self._listed, width, is_whole=is_whole)
        except PivotError as error:
            self.say(str(error))
            return []

    @property
    def _listed(self) -> ListedTurn:
        return self._listing.turns[self._listing.at]

    def _go_to(self, at: int) -> None:
        if 0 <= at < len(self._listing.turns):
            self._listing.at, self.is_whole = at, False
            self.draw_head(on_one_line(f"Turn {self._listed.turn.index} of {self._listed.trajectory.id}"), "")
            self.say("")
            self.draw_text()
            self.text.scroll_to_line(0)

    def action_go(self, number: int) -> None:
        self._go_to(self._listing.at + number)

    def action_trajectory(self, direction: int) -> None:
        self._go_to(self._listing.other_trajectory(direction))


class CandidateTerminal(App[None]):
    """The terminal view of one set of files, which have been read."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", show=False),
        Binding("question_mark", "help", show=False),
    ]

    def __init__(self, files: CandidateFiles) -> None:
        super().__init__()
        self._list = TurnListScreen(TurnListing(files))

    async def on_mount(self) -> None:
        await self.push_screen(self._list)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(_KEYS))


def show_turns_in_terminal(files: CandidateFiles) -> None:
    """Show the view until the user ends it.

    Raises:
        ConfigError: If there is no terminal.
    """
    refuse_without_terminal()
    CandidateTerminal(files).run(mouse=False)
