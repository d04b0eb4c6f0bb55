"""Accessibility snapshots as texts in which elements have numbers."""

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.browser.page_text import MAX_DEPTH, page_text
from verl_pivot.errors import PageError

SNAPSHOT = """\
- generic [active] [ref=e1]:
  - 'heading "Shop: \\"open\\"" [level=1] [ref=e2]'
  - generic [ref=e3]:
    - textbox "Search" [ref=e5]: tea
    - 'button "Go: now" [disabled] [ref=e6]'
  - generic [ref=e7] [cursor=pointer]:
    - text: "Menu [ref=e9]"
  - link "Next" [ref=e8] [cursor=pointer]:
    - /url: "#next"
  - generic [ref=e10]: plain
"""


def test_elements_have_numbers_and_boxes_without_text_are_left_out() -> None:
    numbers = count(1)
    known: dict[str, int] = {}

    shown = page_text(SNAPSHOT, lambda ref: known.setdefault(ref, next(numbers)) if ref not in known else known[ref])

    assert shown.text == (
        '[1] heading "Shop: \\"open\\"" (level=1)\n'
        '[2] textbox "Search": tea\n'
        '[3] button "Go: now" (disabled)\n'
        "[4] generic\n"
        "  Menu [ref=e9]\n"
        '[5] link "Next"\n'
        "  url: #next\n"
        "[6] plain"
    )
    assert shown.refs == {1: "e2", 2: "e5", 3: "e6", 4: "e7", 5: "e8", 6: "e10"}


def test_an_empty_page_is_an_empty_text() -> None:
    assert page_text("", int).text == ""


@given(st.text())
def test_what_a_page_calls_its_button_names_no_other_element(name: str) -> None:
    import json

    quoted = json.dumps(name).replace("'", "''")
    shown = page_text(f"- 'button {quoted} [ref=e5]'", lambda ref: int(ref[1:]))

    assert shown.refs == {5: "e5"}


def test_what_yaml_does_not_take_is_shown_as_a_replacement() -> None:
    shown = page_text('- textbox "a\uffffb" [ref=e1]: c\ud800\x7fd', lambda _: 1)

    assert shown.text == '[1] textbox "a\ufffdb": c\ufffd\ufffdd'


def test_a_snapshot_that_cannot_be_read_is_said_of_the_page() -> None:
    with pytest.raises(PageError, match="cannot be read"):
        page_text("- [", int)


def nested(num_levels: int) -> str:
    """Snapshot of groups in each other, the innermost of which holds a text."""
    groups = [f"{'  ' * level}- group [ref=e{level + 1}]:" for level in range(num_levels)]
    return "\n".join([*groups, f"{'  ' * num_levels}- text: end"])


def test_elements_of_any_depth_are_read() -> None:
    shown = page_text(nested(3000), lambda ref: int(ref[1:]))

    lines = shown.text.split("\n")
    assert lines[:2] == ["[1] group", "  [2] group"]
    assert lines[-2:] == [" " * 6000 + "end", "(Elements nested more than 50 levels deep are not shown.)"]
    assert len(shown.refs) == 3000


def test_a_page_whose_elements_are_all_shown_has_no_note() -> None:
    assert page_text(nested(MAX_DEPTH - 1), lambda ref: int(ref[1:])).text.endswith("\n" + "  " * 49 + "end")


@given(st.text(alphabet="-: []{}\n'\"ax&*!|>?#%@,"))
def test_no_snapshot_is_an_error_of_ours(snapshot: str) -> None:
    with suppress(PageError):
        page_text(snapshot, lambda _: 1)
