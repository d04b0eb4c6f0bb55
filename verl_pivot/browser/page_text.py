"""Playwright's accessibility snapshot -> the text that the policy reads, with a number before each element."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from verl_pivot.errors import PageError

_KEY = re.compile(
    r"""(?P<role>/?[a-zA-Z-]+)
    (?:\ (?P<name>"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/))?
    (?P<marks>(?:\ \[[^\[\]]*\])*)""",
    re.VERBOSE,
)
_REF = re.compile(r"\[ref=([a-z0-9]+)\]")
_MARK = re.compile(r"\[([^\[\]]*)\]")
_UNSHOWN = ("ref=", "cursor=", "active", "box=")
# Characters that YAML accepts in no text, such as U+FFFF and lone surrogates; a page can contain all of them.
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_Node: TypeAlias = Any  # YAML: a text, or {text: text or list of these}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """A page as the policy reads it.

    Example:
        PageText(text='[1] button "OK"', refs={1: "e5"})
    """

    text: str
    refs: dict[int, str] = field(default_factory=dict)
    """{number of an element: Playwright's name for it}."""


def page_text(snapshot: str, number_of: Callable[[str], int]) -> PageText:
    """Text of a page, one element per line, indented by nesting.

    Boxes that only contain other elements are left out; their content takes their place and indent.

    Args:
        snapshot: `page.aria_snapshot(mode="ai")`.
        number_of: Maps Playwright's name for an element to its number.

    Raises:
        PageError: If the snapshot cannot be read.
    """
    try:
        nodes = yaml.load(_NOT_YAML.sub("\ufffd", snapshot), Loader=_Loader) if snapshot.strip() else []
    except yaml.YAMLError as error:  # the page decides what the snapshot contains
        raise PageError("the page's text cannot be read") from error
    refs: dict[int, str] = {}
    lines = _lines(nodes if isinstance(nodes, list) else [nodes], 0, number_of, refs)
    return PageText(text="\n".join(lines), refs=refs)


def _lines(nodes: list[_Node], depth: int, number_of: Callable[[str], int], refs: dict[int, str]) -> Iterator[str]:
    for node in nodes:
        key, content = next(iter(node.items())) if isinstance(node, dict) else (node, "")
        children = content if isinstance(content, list) else []
        text = "" if isinstance(content, list) else " ".join(str(content).split())
        shown = _element(str(key), text, number_of, refs)
        if shown is not None:
            yield "  " * depth + shown
        yield from _lines(children, depth if shown is None else depth + 1, number_of, refs)


def _element(key: str, text: str, number_of: Callable[[str], int], refs: dict[int, str]) -> str | None:
    """Line of an element; None for a box that has no text of its own and cannot be clicked."""
    found = _KEY.fullmatch(key)
    if found is None:
        return " ".join(key.split())
    role, name, marks = found["role"], found["name"], found["marks"]
    if role == "text" or role.startswith("/"):
        return text if role == "text" else f"{role[1:]}: {text}"
    ref = _REF.search(marks)
    is_box = role == "generic" and name is None
    if is_box and not text and "[cursor=pointer]" not in marks:
        return None
    number = "" if ref is None else f"[{number_of(ref[1])}] "
    if ref is not None:
        refs[number_of(ref[1])] = ref[1]
    words = [] if is_box and text else [role]
    words += [name] if name is not None else []
    shown = [mark for mark in _MARK.findall(marks) if not mark.startswith(_UNSHOWN)]
    words += [f"({', '.join(shown)})"] if shown else []
    label = " ".join(words)
    return number + (f"{label}: {text}" if label and text else label or text)
