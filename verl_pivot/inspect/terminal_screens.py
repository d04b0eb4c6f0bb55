"""Screens of the terminal's views: a frame of head, body and message line, a question, and the list of keys."""

from collections.abc import Sequence
from typing import ClassVar

from verl_pivot.extras import extra
from verl_pivot.inspect.filters import RolloutFilter
from verl_pivot.inspect.rollout_lines import ShownLine
from verl_pivot.inspect.terminal_lines import ScrolledLines, TextLines
from verl_pivot.inspect.visible_text import on_one_line, wrapped

with extra("inspect"):
    from rich.text import Text
    from textual.app import ComposeResult
    from textual.binding import Binding, BindingType
    from textual.screen import ModalScreen, Screen
    from textual.widgets import Input, Static

KEYS: Sequence[tuple[str, str]] = (
    ("j, k", "next and previous rollout, in the list and in a rollout"),
    ("n, p", "next and previous group"),
    ("[, ]", "rollouts of the previous and next step"),
    ("Enter, Esc", "open the rollout, and back to the list"),
    ("x, c", "mark a rollout, and compare the two marked rollouts"),
    ("/", "search for words"),
    ("f", "filter, as name=value; the names are those of the page's address"),
    ("s", "sort by a column; - before its name puts the highest first"),
    ("Esc", "in the list: clear the filter"),
    ("Tab, Shift+Tab", "in a rollout: next and previous turn"),
    ("o", "in a rollout: show long texts in full, or shorten them again"),
    ("g, t", "in a rollout: list its group, or its prompt in all steps"),
    ("arrows, Space, b", "scroll by a line or a page; Home, End: to the start or end"),
    ("q", "quit"),
)


ALONG_THE_LIST: Sequence[BindingType] = (
    Binding("j", "go(1)", show=False),
    Binding("k", "go(-1)", show=False),
    Binding("n", "group(1)", show=False),
    Binding("p", "group(-1)", show=False),
    Binding("right_square_bracket", "step(1)", show=False),
    Binding("left_square_bracket", "step(-1)", show=False),
    Binding("x", "mark", show=False),
    Binding("c", "compare", show=False),
)
"""Keys that do the same in the list and in a rollout."""


class ViewScreen(Screen[RolloutFilter | None]):
    """A screen with a body that takes all lines but the first and the last ones; its result is a filter to list by."""

    CSS = """
    Static { height: auto; max-height: 3; }
    #columns { text-style: bold; }
    #columns, #keys { height: 1; }
    #message { color: $warning; }
    ScrolledLines { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; overflow-y: scroll; }
    """
    KEYS = ""
    """Keys that the last line names."""

    def __init__(self, body: ScrolledLines) -> None:
        super().__init__()
        self._body = body

    def compose(self) -> ComposeResult:
        yield Static(id="about")
        yield Static(id="columns")
        yield self._body
        yield Static(id="message")
        yield Static(Text(self.KEYS, style="dim", no_wrap=True), id="keys")

    def draw_head(self, about: str, columns: str) -> None:
        self.query_one("#about", Static).update(Text(about, no_wrap=True, overflow="ellipsis"))
        self.query_one("#columns", Static).update(Text(columns, no_wrap=True))
        self.query_one("#columns").display = bool(columns)

    def say(self, sentence: str) -> None:
        """Show a sentence below the body; an empty one takes it away."""
        message = self.query_one("#message", Static)
        message.update(Text(on_one_line(sentence)))
        message.display = bool(sentence)


class AskScreen(ModalScreen[str | None]):
    """A screen that asks for one line of text; its result is None if Esc was pressed."""

    CSS = """
    AskScreen { align: left bottom; }
    Static { background: $surface; }
    Input { border: none; height: 1; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, title: str, given: str) -> None:
        super().__init__()
        self._title, self._given = title, given
        self._shown = on_one_line(given)

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._title}; Enter applies, Esc cancels"))
        yield Input(self._shown, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(self._given if event.value == self._shown else event.value)


class HelpScreen(ViewScreen):
    """A screen with the list of all keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,enter", "app.pop_screen", show=False)]
    KEYS = "Esc back"

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        """Show keys, each with what it does."""
        self._keys = keys
        self._text = TextLines()
        super().__init__(self._text)

    def on_mount(self) -> None:
        self.draw_head("Keys", "")
        self.say("")
        lines = [line for keys, what in self._keys for line in wrapped(f"{keys:18}{what}", 78)]
        self._text.show_text([ShownLine(line) for line in lines])
