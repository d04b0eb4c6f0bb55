"""Progress of a command: a bar on a terminal, a line every 30 seconds in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verl_pivot.commands.tables import message_console

_LOG_SECONDS = 30.0
"""Seconds between two lines of progress in a log file."""


@contextmanager
def progress_bar(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr; yields the function to call with a number of finished things.

    Args:
        doing: Name of the things that are counted, such as "rows".
        total: Number of all things; None if it is not known before the end.
    """
    console = message_console()
    bar = Progress(
        *(TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")),
        *(TextColumn("left:"), TimeRemainingColumn()),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=total)
    num_done, begin = 0, time.monotonic()
    logged_at = begin

    def on_done(count: int) -> None:
        nonlocal num_done, logged_at
        num_done += count
        now = time.monotonic()
        rate = f"{num_done / max(now - begin, 1e-9):.0f}/s"
        bar.update(task, advance=count, description=rate)
        if bar.disable and now - logged_at > _LOG_SECONDS:
            logged_at = now
            console.print(f"{doing}: {num_done}{'' if total is None else f' of {total}'}, {rate}", highlight=False)

    with bar:
        yield on_done
