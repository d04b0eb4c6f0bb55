"""Verifier `shell`: a command is right if it does what the expert's does, by its form, its effect or its spelling."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from rapidfuzz import fuzz

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import Limits, Program, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.extraction import extract_program
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed
from verl_pivot.verifiers.shell_lines import compare_lines
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

_RUNNER = (Path(__file__).parent / "runners" / "run_command.sh").read_text()
_IDLE_COMMAND = ":"
_OUTPUT_BYTES = 1024**2
_MAX_CACHED_COMMANDS = 1024


class ShellOptions(Options):
    """Options of the verifier `shell`."""

    argument: ToolArgument | None = None
    """Argument that holds the command, as "tool.argument"; None for the last code block of the text."""
    mode: Literal["form", "execution", "similarity"] = "form"
    """
    form: equal but for blanks, quotes, comments and, in common commands, the order of flags; see shell_forms.py. A
    command that is equal with other letters is checked by `bash -n` in the sandbox.
    execution: both run in sandboxes of their own, after `setup`; the same output, exit code and files.
    similarity: edit similarity of at least `threshold`, as published for the terminal domain, for comparison; accepts
    `rm -r build` for `rm -r built`.
    """
    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.95
    """Similarity from which mode `similarity` accepts a command."""
    setup: str = ""
    """Bash script that makes the folder in which both commands begin, in mode `execution`."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds for one command with its setup, in mode `execution`."""


_expert_effects: AskedOnce[tuple[ShellOptions, str], str | Verdict] = AskedOnce(_MAX_CACHED_COMMANDS)


@register("shell", options=ShellOptions)
class ShellVerifier:
    """Compares the action's command with the expert's.

    Source of mode `similarity`: PivotRL (arXiv:2603.21383, appendix A.2) and NeMo Gym's terminal environments.
    """

    def __init__(self, options: ShellOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert, command = (extract_program(each, self._options.argument) for each in (turn.expert, action))
        if isinstance(expert, Verdict):
            return broken_expert("the expert's action holds no command")
        if isinstance(command, Verdict):
            return command
        if self._options.mode == "similarity":
            return _by_similarity(command, expert, self._options.threshold)
        if self._options.mode == "execution":
            return await self._by_execution(command, expert)
        return await compare_lines(command, expert)

    async def _by_execution(self, command: str, expert: str) -> Verdict:
        try:
            effect = await _expert_effects.get((self._options, expert), lambda: self._run_expert(expert))
            if isinstance(effect, Verdict):
                return effect
            (result,) = await execute([self._program(command)])
        except SandboxRequestError as error:  # such as a row whose files are too large to send
            return broken_expert(str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        if result.status is not Status.OK:
            return refuse(REASONS[result.status], result.stderr[-300:])
        if result.stdout != effect:
            return refuse(Reason.WRONG_OUTPUT, result.stdout[:300])
        return Verdict.accept()

    async def _run_expert(self, expert: str) -> str | Verdict:
        """Effect of the expert's command as the runner prints it, or the verdict that it has none to compare with."""
        done, idle = await execute([self._program(expert), self._program(_IDLE_COMMAND)])
        if done.status is not Status.OK or done.stdout_truncated:
            return broken_expert(f"the expert's command: {done.status}: {done.stderr[-300:]}")
        if done.stdout == idle.stdout:
            return broken_expert("the expert's command prints nothing and changes nothing")
        return done.stdout

    def _program(self, command: str) -> Program:
        seconds = self._options.wall_seconds
        return Program(
            code=_RUNNER,
            language="bash",
            files={"setup.sh": self._options.setup.encode(), "command.sh": command.encode()},
            limits=Limits(wall_seconds=seconds, cpu_seconds=max(1, round(seconds)), output_bytes=_OUTPUT_BYTES),
        )


def _by_similarity(command: str, expert: str, threshold: float) -> Verdict:
    texts = (" ".join(each.split()) for each in (command, expert))
    similarity = fuzz.ratio(*texts, score_cutoff=100.0 * threshold) / 100.0  # 0 below the threshold, found early
    if similarity >= threshold:
        return Verdict.accept(detail=f"similarity {similarity:.3f}")
    return refuse(Reason.WRONG_VALUE, f"similarity below {threshold}")
