"""What a finished command prints: the next command as it can be typed, and what message turns are paid."""

import shlex
from collections.abc import Sequence


def next_command(words: Sequence[str], program: Sequence[str] = ("verl-pivot",)) -> str:
    """A command line that works as it stands.

    Args:
        words: Words after the program, which may hold anything.
        program: Words that start the program.
    """
    return shlex.join([*program, *words])


def message_turns_remark(num_messages: int, num_turns: int) -> str:
    """Sentence about turns at which the expert writes a message and the verifier reads none."""
    return (
        f"{num_messages} of {num_turns} turns are messages: any text is accepted; judge them (message_judge in "
        "docs/verifiers.md), or leave them out with `verl-pivot profile --turns calls`."
    )
