"""Result of a cell -> CellOutput: the text that a notebook shows, and how many of its outputs are errors."""

from typing import NamedTuple

from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.tools.tool_response import failure_reason


class CellOutput(NamedTuple):
    """What a cell shows: its printed text, its value and its error are one output each."""

    text: str
    num_outputs: int
    num_errors: int

    @property
    def ran(self) -> bool:
        """Whether the cell ran without an error."""
        return self.num_errors == 0


def cell_output(result: Result) -> CellOutput:
    """What the notebook shows of a cell: what it printed, its value, and its traceback or why it was ended."""
    traceback = "" if result.status is Status.SESSION_KILLED else result.error or ""
    reason = "" if result.status in (Status.OK, Status.ERROR) else failure_reason(result)
    stderr = result.stderr.removesuffix(traceback)
    printed = (_noted(result.stdout, result.stdout_truncated), _noted(stderr, result.stderr_truncated))
    outputs = [text.rstrip("\n") for text in (*printed, result.value or "") if text.strip()]
    errors = [text.rstrip("\n") for text in (traceback, reason) if text]
    hint = [_END_IN_A_STRING] if "SyntaxError: unterminated" in traceback else []
    num_errors = 1 if errors else 0
    return CellOutput("\n".join([*outputs, *errors, *hint]), len(outputs) + num_errors, num_errors)


_END_IN_A_STRING = 'A turn ends at its first </code>, within a string too: write "</" + "code>" there.'


def _noted(text: str, is_cut: bool) -> str:
    return f"{text}\n... [the rest was left out]" if is_cut else text
