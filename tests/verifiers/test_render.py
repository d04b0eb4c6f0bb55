"""Assertions on measured elements, likeness of pictures, and options of the verifier `render`."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.render_assertions import (
    Assertion,
    Measured,
    MeasuredElement,
    SelectorMatches,
    problem_of_assertion,
)
from verl_pivot.verifiers.render_pictures import num_drawn_pixels, read_picture, structural_similarity


def element(left: float, top: float, right: float, bottom: float, *, visible: bool = True) -> SelectorMatches:
    one = MeasuredElement(
        left, top, right, bottom, visible, " Buy \n now", "rgb(255, 255, 255)", "rgba(0, 128, 0, 0.5)"
    )
    return SelectorMatches(1, (one,))


MEASURED: Measured = {
    "a": element(0, 0, 50, 20),
    "b": element(50.5, 20, 100, 40),
    "body": element(0, 0, 100, 100),
    "flat": element(10, 10, 10, 20, visible=False),
    "li": SelectorMatches(3, (element(60, 60, 70, 70).elements[0],) * 3),
    "none": SelectorMatches(0, ()),
    ":::": None,
}


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"selector": "a", "left_of": "b", "above": "b", "inside": "body", "visible": True}, None),
        ({"selector": "a", "text": "buy NOW", "colour": "#fff", "count": 1}, None),
        ({"selector": "none", "count": 0}, None),
        ({"selector": "none", "visible": False}, None),
        ({"selector": "none", "visible": False, "text": "x"}, "there is no none"),
        ({"selector": "none", "visible": False, "inside": "body"}, "there is no none"),
        ({"selector": "none", "visible": False, "background": "#fff"}, "there is no none"),
        ({"selector": "flat", "visible": False}, None),
        ({"selector": "b", "left_of": "a"}, "b does not stand left of a"),
        ({"selector": "body", "inside": "a"}, "body does not stand inside a"),
        ({"selector": "flat", "inside": "body"}, "flat does not stand inside body"),
        ({"selector": "flat", "visible": True}, "flat is not visible"),
        ({"selector": "a", "visible": False}, "a is visible"),
        ({"selector": "li", "count": 2}, "li is there 3 times, not 2"),
        ({"selector": "none", "text": "x"}, "there is no none"),
        ({"selector": "a", "above": "none"}, "there is no none, which a should stand above"),
        ({"selector": "a", "text": "buy"}, "a has the text ' Buy \\n now', not 'buy'"),
        ({"selector": "a", "colour": "#fffff0"}, "a has the colour rgb(255, 255, 255), not #fffff0"),
        ({"selector": "a", "background": "#008000"}, "a has the background rgba(0, 128, 0, 0.5), not #008000"),
        ({"selector": ":::", "visible": True}, "::: is no CSS selector"),
    ],
)
def test_an_assertion_holds_or_says_what_does_not(claims: JsonObject, problem: str | None) -> None:
    assert problem_of_assertion(Assertion.model_validate(claims), MEASURED) == problem


def picture(*rows: list[int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.repeat(np.array(rows, dtype=np.uint8)[:, :, None], 3, axis=2)


def test_likeness_of_one_window_by_hand() -> None:
    """Grey 0 against grey 255 in all pixels: the means decide alone, C1 / (255**2 + C1) with C1 = (0.01 * 255)**2."""
    black, white = picture(*[[0] * 7] * 7), picture(*[[255] * 7] * 7)

    assert structural_similarity(black, white) == pytest.approx(6.5025 / (65025 + 6.5025))
    assert structural_similarity(black, black) == 1.0


def test_likeness_is_the_mean_over_whole_windows_with_unbiased_variances() -> None:
    """Two windows: equal columns in the first; in the second the last column differs, 0 against 70."""
    one = picture(*[[0] * 8] * 7)
    two = picture(*[[0] * 7 + [70]] * 7)
    mean, variance = 10.0, 70.0**2 * (1 / 7) * (6 / 7) * 49 / 48
    second = 6.5025 * 58.5225 / ((mean**2 + 6.5025) * (variance + 58.5225))

    assert structural_similarity(one, two) == pytest.approx((1.0 + second) / 2)


@given(st.integers(7, 12), st.integers(7, 12), st.integers(0, 2**32 - 1))
def test_likeness_is_symmetric_and_at_most_1(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    one, two = random.integers(0, 256, (2, height, width, 3), dtype=np.uint8)

    assert structural_similarity(one, two) == pytest.approx(structural_similarity(two, one))
    assert -1.0 <= structural_similarity(one, two) <= 1.0
    assert structural_similarity(one, one) == pytest.approx(1.0)


def test_pixels_of_another_colour_than_the_most_frequent_one_are_drawn() -> None:
    assert num_drawn_pixels(picture([9, 9, 9], [9, 0, 9])) == 1
    assert num_drawn_pixels(picture([9, 9], [9, 9])) == 0


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not a PNG or JPEG picture"):
        read_picture(data)


def reference(width: int, height: int) -> str:
    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


JUDGE: Json = {"base_url": "http://x/v1", "model": "j"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give assertions, a reference or a judge"),
        ({"assertions": [{"selector": "a"}]}, "the assertion on 'a' makes no claim"),
        ({"assertions": [{"selector": "a", "count": 0, "visible": True}]}, "and then takes no other key"),
        ({"assertions": [{"selector": "a", "colour": "red"}]}, "colour must have the form #rrggbb, got 'red'"),
        ({"reference": "%"}, "the reference is not valid base64"),
        ({"reference": "aaaa"}, "the reference is not a PNG or JPEG picture"),
        ({"reference": reference(8, 9)}, "the reference has 8 x 9 pixels, not 1280 x 720"),
        ({"judge": JUDGE}, "the judge of a page must have kind 'rubric', got 'equivalence'"),
        ({"assertions": [{"selector": "a", "count": 1}], "weights": {"judge": 2}}, "the weight of judge has no effect"),
        ({"assertions": [{"selector": "a", "count": 1}], "weights": {"assertions": 0}}, "all weights are 0"),
        ({"assertions": [{"selector": "a", "count": 1}], "seconds": [1, 0]}, "seconds must ascend"),
    ],
)
def test_options_that_do_nothing_or_contradict_are_refused(options: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier("render", options)
