"""Two lines for bash -> a verdict: they must have the same form, and bash must accept the line."""

from functools import lru_cache
from typing import NamedTuple

from verl_pivot.errors import SandboxError
from verl_pivot.off_loop import run_off_loop
from verl_pivot.sandbox.execution import Program, Status
from verl_pivot.types import Verdict
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.sandboxed import execute, sandbox_failed
from verl_pivot.verifiers.shell_forms import Form, form_of
from verl_pivot.verifiers.verdicts import Reason, refuse

_FILE = "line.sh"
_SYNTAX_ERROR = 2
"""Exit code of bash for a line with a syntax error."""
_checked_lines: AskedOnce[str, Verdict] = AskedOnce(4096)


async def compare_lines(line: str, expert: str) -> Verdict:
    """Compare two lines by their forms; if the texts differ, bash must also accept the syntax of the line.

    A line with a quote that is never closed has no form; if the expert's is such a line, only the same text is right.
    """
    if line.strip("\n") == expert.strip("\n") and not line.rstrip("\n").endswith("\\"):
        return Verdict.accept()
    form, expert_form = await run_off_loop(len(line) + len(expert), _forms, line, expert)
    if form is None:
        return refuse(Reason.MALFORMED_COMMAND, line[:200])
    if form != expert_form:
        return refuse(Reason.WRONG_VALUE, line[:200])
    try:
        return await _checked_lines.get(line, lambda: _checked(line))
    except SandboxError as error:
        return sandbox_failed(error)


class _Forms(NamedTuple):
    given: Form | None
    expert: Form | None


def _forms(line: str, expert: str) -> _Forms:
    return _Forms(form_of(line), _expert_form(expert))


@lru_cache(maxsize=1024)
def _expert_form(expert: str) -> Form | None:
    return form_of(expert)


async def _checked(line: str) -> Verdict:
    """Whether bash accepts the syntax of a line, which `bash -n` reads without executing it.

    Raises:
        SandboxError: If bash could not be run.
    """
    (result,) = await execute([Program(code=f"bash -n {_FILE}", language="bash", files={_FILE: line.encode()})])
    match result.status:
        case Status.OK:
            return Verdict.accept()
        case Status.ERROR if result.exit_code == _SYNTAX_ERROR:
            return refuse(Reason.MALFORMED_COMMAND, result.stderr[-300:])
        case _:  # raised, so that nothing is cached and bash is asked again
            raise SandboxError(f"bash -n: {result.status} {result.exit_code}: {result.stderr[-300:]}")
