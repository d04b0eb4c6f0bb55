"""Words of a command line -> the command; Ctrl-C gives one line and exit code 130, also while modules are imported."""

import sys

from verl_pivot.interrupts import stop


def main() -> None:
    """Run the command of this process's arguments."""
    try:
        from verl_pivot.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(stop(next(iter(sys.argv[1:]), None)))
