"""Words of a command line -> the command; Ctrl-C gives one line and exit code 130, also while modules are imported."""

import sys

_RESUMED = ("plan", "import", "filter", "profile", "select")
"""Commands that go on where they were stopped."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Run the command of this process's arguments."""
    try:
        from verl_pivot.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(stop(next(iter(sys.argv[1:]), None)))


def stop(command: str | None) -> int:
    """Say what the same command does when it is run again; returns the exit code."""
    how = "goes on where it was" if command in _RESUMED else "begins anew"
    print(f"Stopped. The same command {how} when it is run again.", file=sys.stderr)
    return INTERRUPTED


if __name__ == "__main__":
    main()
