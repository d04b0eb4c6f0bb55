"""Name of a command that Ctrl-C stopped -> the line that says how to go on, and the exit code."""

import sys

_RESUMED = ("plan", "import", "filter", "profile", "select")
"""Commands that go on where they were stopped."""
_INTERRUPTED = 130


def stop(command: str | None) -> int:
    """Say what the same command does when it is run again; returns the exit code."""
    how = "goes on where it was" if command in _RESUMED else "begins anew"
    print(f"Stopped. The same command {how} when it is run again.", file=sys.stderr)
    return _INTERRUPTED
