"""`python -m examples.mcp_rl --help`; Ctrl-C prints one line and exits with code 130, even during imports."""

from verl_pivot.interrupts import ended_by_interrupt

if __name__ == "__main__":
    with ended_by_interrupt("mcp_rl"):
        from examples.mcp_rl.run import start
    start()
