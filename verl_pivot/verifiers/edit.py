"""Verifier `edit`: a call of an editor is right if it leaves the file as the expert's call does."""

from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.data.json_values import equal, is_too_deep
from verl_pivot.types import Message, ToolCall, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers import edit_nemo_gym
from verl_pivot.verifiers.edit_commands import EditCommand, WritingCommand, apply_edit, parse_edit, same_file
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

MAX_CHARS = 1_000_000
"""Characters of the longest file that is parsed; a longer one must equal the expert's."""


class EditOptions(Options):
    """Options of the verifier `edit`."""

    mode: Literal["patch", "levels"] = "patch"
    """
    patch: both edits are applied to the row's `files`; the same text, or the same Python, is the same edit.
    levels: NeMo Gym's swe_pivot, which looks at no file, for comparison; see edit_nemo_gym.py.
    """
    files: dict[str, str] = Field(default_factory=dict)
    """Text before the call by path, at least of the file that the expert edits."""
    level: Annotated[int, Field(ge=0, le=2)] = 0
    """What mode `levels` compares: 0 the tool (as in PivotRL for SWE), 1 also its target, 2 also its text."""
    is_continuous: bool = False
    """Whether level 2 of mode `levels` is graded by similarity."""


@register("edit", options=EditOptions)
class EditVerifier:
    """Compares the action's only call with the expert's.

    A call that changes no file (view, undo_edit, other tools) must be the same call.
    """

    def __init__(self, options: EditOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        if len(turn.expert.tool_calls) != 1 or is_too_deep(turn.expert.tool_calls[0].arguments):
            return broken_expert("the expert's action is not one call")
        if not equal(turn.expert.tool_calls[0].arguments, turn.expert.tool_calls[0].arguments):
            return broken_expert("the expert's arguments hold NaN, which equals nothing")
        expert = turn.expert.tool_calls[0]
        if len(action.tool_calls) != 1:
            reason = Reason.WRONG_NUMBER_OF_CALLS if action.tool_calls else Reason.MESSAGE_INSTEAD_OF_CALL
            return refuse(reason, f"{len(action.tool_calls)} calls")
        call = action.tool_calls[0]
        if is_too_deep(call.arguments):
            return refuse(Reason.TOO_DEEP, call.name)
        if self._options.mode == "levels":
            return self._by_levels(call, expert)
        return self._by_patch(call, expert)

    def _by_levels(self, call: ToolCall, expert: ToolCall) -> Verdict:
        options = self._options
        score = edit_nemo_gym.score(call, expert, level=options.level, is_continuous=options.is_continuous)
        return graded(score)

    def _by_patch(self, call: ToolCall, expert: ToolCall) -> Verdict:
        if call.name != expert.name:
            return refuse(Reason.WRONG_TOOL, call.name)
        expert_edit = parse_edit(expert.arguments)
        if not isinstance(expert_edit, WritingCommand):
            is_same = equal(call.arguments, expert.arguments)
            return Verdict.accept() if is_same else refuse(Reason.WRONG_VALUE, str(call.arguments)[:200])
        edited = apply_edit(expert_edit, self._options.files)
        if edited.text is None:
            return broken_expert(f"the expert's edit cannot be applied: {edited.problem}")
        if edited.text == self._options.files.get(expert_edit.path):
            return broken_expert("the expert's edit changes nothing; every other edit that changes nothing equals it")
        return self._compare(parse_edit(call.arguments), expert_edit.path, edited.text)

    def _compare(self, edit: EditCommand | None, path: str, expert_text: str) -> Verdict:
        if edit is None:
            return refuse(Reason.WRONG_TYPE, "no editor would take these arguments")
        if not isinstance(edit, WritingCommand) or edit.path != path:
            return refuse(Reason.WRONG_VALUE, f"{edit.command} {edit.path}"[:200])
        edited = apply_edit(edit, self._options.files)
        if edited.text is None:
            return refuse(Reason.RUNTIME_ERROR, edited.problem or "")
        if len(edited.text) > MAX_CHARS and edited.text != expert_text:
            return refuse(Reason.TOO_LONG, f"{len(edited.text)} characters")
        # An expert that changes only comments or spaces leaves the same syntax tree; there the texts must be equal.
        is_comment = same_file(path, self._options.files.get(path, ""), expert_text)
        is_same_text = edited.text.rstrip() == expert_text.rstrip()
        is_same = is_same_text if is_comment else same_file(path, edited.text, expert_text)
        return (
            Verdict.accept()
            if is_same
            else refuse(Reason.WRONG_OUTPUT, "the file differs from the one that the expert leaves")
        )
