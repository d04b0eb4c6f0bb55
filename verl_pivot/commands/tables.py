"""The table of counts that commands print at their end."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def counts_table(title: str) -> "Table":
    """An empty table for rows of (what, count, note)."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("what became of them", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("where, or why", overflow="fold")
    return table
