"""Widgets of the terminal that draw only the visible lines, however many lines there are."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style

from verl_pivot.extras import extra
from verl_pivot.inspect.rollout_lines import ShownLine

with extra("inspect"):
    from textual.binding import Binding, BindingType
    from textual.geometry import Size
    from textual.scroll_view import ScrollView
    from textual.strip import Strip

DrawnLines = Callable[[int, int], Sequence[Sequence[tuple[str, str]]]]
"""(first line, number of lines) -> parts of each line, each a text with a style of rich."""


class ScrolledLines(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines that keys scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "go(1)", show=False),
        Binding("up", "go(-1)", show=False),
        Binding("space,pagedown", "go_page(1)", show=False),
        Binding("b,pageup", "go_page(-1)", show=False),
        Binding("home", "go_to(0)", show=False),
        Binding("end", "go_to(-1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.num_lines = 0
        self._draw: DrawnLines = lambda first, number: []
        self._drawn: dict[int, Sequence[tuple[str, str]]] = {}

    def show(self, num_lines: int, draw: DrawnLines) -> None:
        """Show other lines, at the same scroll position."""
        self.num_lines, self._draw = num_lines, draw
        self._drawn.clear()
        self.virtual_size = Size(1, num_lines)
        self.refresh()

    def on_resize(self) -> None:
        self._drawn.clear()

    def render_line(self, y: int) -> Strip:
        line = self.scroll_offset.y + y
        width = self.size.width
        if line >= self.num_lines:
            return Strip.blank(width, self.rich_style)
        if line not in self._drawn:
            height = self.size.height
            if len(self._drawn) > 50 * height:
                self._drawn.clear()
            for number, parts in enumerate(self._draw(line, height), start=line):
                self._drawn[number] = parts
        segments = [Segment(text, Style.parse(style)) for text, style in self._drawn.get(line, ())]
        strip = Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)
        return self.marked(line, strip)

    def marked(self, line: int, strip: Strip) -> Strip:
        """The line as it is shown; a subclass may mark some lines."""
        return strip

    def action_go(self, number: int) -> None:
        self.scroll_to_line(self.scroll_offset.y + number)

    def action_go_page(self, direction: int) -> None:
        self.action_go(direction * max(1, self.size.height - 1))

    def action_go_to(self, line: int) -> None:
        self.scroll_to_line(line if line >= 0 else self.num_lines)

    def scroll_to_line(self, line: int) -> None:
        """Make this line the first visible one, if there are enough lines below it."""
        self.scroll_to(y=max(0, min(line, self.num_lines - self.size.height)), animate=False, immediate=True)


class PickedLines(ScrolledLines):
    """Lines, one of which is picked and stays visible."""

    def __init__(self, on_pick: Callable[[int], object]) -> None:
        """Pick the first line.

        Args:
            on_pick: Called with the number of the line that is picked.
        """
        super().__init__()
        self.at = 0
        """Number of the picked line."""
        self._on_pick = on_pick

    def marked(self, line: int, strip: Strip) -> Strip:
        return strip.apply_style(Style(reverse=True)) if line == self.at else strip

    def action_go(self, number: int) -> None:
        self.pick(self.at + number)

    def action_go_to(self, line: int) -> None:
        self.pick(line if line >= 0 else self.num_lines - 1)

    def pick(self, line: int) -> None:
        """Pick a line, or the nearest one that there is."""
        self.at = max(0, min(line, self.num_lines - 1))
        first, height = self.scroll_offset.y, max(1, self.size.height)
        if not first <= self.at < first + height:
            self.scroll_to_line(self.at if self.at < first else self.at - height + 1)
        self._on_pick(self.at)
        self.refresh()


class TextLines(ScrolledLines):
    """Lines of a text with headings."""

    lines: Sequence[ShownLine] = ()

    def show_text(self, lines: Sequence[ShownLine]) -> None:
        self.lines = lines
        self.show(
            len(lines), lambda first, number: [[(each.text, each.style)] for each in lines[first : first + number]]
        )

    def go_to_heading(self, direction: int) -> None:
        """Scroll to the next heading (direction 1) or to the previous one (-1)."""
        now = self.scroll_offset.y
        found = [at for at, line in enumerate(self.lines) if line.is_heading and (at - now) * direction > 0]
        if found:
            self.scroll_to_line(found[0] if direction > 0 else found[-1])
        elif direction < 0:
            self.scroll_to_line(0)
