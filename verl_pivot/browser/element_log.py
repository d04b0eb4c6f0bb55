"""Playwright's log of an action on an element that was not ready in time -> what the page said meanwhile."""

import re
from typing import NamedTuple

_OBSTACLES = ("element is not", "element is inert", "element is outside", "element was detached", "did not find some",
              "option being selected")  # fmt: skip
"""Beginnings of lines that say why an element was not ready."""
_ACTED = ("performing ", "elementHandle.press(")
"""Beginnings of lines behind which the browser has been given keys or clicks."""
_REPEATED = re.compile(r"^(\d+) \u00d7 ")
_MOST_CHARACTERS = 300


class ElementLog(NamedTuple):
    """What is known of an action on an element that ended by a time-out."""

    reason: str
    """Why the element was not ready the last time; the time-out itself where the page never said."""
    num_looks: int
    """Times that the page said that the element was not ready."""
    has_acted: bool
    """Whether the browser was given the click or the key, so that it may not be given it again."""


def read_element_log(error: str) -> ElementLog:
    """What an error of Playwright says in its log, in which lines that repeat stand once, with their number.

    A policy can write lines of this log with the text that it fills in, and a page some with what covers an element:
    neither can show more than that the element was not ready.
    """
    lines = [line.strip(" -") for line in error.strip().splitlines()]
    repeated = [_REPEATED.match(line) for line in lines]
    plain = [_REPEATED.sub("", line, count=1) for line in lines]
    obstacles = [index for index, line in enumerate(plain) if index and _is_obstacle(line)]
    num_more = sum(int(found[1]) - 1 for found in repeated if found is not None)
    acted = [index for index, line in enumerate(plain) if line.startswith(_ACTED)]
    last_obstacle = max(obstacles, default=-1)
    return ElementLog(
        reason=reason_of(error),
        num_looks=len(obstacles) + num_more if obstacles else 0,
        has_acted=any(index > last_obstacle for index in acted),
    )


def reason_of(error: str) -> str:
    """The sentence of an error that says why, without the name of the method and the log of its tries."""
    lines = [_REPEATED.sub("", line.strip(" -"), count=1) for line in error.strip().splitlines()] or [""]
    tried = (line for line in reversed(lines[1:]) if _is_obstacle(line))
    first = lines[0].partition(": ")[2] or lines[0]
    return (next(tried, None) or first).removeprefix("Error: ").strip()[:_MOST_CHARACTERS]


def _is_obstacle(line: str) -> bool:
    return line.startswith(_OBSTACLES) or "intercepts pointer" in line
