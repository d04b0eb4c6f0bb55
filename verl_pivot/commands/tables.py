"""Tables that commands print when they have finished, and text of models that is safe to print."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 160
"""Characters in a line of a table in a file or a pipe, where rich would take 80."""


def table_console() -> "Console":
    """Console for tables: as wide as the terminal or as COLUMNS says, and 160 characters in a file or a pipe.

    Text is printed as it is, since it may come from data: `[red]` is no style, and `:smile:` no picture.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    is_as_wide = console.is_terminal or "COLUMNS" in os.environ
    return console if is_as_wide else Console(width=_WIDTH_OF_FILES, markup=False, emoji=False)


def message_console() -> "Console":
    """Console for messages and progress on stderr, which prints text as it is."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)


def counts_table(title: str) -> "Table":
    """An empty table for rows of (result, count, note)."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("result", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("note", overflow="fold")
    return table


def printable(text: str) -> str:
    """The text with an escape such as `\\x1b` for each character that would act on the terminal or has no encoding."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
