"""Verifier `edit`: an editor call is right if it leaves the same files as the expert's call."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.data.json_values import equal, is_too_deep
from verl_pivot.off_loop import run_off_loop, size_of_message
from verl_pivot.types import Message, ToolCall, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers import edit_nemo_gym
from verl_pivot.verifiers.edit_commands import WritingCommand, apply_edit, has_same_words, parse_edit, plain_path
from verl_pivot.verifiers.edit_python import python_edit
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

MAX_CHARS = 1_000_000
"""Most characters of a file that is parsed; a longer file must equal the expert's."""


_MAX_LAST_LINE_ENDS = 4
"""Most characters by which the line ends after the last line of two equal texts may differ."""


class EditOptions(Options):
    """Options of the verifier `edit`."""

    mode: Literal["patch", "levels"] = "patch"
    """
    patch: both edits are applied to the row's `files`. They are the same edit if they give the same texts, or the same
    Python program with the same comments where the expert edits nothing.
    levels: the score of NeMo Gym's swe_pivot, which reads no file, for comparison; see edit_nemo_gym.py.
    """
    files: dict[str, str] = Field(default_factory=dict)
    """{path: text before the call}, at least for the files that the expert edits."""
    level: Annotated[int, Field(ge=0, le=2)] = 0
    """What mode `levels` compares: 0 the tool (as in PivotRL for SWE), 1 also its target, 2 also its text."""
    is_continuous: bool = False
    """Whether level 2 of mode `levels` is graded by similarity."""


@register("edit", options=EditOptions)
class EditVerifier:
    """Compares the action's only call with the expert's.

    If the expert's call writes no file (view, undo_edit, other tools), the action must be the same call.
    """

    def __init__(self, options: EditOptions) -> None:
        self._options = options
        self._files = {plain_path(path): text for path, text in options.files.items()}
        self._size = sum(map(len, options.files.values()))

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        if len(turn.expert.tool_calls) != 1 or is_too_deep(turn.expert.tool_calls[0].arguments):
            return broken_expert("the expert's action is not exactly one call, or its arguments are nested too deeply")
        if not equal(turn.expert.tool_calls[0].arguments, turn.expert.tool_calls[0].arguments):
            return broken_expert("the expert's arguments contain NaN, which does not equal itself")
        expert = turn.expert.tool_calls[0]
        if len(action.tool_calls) != 1:
            reason = Reason.WRONG_NUMBER_OF_CALLS if action.tool_calls else Reason.MESSAGE_INSTEAD_OF_CALL
            return refuse(reason, f"{len(action.tool_calls)} calls")
        call = action.tool_calls[0]
        if is_too_deep(call.arguments):
            return refuse(Reason.TOO_DEEP, call.name)
        if self._options.mode == "levels":
            return self._by_levels(call, expert)
        size = self._size + size_of_message(action) + size_of_message(turn.expert)
        return await run_off_loop(size, self._by_patch, call, expert)

    def _by_levels(self, call: ToolCall, expert: ToolCall) -> Verdict:
        options = self._options
        score = edit_nemo_gym.score(call, expert, level=options.level, is_continuous=options.is_continuous)
        return graded(score)

    def _by_patch(self, call: ToolCall, expert: ToolCall) -> Verdict:
        if call.name != expert.name:
            return refuse(Reason.WRONG_TOOL, call.name)
        expert_edit, edit = parse_edit(expert.arguments), parse_edit(call.arguments)
        if not isinstance(expert_edit, WritingCommand):
            is_same = equal(call.arguments, expert.arguments) or (expert_edit is not None and edit == expert_edit)
            return Verdict.accept() if is_same else refuse(Reason.WRONG_VALUE, str(call.arguments)[:200])
        expert_texts, problem = apply_edit(expert_edit, self._files)
        if expert_texts is None:
            return broken_expert(f"the expert's edit cannot be applied: {problem}")
        if all(text == self._files.get(path) for path, text in expert_texts.items()):
            return broken_expert("the expert's edit changes nothing; every edit without effect would be accepted")
        if edit is None or not has_same_words(call.arguments, expert.arguments):
            return refuse(Reason.WRONG_TYPE, "the editor does not take these arguments")
        if not isinstance(edit, WritingCommand):
            return refuse(Reason.WRONG_VALUE, f"{edit.command} {edit.path}"[:200])
        return self._compare(edit, expert_texts)

    def _compare(self, edit: WritingCommand, expert_texts: Mapping[str, str | None]) -> Verdict:
        texts, problem = apply_edit(edit, self._files)
        if texts is None:
            return refuse(Reason.RUNTIME_ERROR, problem or "")
        if texts.keys() != expert_texts.keys():
            return refuse(Reason.WRONG_VALUE, f"edits {', '.join(sorted(texts))}"[:200])
        for path, expert_text in expert_texts.items():
            text = texts[path]
            if text is not None and len(text) > MAX_CHARS and text != expert_text:
                return refuse(Reason.TOO_LONG, f"{len(text)} characters")
            if not _is_same_file(path, self._files.get(path, ""), expert_text, text):
                return refuse(Reason.WRONG_OUTPUT, f"{path} differs from the file after the expert's edit")
        return Verdict.accept()


def _is_same_file(path: str, before: str, expert: str | None, text: str | None) -> bool:
    """Whether two edits of a file leave the same text, up to line ends after the last line, or the same program."""
    if expert is None or text is None:
        return expert is text
    if text.rstrip("\r\n") == expert.rstrip("\r\n"):
        return abs(len(text) - len(expert)) <= _MAX_LAST_LINE_ENDS
    edit = python_edit(before, expert) if path.endswith(".py") else None
    return edit is not None and edit.changes_program and edit.is_made_by(text)
