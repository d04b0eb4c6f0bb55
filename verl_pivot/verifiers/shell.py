"""Verifier `shell`: a command is right if it does the same as the expert's, by its form, its effect or its spelling."""

from typing import Annotated, Literal

from pydantic import Field
from rapidfuzz import fuzz

from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.extraction import extract_program
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.shell_effects import ShellEffects
from verl_pivot.verifiers.shell_lines import compare_lines
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse


class ShellOptions(Options):
    """Options of the verifier `shell`."""

    argument: ToolArgument | None = None
    """Argument that holds the command, as "tool.argument"; None for the last code block of the text."""
    mode: Literal["form", "execution", "similarity"] = "form"
    """
    form: equal except for blanks, quotes, comments and, in common commands, the order of flags; see shell_forms.py. If
    the texts of the two commands differ, the sandbox also checks the syntax of the action's command by `bash -n`.
    execution: each command runs in its own sandbox, after `setup`; output, exit code and files must be the same. See
    shell_effects.py.
    similarity: edit similarity of at least `threshold`, as published for the terminal domain, for comparison; accepts
    `rm -r build` for `rm -r built`.
    """
    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.95
    """Smallest similarity at which mode `similarity` accepts a command."""
    setup: str = ""
    """Bash script that makes the folder in which both commands start, in mode `execution`."""
    num_perturbed: Annotated[int, Field(ge=0, le=16)] = 2
    """Number of altered copies of that folder, in mode `execution`. Lines of their text files are missing, doubled or
    exchanged, so that a command with the expert's result written into it fails."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Time limit in mode `execution`: average seconds for the command per folder, and CPU seconds of each process."""


@register("shell", options=ShellOptions)
class ShellVerifier:
    """Compares the action's command with the expert's.

    Source of mode `similarity`: PivotRL (arXiv:2603.21383, appendix A.2) and NeMo Gym's terminal environments.
    """

    def __init__(self, options: ShellOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        expert, command = (extract_program(each, options.argument) for each in (turn.expert, action))
        if isinstance(expert, Verdict):
            return broken_expert("the expert's action holds no command")
        if isinstance(command, Verdict):
            return command
        if options.mode == "similarity":
            return _by_similarity(command, expert, options.threshold)
        if options.mode == "execution":
            effects = ShellEffects(options.setup, options.num_perturbed, options.wall_seconds)
            return await effects.compare(command, expert)
        return await compare_lines(command, expert)


def _by_similarity(command: str, expert: str, threshold: float) -> Verdict:
    texts = (" ".join(each.split()) for each in (command, expert))
    similarity = fuzz.ratio(*texts, score_cutoff=100.0 * threshold) / 100.0  # 0 below the threshold, found early
    if similarity >= threshold:
        return Verdict.accept(detail=f"similarity {similarity:.3f}")
    return refuse(Reason.WRONG_VALUE, f"similarity below {threshold}")
