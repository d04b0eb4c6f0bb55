"""Text of one turn -> NotebookTurn: the code of its cell, whether its form is right, and what is wrong with it."""

from dataclasses import dataclass

from verl_pivot.data.tagged_text import split_at_tags

THINK, THINK_END = "<think>", "</think>"
CODE, CODE_END = "<code>", "</code>"
MIN_THINK_CHARACTERS = 11
MIN_CODE_CHARACTERS = 6
"""Fewest characters of thought and of code without the spaces around them, as L0 (arXiv:2506.23667) rewards them."""
FORM = f"{THINK}your thoughts{THINK_END}{CODE}Python{CODE_END}"
"""Form of a turn, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookTurn:
    """One turn of the policy, after its text was read."""

    text: str
    """Text from the beginning of the assistant message through `</code>`, if it is there; no end-of-turn token."""
    code: str | None = None
    """The cell; None if the turn has none to run."""
    has_form: bool = False
    """Whether there is exactly one think block and one code block, neither of them too short."""
    mistake: str = ""
    """What is wrong with the turn, as the policy reads it; "" if its form is right."""


def read_notebook_turn(text: str, *, ended: bool, num_tokens: int = 0) -> NotebookTurn:
    """Read a turn, which the first `</code>` in it has ended.

    Within a block, tags of the other kind do not count: thoughts may mention `<code>`, and code may print `<think>`.

    Args:
        text: The turn, through `</code>` if it is there.
        ended: Whether the policy ended the turn by itself, by `</code>` or by its end-of-turn token.
        num_tokens: Tokens of the turn, for the message about one that was cut off.
    """
    start = _code_start(text)
    code = text[start + len(CODE) : -len(CODE_END)] if start >= 0 and text.endswith(CODE_END) else ""
    if not code.strip():
        mistake = _without_code(text, ended=ended, num_tokens=num_tokens)
        return NotebookTurn(text=text, mistake=f"{mistake} Nothing was run: a turn is {FORM}")
    mistake = _wrong_form(text[:start], code)
    return NotebookTurn(text=text, code=code, has_form=not mistake, mistake=mistake)


def _code_start(text: str) -> int:
    """Position of the tag that begins the code; -1 if there is none."""
    first, thought = text.find(CODE), text.find(THINK)
    is_behind_thought = 0 <= thought < first
    return text.find(CODE, max(0, text.find(THINK_END, thought))) if is_behind_thought else first


def _without_code(text: str, *, ended: bool, num_tokens: int) -> str:
    """Why a turn has no code to run."""
    if not ended:
        return f"The turn was cut off at its limit of {num_tokens} tokens."
    if not text.strip():
        return "The turn was empty."
    if not text.endswith(CODE_END):
        return f"{CODE} was never closed." if CODE in text else "The turn had no code."
    if _code_start(text) >= 0:
        return "The code was empty."
    is_within_thought = THINK in text and THINK_END not in text
    return (
        f"The turn ended at {CODE_END} within {THINK}." if is_within_thought else f"{CODE_END} had no {CODE} before it."
    )


def _wrong_form(thought: str, code: str) -> str:
    """What is wrong with the form of a turn that has code; "" if nothing is.

    Args:
        thought: Text before the code block.
        code: Text within it.
    """
    thoughts = split_at_tags(thought, THINK, THINK_END).inside
    if len(thoughts) != 1:
        return f"The turn should have exactly one {THINK} block before its code, and had {len(thoughts)}."
    if len(thoughts[0].strip()) < MIN_THINK_CHARACTERS:
        return f"The thought should have at least {MIN_THINK_CHARACTERS} characters."
    if len(code.strip()) < MIN_CODE_CHARACTERS:
        return f"The code should have at least {MIN_CODE_CHARACTERS} characters."
    return ""
