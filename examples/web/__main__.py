"""`python -m examples.web --help`; Ctrl-C gives one line and exit code 130 from the first import on."""

from verl_pivot.interrupts import ended_by_interrupt

if __name__ == "__main__":
    with ended_by_interrupt("web"):
        from examples.web.run import start
    start()
