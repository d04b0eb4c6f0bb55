"""Display of `verl-pivot profile`: its progress while it runs, and a table of the finished profile."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from verl_pivot.commands.next_steps import message_turns_remark
from verl_pivot.commands.tables import table_console
from verl_pivot.profiling.job import TurnCounts
from verl_pivot.profiling.profiler import Totals
from verl_pivot.profiling.running import FinishedProfile
from verl_pivot.profiling.summary import TurnOutcome

_LOG_SECONDS = 30.0
"""Seconds between two lines of progress in a log file."""
_NUM_REASONS = 5
"""Number of the most frequent reasons for lost rewards that the table shows."""


@contextmanager
def turn_progress(counts: TurnCounts, totals: Totals, console: Console) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal, or a line every 30 seconds in a log file; yields a function to call after each turn."""
    bar = Progress(
        *(TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")),
        *(TextColumn("left:"), TimeRemainingColumn()),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=counts.num_turns, completed=counts.num_turns - counts.num_left)
    begin = logged_at = time.monotonic()
    if counts.num_messages:
        remark = message_turns_remark(counts.num_messages, counts.num_turns)
        console.print(remark, highlight=False, soft_wrap=True)

    def on_turn() -> None:
        nonlocal logged_at
        now = time.monotonic()
        turns_per_second, text = totals.num_turns / (now - begin), rates(totals, now - begin)
        bar.update(task, advance=1, description=text)
        if bar.disable and now - logged_at > _LOG_SECONDS:
            logged_at = now
            seconds_left = (counts.num_left - totals.num_turns) / turns_per_second
            console.print(f"{totals.num_turns} of {counts.num_left} turns, {text}, {seconds_left:.0f} s left")

    with bar:
        yield on_turn


def rates(totals: Totals, seconds: float) -> str:
    """Turns and sampled tokens per second."""
    return f"{totals.num_turns / seconds:.1f} turns/s, {totals.num_tokens / seconds:.0f} tokens/s"


def print_summary(finished: FinishedProfile, totals: Totals, *, out: Path) -> None:
    """Print the outcomes of the whole profile, and the speed of this run."""
    summary = finished.summary
    table = Table(title=f"Profile {out}", show_header=False)
    table.add_row("turns", str(summary.num_turns))
    for outcome in TurnOutcome:
        num_turns = summary.num_by_outcome[outcome]
        table.add_row(f"  {outcome.value}", f"{num_turns} ({num_turns / max(summary.num_turns, 1):.1%})")
    table.add_row("mean reward", f"{summary.reward.mean:.4f} +- {summary.reward.standard_error:.4f} (standard error)")
    for reason, num_samples in summary.reasons[:_NUM_REASONS]:
        table.add_row(f"  {reason}", f"{num_samples} samples")
    if summary.num_saved:
        share = summary.num_saved / (summary.num_saved + summary.num_samples)
        table.add_row("saved by early stopping", f"{summary.num_saved} samples ({share:.1%})")
    if totals.num_turns:
        table.add_row("speed of this run", rates(totals, finished.seconds))
    if totals.num_cached_tokens:
        table.add_row("prefix cache", f"{totals.num_cached_tokens / totals.num_prompt_tokens:.1%} of prompt tokens")
    console = table_console()
    console.print(table)
