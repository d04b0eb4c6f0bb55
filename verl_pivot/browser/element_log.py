"""Playwright's log of an action on an element that was not ready in time -> what the page reported meanwhile."""

import re
from typing import NamedTuple

_OBSTACLES = ("element is not", "element is inert", "element is outside", "element was detached", "did not find some",
              "option being selected")  # fmt: skip
"""Beginnings of lines that say why an element was not ready."""
_ACTED = ("performing ", "elementHandle.press(")
"""Beginnings of lines after which the browser has been sent keys or clicks."""
_CLICK, _DONE = "Locator.click: ", "click action done"
"""Beginning of the error of a click, whose log has no text of a policy, and the line after which it is done."""
_REPEATED = re.compile(r"^(\d+) \u00d7 ")
_MOST_CHARACTERS = 300


class ElementLog(NamedTuple):
    """What is known about an action on an element that timed out."""

    reason: str
    """Why the element was not ready the last time; the message of the timeout if the page never said why."""
    num_looks: int
    """How many times the page reported that the element was not ready."""
    has_acted: bool
    """Whether the browser was sent the click or the key; if so, it must not be sent again."""
    is_done: bool = False
    """Whether the page has taken a click, and only the document for which the click asks is missing."""


def read_element_log(error: str) -> ElementLog:
    """Read the log in an error of Playwright, where a repeated line appears once, with the number of its repeats.

    A policy can forge lines of this log by the text that it fills in, and a page by an element that covers another.
    Neither can make the log show more than that the element was not ready.
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
        is_done=error.startswith(_CLICK) and _DONE in plain,
    )


def reason_of(error: str) -> str:
    """The sentence of an error that gives the reason, without the method's name and the log of its attempts."""
    lines = [_REPEATED.sub("", line.strip(" -"), count=1) for line in error.strip().splitlines()] or [""]
    tried = (line for line in reversed(lines[1:]) if _is_obstacle(line))
    first = lines[0].partition(": ")[2] or lines[0]
    return (next(tried, None) or first).removeprefix("Error: ").strip()[:_MOST_CHARACTERS]


def _is_obstacle(line: str) -> bool:
    return line.startswith(_OBSTACLES) or "intercepts pointer" in line
