"""Options that the examples share."""

import re

import pytest
import typer

from examples.options import all_of, chosen_names

KNOWN = ("base", "search", "cost")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base", ["base"]),
        (all_of(KNOWN), ["base", "search", "cost"]),
        (" cost , base,,", ["base", "cost"]),
        ("cost,cost", ["cost"]),
    ],
)
def test_names_with_commas_are_chosen_once_in_the_order_of_the_known_ones(text: str, expected: list[str]) -> None:
    assert chosen_names(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base,Cost,x", "there is no judge Cost, x; known: base, search, cost"),
        (" ,", "no judge is named; known: base, search, cost"),
        ("cost,cost", "1 judge is named, and at least 2 are needed; known: base, search, cost"),
    ],
)
def test_names_that_are_not_known_or_too_few_are_refused(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"^{re.escape(message)}$"):
        chosen_names(text, KNOWN, kind="judge", least=2 if text.startswith("cost") else 1)
