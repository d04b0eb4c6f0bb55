"""Name of a command that Ctrl-C stopped -> the line that says how to go on, and the exit code."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RESUMED = (
    "plan", "import", "filter", "profile", "select", "synthesize",
    "quickstart", "grpo_roc", "tool_rollout", "synthesis", "synthesis_sft", "study", "l0", "ppr", "search", "zerotir",
    "mcp_rl", "tree_search", "turn_cost", "blackjack", "rubrics", "render", "web",
)  # fmt: skip
"""Commands and examples that resume where they were stopped."""
_RESUMED_WITH_OUT = ("route",)
"""Commands that resume only if they are given `--out`."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C stopped."""


def stop(command: str | None) -> int:
    """Print whether the same command resumes when it is run again; returns the exit code."""
    has_out = any(argument.partition("=")[0] == "--out" for argument in sys.argv)
    is_resumed = command in _RESUMED or (has_out and command in _RESUMED_WITH_OUT)
    how = "continues where it stopped" if is_resumed else "begins again from the start"
    print(f"Stopped. The same command {how} when it is run again.", file=sys.stderr, flush=True)
    return INTERRUPTED


@contextmanager
def ended_by_interrupt(command: str | None) -> Iterator[None]:
    """End this process at once if Ctrl-C is pressed while it imports: libraries may swallow a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a shell's background job ignores Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(stop(command)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
