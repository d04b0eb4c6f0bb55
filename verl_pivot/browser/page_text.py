"""Playwright's accessibility snapshot -> the text that the policy reads, with a number before each element."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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
MAX_DEPTH = 50
"""Levels of nesting down to which elements are shown. Playwright gives no snapshot at all of about 58 levels."""


class _Node(NamedTuple):
    """An element or a text of a snapshot."""

    depth: int
    """Number of elements around it."""
    key: str
    text: str


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
    refs: dict[int, str] = {}
    lines: list[str] = []
    indents = {0: 0}
    is_cut = False
    try:
        for node in _nodes(_NOT_YAML.sub("\ufffd", snapshot)):
            indent = indents.get(node.depth, 0)
            shown = _element(node.key, " ".join(node.text.split()), number_of, refs)
            if shown is not None:
                lines.append("  " * indent + shown)
            indents[node.depth + 1] = indent if shown is None else indent + 1
            is_cut = is_cut or node.depth >= MAX_DEPTH
    except yaml.YAMLError as error:  # the page decides what the snapshot contains
        raise PageError("the page's text cannot be read") from error
    if is_cut:
        lines.append(f"(Elements nested more than {MAX_DEPTH} levels deep are not shown.)")
    return PageText(text="\n".join(lines), refs=refs)


def _nodes(snapshot: str) -> Iterator[_Node]:
    """Nodes of a snapshot in the order of its lines, without recursion, however deeply the page nests its elements.

    Its YAML is a list of texts and of {text: text or list of these}.
    """
    depth, key, is_key = -1, None, False
    for event in yaml.parse(snapshot, Loader=_Loader):
        if isinstance(event, yaml.SequenceStartEvent):
            if key is not None:
                yield _Node(depth, key, "")
            depth, key = depth + 1, None
        elif isinstance(event, yaml.SequenceEndEvent):
            depth -= 1
        elif isinstance(event, yaml.MappingStartEvent):
            is_key = True
        elif isinstance(event, yaml.ScalarEvent) and is_key:
            key, is_key = str(event.value), False
        elif isinstance(event, yaml.ScalarEvent):
            yield _Node(depth, str(event.value), "") if key is None else _Node(depth, key, str(event.value))
            key = None


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
