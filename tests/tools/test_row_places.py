"""Placeholders in a tools file: a value of a row stays in its placeholder's place, or is refused with the reason."""

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verl_pivot.errors import DataError
from verl_pivot.tools.row_places import check_places, filled, filled_url, filled_word, row_names, split_at_place
from verl_pivot.types import Json

VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(VALUES)
def test_a_value_stands_in_its_place_and_makes_no_other_place(value: str) -> None:
    metadata: dict[str, Json] = {"a": value, "folder": "other"}

    assert filled("x={metadata.a}|{folder}", metadata, folder="/f") == f"x={value}|/f"


@given(VALUES)
def test_a_value_in_an_address_is_one_part_of_its_path(value: str) -> None:
    assume(value not in (".", ".."))
    parts = urlsplit(filled_url("http://host:1/a/{metadata.v}/mcp?of={metadata.v}", {"v": value}))

    assert (parts.netloc, parts.fragment) == ("host:1", "")
    assert [unquote(each) for each in parts.path.split("/")] == ["", "a", value, "mcp"]
    assert unquote(parts.query) == f"of={value}"


@given(VALUES)
def test_a_value_makes_no_option_of_an_argument(value: str) -> None:
    try:
        word = filled_word("{metadata.v}", {"v": value}, folder="")
    except DataError:
        assert value.startswith("-")
    else:
        assert word == value
        assert not value.startswith("-") or float(value) <= 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (-3, "-3"), (-2.5, "-2.5"), (True, "true"), ("a b", "a b"), ({"tea": [1]}, '{"tea": [1]}'), ("", "")],
)
def test_a_text_is_filled_in_as_it_stands_and_any_other_value_as_json(value: Json, text: str) -> None:
    assert filled_word("{metadata.v}", {"v": value}, folder="") == text


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"task": 1, "stock": 2},
            "lacks metadata.seed, for which the tools file has a placeholder; its metadata holds task, st",
        ),
        ({"seed": None}, "lacks metadata.seed"),
        ({}, "its metadata holds nothing"),
        ({"seed": "a\0b"}, "metadata.seed holds a null character"),
        ({"seed": "--upload-pack=sh"}, "{metadata.seed} must not begin with a dash"),
        ({"seed": "-1; true"}, "as in --option={metadata.seed}"),
        (
            {"seed": "\u00e4" * 50_001},
            "metadata.seed has 100002 bytes, but an argument of a program at most 100000; put",
        ),
        ({"seed": "\ud800"}, "a value has no JSON form"),
    ],
)
def test_a_row_with_a_wrong_value_or_none_is_refused(metadata: dict[str, Json], message: str) -> None:
    with pytest.raises(DataError) as caught:
        filled_word("{metadata.seed}", metadata, folder="")

    assert message in str(caught.value)


@pytest.mark.parametrize("value", [".", ".."])
def test_a_value_does_not_climb_in_an_address(value: str) -> None:
    with pytest.raises(DataError, match=r"metadata\.repository must not be '\.+' in an address"):
        filled_url("http://host/{metadata.repository}/mcp", {"repository": value})


@pytest.mark.parametrize(
    "text", ["{seed}", "--x={row.seed}", "{metadata}", "{metadata.}", "{metadata.a.b}", "{Folder}"]
)
def test_a_place_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"known are \{folder\} and \{metadata\.NAME\}"):
        check_places(text)


@pytest.mark.parametrize("text", ['{"seed": 1}', "{}", "a{b", "{1}", "{folder}/{metadata.a-b}"])
def test_other_braces_stay_as_they_are(text: str) -> None:
    check_places(text)

    assert filled(text, {"a-b": 1}, folder="/f") == text.replace("{folder}", "/f").replace("{metadata.a-b}", "1")


def test_the_folders_before_a_place_are_told_from_what_a_row_names() -> None:
    assert split_at_place("shops/of-{metadata.n}.db") == ("shops/", "of-{metadata.n}.db")
    assert split_at_place("{folder}/x") == ("", "{folder}/x")
    assert split_at_place("shops/a.db") == ("shops/a.db", "")
    assert row_names(["{metadata.a}/{metadata.b}", "{folder}"]) == {"a", "b"}
