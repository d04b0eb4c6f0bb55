"""`python -m examples.synthesis_sft --help`; Ctrl-C gives one line and exit code 130 from the first import on."""

from verl_pivot.interrupts import ended_by_interrupt

if __name__ == "__main__":
    with ended_by_interrupt("synthesis_sft"):
        from examples.synthesis_sft.run import start

        start()
