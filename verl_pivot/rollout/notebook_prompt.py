"""Functions, limits and what happened in a step -> the texts that a policy in a notebook reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter
from textwrap import indent

from verl_pivot.rollout.context import Trim
from verl_pivot.sandbox.host_functions import HostFunction
from verl_pivot.sandbox.lane.host_calls import signature_of
from verl_pivot.types import Json

_SYSTEM = """\
You solve a task step by step in a Python notebook, which keeps its variables from step to step. Each turn of yours is \
one step, in exactly this form:
<think>what you know, and what you do next</think><code>
Python for this step
</code>
The notebook runs the code, and you read what it printed, the value of its last line, and its error in <output>. Then \
you take the next step; there are {max_steps} at most. Calling submit_final_answer ends the task.

Functions that the code can call:

{functions}
"""

_NOTEPAD = """
The notebook has a Notepad, which you see whenever it changed:
notepad.add_todo(text)        # something to do; it gets a label such as T1
notepad.check_todo("T1")      # mark it as done
notepad.add_facts(text, ...)  # what you found out; each fact gets a label such as F1
notepad.write_draft(text)     # replaces the draft of the answer
notepad.remove("F1", ...)     # removes entries by their labels
"""

_WHAT_GOES = {
    Trim.HARD: "all earlier steps are removed, with all that you have read",
    Trim.OLDEST: "the oldest steps are removed, with what you read after them",
}
_WHAT_WENT = {
    Trim.HARD: "all earlier steps were removed, with all that you had read",
    Trim.OLDEST: "the oldest steps were removed, with what you had read after them",
}
_CONTEXT = "\nYou can read a limited number of tokens. When they are used up, {what}{kept}.\n"
_KEPT = "; variables stay in the notebook{notes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Steps and tokens that a policy has left."""

    num_steps: int
    num_tokens: int
    """Approximate number of tokens by which the context may grow before it is trimmed."""

    def shown(self) -> str:
        if self.num_steps == 1:
            return "This is your last step: call submit_final_answer in it."
        return f"Left: {self.num_steps} steps, and about {max(0, self.num_tokens)} tokens until steps are removed."


def system_prompt(functions: Sequence[HostFunction], *, max_steps: int, trim: Trim, has_notepad: bool) -> str:
    """The system prompt of the scaffold.

    Args:
        functions: Functions of the host that cells may call.
        max_steps: Most steps of a trajectory.
        trim: What is removed from a full context.
        has_notepad: Whether the notebook has a Notepad.
    """
    listed = _SYSTEM.format(max_steps=max_steps, functions="\n\n".join(map(_listed, functions)))
    kept = _KEPT.format(notes=", and the Notepad is shown again: note what you still need" if has_notepad else "")
    return f"{listed}{_NOTEPAD if has_notepad else ''}{_CONTEXT.format(what=_WHAT_GOES[trim], kept=kept)}".strip()


def after_step(output: str | None, notices: Sequence[str], notepad: str) -> str:
    """What the policy reads after a step, before the line on the steps and tokens that it has left.

    Args:
        output: Output of the cell; None if nothing was run.
        notices: Sentences on mistakes in the turn, or on a restart of the notebook.
        notepad: The Notepad, if it changed; "" if it did not.
    """
    shown = [] if output is None else [f"<output>\n{output or '(nothing)'}\n</output>"]
    return "\n".join([*shown, *notices, *([notepad] if notepad else [])])


def trimmed_task(task: str, trim: Trim, restart: str, notepad: str, left: Left | None) -> str:
    """The task at the beginning of a trimmed context.

    Args:
        task: The task.
        trim: What was removed.
        restart: Notice that the notebook was restarted; "" if it was not.
        notepad: The Notepad; "" without one.
        left: Steps and tokens that the policy has left; None if a later message says so.
    """
    variables = restart or "Variables are still in the notebook."
    notice = f"(The tokens were used up: {_WHAT_WENT[trim]}. {variables})"
    return "\n".join([task, "", notice, *([notepad] if notepad else []), *([left.shown()] if left else [])])


def restarted(*, has_notepad: bool) -> str:
    """Notice of a notebook whose interpreter was killed."""
    kept = "; the Notepad is as it was before this step" if has_notepad else ""
    return f"The notebook had to be restarted: all variables and files are gone{kept}."


def _listed(function: HostFunction) -> str:
    """A function as its `def` line, with the signature that it has in the session, and its docstring."""
    signature = signature_of(function.parameters)
    arguments = ", ".join(map(_argument, signature.parameters.values()))
    properties = function.parameters.get("properties")
    named = properties if isinstance(properties, dict) else {}
    about = [f"{name}: {text}" for name in signature.parameters if (text := _description(named.get(name)))]
    lines = "\n".join([function.description.strip(), *([""] if about else []), *about])
    docstring = indent(lines, "    ").strip()
    return f'def {function.name}({arguments}) -> str:\n    """{docstring}"""'


def _argument(parameter: Parameter) -> str:
    stars = "**" if parameter.kind is Parameter.VAR_KEYWORD else ""
    kind = "" if parameter.annotation is Parameter.empty else f": {parameter.annotation.__name__}"
    default = "" if parameter.default is Parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"


def _description(schema: Json) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else ""
