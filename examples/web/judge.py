"""A judge of checklists that reads pages by rules, behind an endpoint: `python -m examples.web.judge WRONG_SHARE`."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256

from examples.scripted_judge import Answered, Messages, fenced_texts, serve
from examples.web.page import Element, read_page
from verl_pivot.rewards.checklist import ItemState
from verl_pivot.types import JsonObject

_NUMBERED = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_CHECKLIST, _FIRST_PAGE = "The checklist:", "The first page:"
_SEEN = "What the tools gave back after "


class UnknownItemError(ValueError):
    """Raised for an item for which there is no rule."""


def answering(wrong_share: float = 0.0) -> Answered:
    """Function that answers questions about the items of the study's checklists.

    Args:
        wrong_share: Share of the items about which the judge says the opposite; the texts of the question decide which.
    """

    def answer(messages: Messages) -> str:
        shown = fenced_texts(messages).texts
        items = _NUMBERED.findall(dict(shown).get(_CHECKLIST, ""))
        if not items:
            raise ValueError("the judge answers questions about the items of a checklist alone")
        page = last_page([text for title, text in shown if title == _FIRST_PAGE or title.startswith(_SEEN)])
        states = [state_of(item, page) for item in items]
        answers: list[JsonObject] = [
            {"number": number, "reason": "", "state": _opposite(state) if is_wrong else state}
            for number, state in enumerate(states, 1)
            for is_wrong in [_draw(shown, number) < wrong_share]
        ]
        return json.dumps({"items": answers})

    return answer


def last_page(texts: Sequence[str]) -> list[Element]:
    """Elements of the last text that shows a page; a call that failed leaves the page as it was."""
    return next((page for text in reversed(texts) if (page := read_page(text))), [])


def state_of(item: str, page: Sequence[Element]) -> ItemState:
    """State of an item by what the page shows.

    Raises:
        UnknownItemError: If there is no rule for the item.
    """
    for pattern, rule in _RULES:
        if found := pattern.fullmatch(item):
            return rule(page, *found.groups())
    raise UnknownItemError(f"the judge has no rule for the item {item!r:.200}")


def _field(page: Sequence[Element], label: str, wanted: str) -> ItemState:
    return _text([each for each in page if each.label == label], wanted)


def _text(page: Sequence[Element], wanted: str) -> ItemState:
    texts = [each.text for each in page if each.role == "textbox"]
    if wanted in texts:
        return ItemState.YES
    is_begun = any(text and wanted.startswith(text) for text in texts)
    return ItemState.IN_PROGRESS if is_begun else ItemState.NO


def _marked(role: str, mark: str) -> Callable[[Sequence[Element], str], ItemState]:
    def rule(page: Sequence[Element], name: str) -> ItemState:
        is_marked = any(each.role == role and each.name == name and mark in each.marks for each in page)
        return ItemState.YES if is_marked else ItemState.NO

    return rule


def _ends(page: Sequence[Element], _: str) -> ItemState:
    """State of an item that ends the episode, which cannot be done while a page is still shown."""
    return ItemState.NO


_RULES: Sequence[tuple[re.Pattern[str], Callable[..., ItemState]]] = (
    (re.compile(r'The field "(.+)" holds "(.+)"\.'), _field),
    (re.compile(r'A field holds "(.+)"\.'), _text),
    (re.compile(r'The list shows "(.+)"\.'), _marked("option", "selected")),
    (re.compile(r'The option "(.+)" is chosen\.'), _marked("radio", "checked")),
    (re.compile(r'The button "(.+)" is clicked\.'), _ends),
    (re.compile(r"Field number (\d+) has the focus\."), _ends),
)


def _opposite(state: ItemState) -> ItemState:
    return ItemState.NO if state is ItemState.YES else ItemState.YES


def _draw(shown: Sequence[tuple[str, str]], number: int) -> float:
    """A number in [0, 1) that the texts of the question and the number of the item decide."""
    texts = [number, *(list(each) for each in shown)]
    return int.from_bytes(sha256(json.dumps(texts).encode()).digest()[:8]) / 2**64


if __name__ == "__main__":
    asyncio.run(serve(answering(float(sys.argv[1]))))
