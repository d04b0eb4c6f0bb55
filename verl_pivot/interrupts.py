"""Name of a command that Ctrl-C stopped -> the line that says how to go on, and the exit code."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RESUMED = (
    "plan", "import", "profile", "select", "synthesize", "process label",
    "quickstart", "grpo_roc", "tool_rollout", "synthesis", "synthesis_sft", "study", "l0", "ppr", "search", "zerotir",
    "mcp_rl", "tree_search", "turn_cost", "blackjack", "rubrics", "render", "web",
)  # fmt: skip
"""Commands and examples that resume where they were stopped."""
_RESUMED_WITH = {"route simulate": "--out", "process bench": "--cache", "environment-rows": "miniwob"}
"""{command: word of its command line, up to a `=` or `:`, with which alone it resumes}"""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C stopped."""


def stop(command: str | None) -> int:
    """Print whether the same command resumes when it is run again; returns the exit code."""
    names = {command, " ".join(sys.argv[1:3])}  # a command in a group has two words
    words = {re.split("[=:]", word)[0] for word in sys.argv}
    is_resumed = bool(names & {*_RESUMED}) or any(_RESUMED_WITH.get(str(name)) in words for name in names)
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
