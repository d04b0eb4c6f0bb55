"""An action -> the program, query, command or answer that it holds, or a refusal if it holds none."""

import re
from typing import Literal, TypeAlias

from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.types import Message, Verdict
from verl_pivot.validation import ToolArgument
from verl_pivot.verifiers.code_blocks import code_blocks
from verl_pivot.verifiers.verdicts import Reason, refuse

MAX_CHARS = 256 * 1024
"""Most characters of a program that is executed."""
AnswerPlace: TypeAlias = Literal["answer_tag", "boxed", "all"]
r"""Where an answer stands in a text: in <answer>, in \boxed{}, or all of the text is the answer."""

OUTPUT_LANGUAGES = frozenset({"output", "text", "txt", "plaintext", "console", "stdout", "result"})
"""Languages of code blocks that show the output of a program, and no program."""
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON can spell, but no file can hold."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract_program(
    action: Message, argument: ToolArgument | None, *, ignored: frozenset[str] = frozenset()
) -> str | Verdict:
    """The program, query or command of an action, or a refusal.

    Args:
        action: Action of the policy or of the expert.
        argument: Argument of the action's only call that holds the program; None for the last fenced code block of the
            text. Earlier blocks are ignored, so that giving many programs gains nothing.
        ignored: Languages of code blocks that are ignored if there is any other block.
    """
    found = _last_code_block(action, ignored) if argument is None else extract_argument(action, argument)
    if isinstance(found, Verdict):
        return found
    if not found.strip():
        return refuse(Reason.NO_ANSWER)
    if len(found) > MAX_CHARS:
        return refuse(Reason.TOO_LONG, f"{len(found)} characters")
    return refuse(Reason.WRONG_TYPE, "the text contains a lone surrogate") if _LONE_SURROGATE.search(found) else found


def extract_argument(action: Message, argument: ToolArgument) -> str | Verdict:
    """The text of one argument of the action's only call, or a refusal."""
    if not action.tool_calls:
        return refuse(Reason.MESSAGE_INSTEAD_OF_CALL)
    call = action.tool_calls[0]
    if len(action.tool_calls) > 1:
        return refuse(Reason.WRONG_NUMBER_OF_CALLS)
    if call.name != argument.tool:
        return refuse(Reason.WRONG_TOOL)
    if argument.argument not in call.arguments:
        return refuse(Reason.MISSING_ARGUMENT)
    value = call.arguments[argument.argument]
    return value if isinstance(value, str) else refuse(Reason.WRONG_TYPE, argument.argument)


def extract_answer(text: str, place: AnswerPlace) -> str | Verdict:
    """The answer that a text gives at `place`, or a refusal; several different answers count as none."""
    answers = extract_answers(text, place)
    if len(answers) > 1:
        return refuse(Reason.SEVERAL_ANSWERS)
    return answers[0] if answers else refuse(Reason.NO_ANSWER)


def extract_answers(text: str, place: AnswerPlace) -> tuple[str, ...]:
    """The different answers that a text gives at `place`, in their order; empty if every answer is empty."""
    found = [text] if place == "all" else _tagged(text) if place == "answer_tag" else _boxed(text)
    answers = dict.fromkeys(answer.strip() for answer in found)
    return () if answers.keys() == {""} else tuple(answers)


def _last_code_block(action: Message, ignored: frozenset[str]) -> str | Verdict:
    if action.tool_calls:
        return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
    blocks = code_blocks(action.content)
    programs = [block for block in blocks if block.language not in ignored] or blocks
    return programs[-1].text if programs else refuse(Reason.NO_ANSWER)


def _tagged(text: str) -> list[str]:
    return split_at_tags(text, "<answer>", "</answer>").inside


def _boxed(text: str) -> list[str]:
    r"""Contents of each \boxed{} and \fbox{}, whose braces may be nested; a box that is never closed is left out."""
    found = []
    box = _BOX.search(text)
    while box is not None:
        end = _closing_brace(text, box.end())
        if end < 0:
            break
        found.append(text[box.end() : end])
        box = _BOX.search(text, end)
    return found


def _closing_brace(text: str, begin: int) -> int:
    """Index of the brace that closes the one before `begin`; -1 if none does."""
    depth = 1
    for position in range(begin, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position
    return -1
