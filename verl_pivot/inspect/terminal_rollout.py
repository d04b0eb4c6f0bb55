"""RolloutListing -> the screens with one rollout turn by turn, and with two of them side by side."""

from collections.abc import Callable
from typing import ClassVar

from verl_pivot.errors import PivotError
from verl_pivot.extras import extra
from verl_pivot.inspect.filters import RolloutFilter
from verl_pivot.inspect.listing import RolloutListing, place_of
from verl_pivot.inspect.opened import open_rollout
from verl_pivot.inspect.queries import ListedRollout
from verl_pivot.inspect.rollout_lines import ListedTexts, ShownLine, comparison_lines, rollout_lines
from verl_pivot.inspect.terminal_lines import TextLines
from verl_pivot.inspect.terminal_screens import ALONG_THE_LIST, ViewScreen

with extra("inspect"):
    from textual.binding import Binding, BindingType


class TextScreen(ViewScreen):
    """A screen whose text can be unfolded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "heading(1)", show=False),
        Binding("shift+tab", "heading(-1)", show=False),
        Binding("o", "unfold", show=False),
        Binding("escape", "dismiss(None)", show=False),
    ]
    is_whole = False
    """Whether long texts are unfolded."""

    def __init__(self, lines: Callable[[int, bool], list[ShownLine]]) -> None:
        """Create the screen; nothing is shown yet.

        Args:
            lines: (cells of a line, whether long texts are unfolded) -> lines that are shown at present.
        """
        self.text = TextLines()
        super().__init__(self.text)
        self._lines = lines

    def on_resize(self) -> None:
        self.draw_text()

    def draw_text(self) -> None:
        width = max(20, self.size.width - 1)  # without the scroll bar
        self.text.show_text(self._lines(width, self.is_whole))

    def action_heading(self, direction: int) -> None:
        self.text.go_to_heading(direction)

    def action_unfold(self) -> None:
        self.is_whole = not self.is_whole
        self.draw_text()


class RolloutScreen(TextScreen):
    """One rollout; keys open the next and previous ones of the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *ALONG_THE_LIST,
        Binding("g", "list_group", show=False),
        Binding("t", "list_prompt", show=False),
    ]
    KEYS = "j k rollout  n p group  Tab turn  o whole  x mark  c compare  Esc list  ? keys"

    def __init__(self, listing: RolloutListing, row: ListedRollout) -> None:
        super().__init__(self._rollout_lines)
        self._listing, self._row = listing, row
        self._opened: ListedTexts | None = None

    def on_mount(self) -> None:
        self._open(self._row)

    def _rollout_lines(self, width: int, is_whole: bool) -> list[ShownLine]:
        return rollout_lines(self._opened, width, is_whole=is_whole) if self._opened else []

    def _open(self, row: ListedRollout) -> None:
        self._row = row
        self._opened = None
        self.say("")
        try:
            self._opened = open_row(self._listing, row)
        except PivotError as error:
            self.say(str(error))
        self.is_whole = False
        self._draw_place()
        self.draw_text()
        self.text.scroll_to_line(0)

    def _draw_place(self) -> None:
        mark = ", marked" if place_of(self._row) in self._listing.marks else ""
        self.draw_head(f"Rollout {self._listing.at + 1:,} of {len(self._listing):,} in the list{mark}", "")

    def _go_to(self, at: int) -> None:
        listing = self._listing
        if 0 <= at < len(listing) and at != listing.at:
            listing.at = at
            if (row := listing.picked()) is not None:
                self._open(row)

    def action_go(self, number: int) -> None:
        self._go_to(self._listing.at + number)

    def action_group(self, direction: int) -> None:
        self._go_to(self._listing.other_group(direction))

    def action_step(self, direction: int) -> None:
        wanted = self._listing.other_step(self._row.row.step, direction)
        if wanted is not None:
            self.dismiss(wanted)

    def action_mark(self) -> None:
        self._listing.toggle_mark(self._row)
        self._draw_place()

    def action_compare(self) -> None:
        compare(self, self._listing)

    def action_list_group(self) -> None:
        if self._row.row.group_name is None:
            self.say("This rollout is in no group.")
        else:
            self.dismiss(RolloutFilter(group_name=self._row.row.group_name))

    def action_list_prompt(self) -> None:
        if self._row.row.prompt_id is None:
            self.say("The dump does not name the prompt of this rollout.")
        else:
            self.dismiss(RolloutFilter(prompt_id=self._row.row.prompt_id))


class CompareScreen(TextScreen):
    """Two rollouts side by side, from the first turn in which they differ."""

    KEYS = "Tab turn  o whole  arrows, Space, b  Esc back"

    def __init__(self, first: ListedTexts, second: ListedTexts) -> None:
        super().__init__(lambda width, is_whole: comparison_lines(first, second, width, is_whole=is_whole))

    def on_mount(self) -> None:
        self.draw_head("Two rollouts", "")
        self.say("")


def compare(screen: ViewScreen, listing: RolloutListing) -> None:
    """Show the two marked rollouts, or say what is missing."""
    if len(listing.marks) < 2:
        screen.say("Mark two rollouts with x before comparing them with c.")
        return
    try:
        first, second = (open_row(listing, listing.index.find(place)) for place in listing.marks)
    except PivotError as error:
        screen.say(str(error))
    else:
        screen.app.push_screen(CompareScreen(first, second))


def open_row(listing: RolloutListing, row: ListedRollout) -> ListedTexts:
    """A rollout with its texts and its group.

    Raises:
        DataError: If the dump cannot be read, or was replaced since it was listed.
    """
    index = listing.index
    return ListedTexts(row, open_rollout(index, row), index.group(row.group_number))
