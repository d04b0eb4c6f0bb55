"""Result of a sandbox run -> the text that the policy reads, in the form of rStar2-Agent's tools."""

import re
from signal import Signals

from verl_pivot.data.json_values import equal_texts
from verl_pivot.sandbox.execution import Result, Status

_REASONS = {
    Status.TIMEOUT: "time-out error, it did not end within its time limit",
    Status.CPU_LIMIT: "time-out error, it used up its processor time",
    Status.MEMORY_LIMIT: "memory error, it used more memory than allowed",
    Status.OUTPUT_LIMIT: "output error, it wrote more than allowed",
    Status.COMPILE_ERROR: "compile error",
    Status.COMPILE_TIMEOUT: "compile time-out error, the compiler did not end within its time limit",
    Status.SESSION_KILLED: "session error, the interpreter was restarted and all variables are lost",
}

_TOLD_SECONDS = re.compile(r"\nexecution time: \d+\.\d\ds\Z")


def without_told_seconds(text: str) -> str:
    """A response without its execution time, so that equal programs give equal texts."""
    return _TOLD_SECONDS.sub("", text)


def is_same_result(found: str, recorded: str) -> bool:
    """Whether a repeated call gives its recorded result: the same text but for its execution time, or the same JSON."""
    return equal_texts(without_told_seconds(found), without_told_seconds(recorded))


def render_tool_response(result: Result, *, max_characters: int = 4096, with_time: bool = True) -> str:
    """Write a result as rStar2-Agent's tools do (arXiv:2508.20722, section 2.1, and its released code).

    There are four kinds of response, which have a line for each part that is not empty:

    | stdout           | Tool call success, stdout: TEXT, execution time: 0.05s                            |
    | displayed value  | the same; TEXT ends with the repr of the last expression, as a notebook shows it  |
    | error, traceback | Tool call failure, reason: execution error, exit code 1, stdout, stderr: TRACEBACK |
    | time-out         | Tool call failure, reason: time-out error, it did not end within its time limit   |

    Every reason contains the word "error", by which the released code of GRPO-RoC counts failed calls. Differs from
    that code, whose reason is empty for a program that fails and lacks the word for a time-out of its service.

    Args:
        max_characters: Most characters of stdout, stderr and the compiler's output each; a note replaces the middle.
        with_time: Whether the execution time is shown; without it equal programs give equal texts.
    """
    value = _cut(result.value or "", 0, max_characters)
    stdout = _cut(result.stdout, result.stdout_bytes if result.stdout_truncated else 0, max_characters)
    stderr = _cut(result.stderr, result.stderr_bytes if result.stderr_truncated else 0, max_characters)
    failed = result.status is not Status.OK
    parts = (
        ("reason", failure_reason(result) if failed else ""),
        ("compiler", _cut(result.compile_output, 0, max_characters) if failed else ""),
        ("stdout", "\n".join(text for text in (stdout, value) if text)),
        ("stderr", stderr),
        ("execution time", f"{result.timing.wall_seconds:.2f}s" if with_time else ""),
    )
    lines = [f"{name}: {text}" for name, text in parts if text]
    return "\n".join(["Tool call failure" if failed else "Tool call success", *lines])


def failure_reason(result: Result) -> str:
    """Why a result is a failure, in words that contain "error"."""
    if result.status is Status.SIGNALED and result.signal is not None:
        return f"execution error, ended by signal {_signal_name(result.signal)}"
    if result.status is Status.ERROR and result.exit_code is not None:
        return f"execution error, exit code {result.exit_code}"
    reason = _REASONS.get(result.status, "execution error")
    return f"{reason}: {result.error}" if result.status is Status.SESSION_KILLED and result.error else reason


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:  # a real-time signal between the two that have names
        return str(number)


def _cut(text: str, num_bytes: int, max_characters: int) -> str:
    """`text` without its last newline, shortened in its middle.

    Args:
        text: Output of a program.
        num_bytes: Bytes that the program wrote, if the sandbox cut off a part; 0 if `text` is all of it.
        max_characters: Most characters of `text` that stay.
    """
    text = shortened(text.removesuffix("\n"), max_characters)
    return f"{text}\n... [cut off: {num_bytes} bytes were written]" if num_bytes else text


def shortened(text: str, max_characters: int) -> str:
    """`text` with at most that many characters of its own; a note replaces the middle of a longer one."""
    if len(text) <= max_characters:
        return text
    head = max_characters // 2
    tail = max_characters - head
    left_out = len(text) - max_characters
    return f"{text[:head]}\n... [{left_out} characters left out] ...\n{text[len(text) - tail :]}"
