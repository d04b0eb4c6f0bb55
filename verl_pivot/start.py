"""Words of a command line -> the command; Ctrl-C gives one line and exit code 130, also while modules are imported."""

import sys

from verl_pivot.interrupts import ended_by_interrupt, stop


def main() -> None:
    """Run the command of this process's arguments."""
    command = next(iter(sys.argv[1:]), None)
    with ended_by_interrupt(command):
        from verl_pivot.cli import app
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(stop(command))
