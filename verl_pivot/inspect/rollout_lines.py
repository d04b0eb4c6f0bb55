"""Opened rollouts -> lines of a terminal: one of them turn by turn, or two side by side."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import set_cell_size

from verl_pivot.inspect.opened import OpenedRollout, OpenedTurn
from verl_pivot.inspect.queries import ListedRollout
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.visible_text import on_one_line, wrapped
from verl_pivot.types import JsonObject

_FOLDED, _HEAD, _TAIL = 3_000, 2_000, 600
"""Number of characters up to which a text is shown whole, and of the beginning and end of a longer text."""
_MAX_WHOLE = 1_000_000
"""Maximum number of characters that are shown of an unfolded text."""


class ShownLine(NamedTuple):
    """One line of a terminal."""

    text: str
    style: str = ""
    """A style of rich."""
    is_heading: bool = False
    """Whether the keys for the next and previous part stop here."""


class ListedTexts(NamedTuple):
    """A rollout as the list has it, with its texts and its group."""

    listed: ListedRollout
    texts: OpenedRollout
    group: Sequence[ListedRollout]


def score_style(score: float | None) -> str:
    """Colour of a score: right, wrong or undecided."""
    return "yellow" if score is None else "green" if score >= 0.5 else "red"


def score_text(score: float | None) -> str:
    """The score in a few cells; a question mark for an undecided one."""
    return "?" if score is None else short_number(score)


def rollout_lines(opened: ListedTexts, width: int, *, is_whole: bool) -> list[ShownLine]:
    """One rollout.

    Args:
        opened: The rollout.
        width: Cells of a line.
        is_whole: Whether long texts are unfolded.
    """
    texts = opened.texts
    lines = [*_outcome(opened, width), *_group(opened, width)]
    for message in texts.prompt:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(message)
        lines.append(heading(f"Prompt, {len(text):,} characters", width))
        lines += text_lines(text, width, is_whole=is_whole)
    if not texts.prompt:
        lines.append(ShownLine("The files do not contain the prompt.", "dim"))
    for index, turn in enumerate(texts.turns):
        lines += turn_lines(turn, index, width, is_whole=is_whole)
    return lines


def comparison_lines(first: ListedTexts, second: ListedTexts, width: int, *, is_whole: bool) -> list[ShownLine]:
    """Two rollouts side by side, from the first turn in which they differ; arguments as for `rollout_lines`."""
    half = (width - 3) // 2
    turns = (first.texts.turns, second.texts.turns)
    num_turns, num_same = max(map(len, turns)), 0
    for left, right in zip(*turns, strict=False):
        if not left.has_text or (left.text, left.observations) != (right.text, right.observations):
            break
        num_same += 1
    if not all(turn.has_text for side in turns for turn in side):
        sentence = "pivot.record left texts out, so it is unknown where the rollouts differ."
    else:
        sentence = "All turns are the same." if num_same == num_turns else f"They differ from turn {num_same + 1} on."
    lines = [ShownLine(sentence, "dim")]
    lines += _beside([*_outcome(first, half)], [*_outcome(second, half)], half)
    for index in range(num_same, num_turns):
        left_side, right_side = (_turn_or_none(each, index, half, is_whole=is_whole) for each in turns)
        lines += _beside(left_side, right_side, half)
    return lines


def _turn_or_none(turns: Sequence[OpenedTurn], index: int, width: int, *, is_whole: bool) -> list[ShownLine]:
    if index < len(turns):
        return turn_lines(turns[index], index, width, is_whole=is_whole)
    return [heading(f"no turn {index + 1}", width)]


def turn_lines(turn: OpenedTurn, index: int, width: int, *, is_whole: bool) -> list[ShownLine]:
    """One turn, its calls and what the policy read after it; arguments as for `rollout_lines`."""
    about = [
        f"Turn {index + 1}",
        None if turn.num_tokens is None else f"{turn.num_tokens:,} tokens",
        "cut off" if turn.ended is False else None,
        None if turn.reward is None else f"{'return' if turn.step else 'reward'} {short_number(turn.reward)}",
    ]
    lines = [heading(", ".join(each for each in about if each), width)]
    lines += text_lines(turn.text, width, is_whole=is_whole)
    for call in turn.calls:
        lines += _call(call, width, is_whole=is_whole)
    for text in turn.observations:
        lines.append(ShownLine(f"Read, {len(text):,} characters", "dim"))
        lines += text_lines(text, width, "| ", is_whole=is_whole)
    return lines


def text_lines(text: str, width: int, indent: str = "", *, is_whole: bool) -> Iterator[ShownLine]:
    """Lines of a text; the middle of a long text is left out unless it is unfolded."""
    num_head, num_tail = (_MAX_WHOLE, 0) if is_whole else (_HEAD, _TAIL)
    if len(text) <= max(num_head, _FOLDED):
        num_head, num_tail = len(text), 0
    room = width - len(indent)
    for line in wrapped(text[:num_head], room):
        yield ShownLine(indent + line)
    if num_left := len(text) - num_head - num_tail:
        how = "see the file" if is_whole else "press o to show them"
        yield ShownLine(f"{indent}[{num_left:,} more characters: {how}]", "yellow")
        for line in wrapped(text[len(text) - num_tail :], room) if num_tail else ():
            yield ShownLine(indent + line)


def _outcome(opened: ListedTexts, width: int) -> Iterator[ShownLine]:
    found, row = opened.listed, opened.listed.row
    score = "undecided" if row.score is None else f"score {short_number(row.score)}"
    verdict = ", ".join(each for each in (score, row.reason, row.verifier and f"by {row.verifier}") if each)
    facts = [
        found.part,
        None if row.step is None else f"step {row.step}",
        row.stop_reason and f"ended: {row.stop_reason}",
        None if row.sampled_tokens is None else f"{row.sampled_tokens:,} tokens sampled",
        None if row.prompt_tokens is None else f"{row.prompt_tokens:,} prompt tokens",
        None if row.generate_seconds is None else f"{row.generate_seconds:.3g} s sampling",
        None if row.tool_seconds is None else f"{row.tool_seconds:.3g} s in tools",
        None if row.trajectory_id is None else f"trajectory {row.trajectory_id}, turn {row.turn_index}",
    ]
    yield from said(f"{found.file_name}, line {row.line}", width, "dim")
    yield from said(", ".join(each for each in facts if each), width, "dim")
    yield from said(verdict, width, f"bold {score_style(row.score)}")
    if row.kept is False:
        yield from said(f"The update did not see it: {row.left_out or 'no reason is given'}.", width, "")
    for name in ("detail", "failure"):
        text = opened.texts.fields.get(name)
        if isinstance(text, str) and text:
            yield from text_lines(text, width, is_whole=False)


def _group(opened: ListedTexts, width: int) -> Iterator[ShownLine]:
    if len(opened.group) < 2:
        return
    scores = ((score_text(each.row.score), each) for each in opened.group)
    strip = " ".join(f"[{text}]" if each.id == opened.listed.id else text for text, each in scores)
    yield from said(f"Group: {strip}", width, "")


def _call(call: JsonObject, width: int, *, is_whole: bool) -> Iterator[ShownLine]:
    is_ok = call.get("status") == "ok"
    status = "" if is_ok else f", {call.get('error_kind') or call.get('status')}"
    yield from said(f"Call of {call.get('name') or 'no tool'}{status}", width, "cyan" if is_ok else "red")
    given = call.get("arguments")
    arguments = "unreadable" if given is None else json.dumps(given, ensure_ascii=False)
    yield from text_lines(arguments, width, "  ", is_whole=is_whole)
    if detail := call.get("detail"):
        yield from text_lines(str(detail), width, "  ", is_whole=is_whole)


def said(text: str, width: int, style: str) -> Iterator[ShownLine]:
    """Lines of a sentence of this package, which may hold names from files."""
    yield from (ShownLine(line, style) for line in wrapped(on_one_line(text), width))


def heading(text: str, width: int) -> ShownLine:
    """The line above a part, at which keys stop."""
    return ShownLine(set_cell_size(f"-- {text} ".ljust(width, "-"), width), "bold", is_heading=True)


def _beside(left: Sequence[ShownLine], right: Sequence[ShownLine], half: int) -> Iterator[ShownLine]:
    for first, second in zip_longest(left, right, fillvalue=ShownLine("")):
        text = f"{set_cell_size(first.text, half)} | {set_cell_size(second.text, half)}"
        yield ShownLine(text, "bold" if first.is_heading else "", is_heading=first.is_heading or second.is_heading)
