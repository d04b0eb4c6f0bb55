"""Overrides -> the keys whose values they set, in every spelling that Hydra reads."""

import pytest

from verl_pivot.launch_checks.given_keys import given_keys


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("a.b=1", {"a.b"}),
        ("+a.b=1", {"a.b"}),
        ("++a.b=1", {"a.b"}),
        ("a.b=", {"a.b"}),
        ('a.b="x=y"', {"a.b"}),
        ("a={b: 1, c: {d: 2, e: null}}", {"a.b", "a.c.d", "a.c.e"}),
        ("++a={b: [1, 2]}", {"a.b"}),
        ("a={}", {"a"}),
        ("~a.b", set()),
        ("~a.b=1", set()),
    ],
)
def test_a_key_is_given_in_every_spelling_but_that_of_taking_it_out(override: str, keys: set[str]) -> None:
    assert given_keys(["other.key=1", override]) == {"other.key", *keys}
