"""Text of a page, as the policy reads it -> its elements: number, role, name, text and state of each."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_ELEMENT = re.compile(
    r"""\ *(?:\[(?P<number>\d+)\]\ )?
    (?P<role>button|checkbox|combobox|dialog|option|paragraph|radio|textbox)
    (?:\ (?P<name>"(?:[^"\\]|\\.)*"))?
    (?:\ \((?P<marks>[^()]*)\))?
    (?::\ (?P<text>.*))?""",
    re.VERBOSE,
)
ACTED_ON = ("button", "checkbox", "combobox", "radio", "textbox")
"""Roles of elements on which a click has an effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of a page.

    Example:
        Element(number=3, role="textbox", label="Username", text="vina")
    """

    role: str
    number: int | None = None
    """Number by which calls name it; None for options of a list."""
    name: str = ""
    label: str = ""
    """Line of text right above it, such as the name of a field; "" if there is none."""
    text: str = ""
    """Text in a field."""
    marks: tuple[str, ...] = ()
    """States such as checked, selected or disabled."""


def read_page(text: str) -> list[Element]:
    """Elements of a page, in order; empty for a text that shows no page, such as that of an error.

    Only a whole line counts as an element, so that a page cannot forge one inside a text of its own.
    """
    found: list[Element] = []
    label = ""
    for line in text.splitlines():
        element = _ELEMENT.fullmatch(line)
        if element is None:
            label = "" if line.lstrip().startswith("[") else line.strip()
            continue
        found.append(_element(element, label))
        label = ""
    return found


def choosable(elements: Sequence[Element]) -> list[Element]:
    """Elements on which a click has an effect."""
    return [each for each in elements if each.number is not None and each.role in ACTED_ON]


def _element(line: re.Match[str], label: str) -> Element:
    name = line["name"]
    return Element(
        role=line["role"],
        number=int(line["number"]) if line["number"] else None,
        name=json.loads(name) if name else "",
        label=label,
        text=line["text"] or "",
        marks=tuple(line["marks"].split(", ")) if line["marks"] else (),
    )
