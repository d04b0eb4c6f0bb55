"""`python -m examples.quickstart --help`; Ctrl-C ends it with all of its processes, even during imports."""

from examples.entry import run_example

if __name__ == "__main__":
    run_example("quickstart")
