"""Requests for the layout of a page -> assertions, the page of an expert, and that of a careless designer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pyarrow
import pyarrow.parquet

from verl_pivot.types import Json, JsonObject, Role

COLOURS = {"red": "#ff0000", "green": "#008000", "blue": "#0000ff", "black": "#000000"}
PLACES = {"left of": "left_of", "above": "above"}
"""{words of a request: key of an assertion}"""
TITLES = ("News", "Help", "Shop", "Team", "Tour", "Jobs")
HELD_OUT_TITLES = ("Tour", "Jobs")
"""Titles that only held-out requests have, with every colour and place."""
WIDTH, HEIGHT = 480, 320
"""CSS pixels of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout that a request asks for, or that a page has."""

    title: str | None
    """None: the page has no heading."""
    first: str
    """Colour of the first box."""
    second: str
    place: str
    """Where the first box stands, in the words of a request."""
    is_broken: bool = False
    """Whether the page's script names an element that is not there, and so raises while the page loads."""


def layouts(*, held_out: bool) -> list[Layout]:
    """All layouts that requests ask for, with held-out titles or with the others."""
    return [
        Layout(title=title, first=first, second=second, place=place)
        for title in TITLES
        if (title in HELD_OUT_TITLES) is held_out
        for first in COLOURS
        for second in COLOURS
        if first != second
        for place in PLACES
    ]


def request_text(layout: Layout) -> str:
    return f"A page {layout.title} with a {layout.first} box {layout.place} a {layout.second} one."


def render_options(layout: Layout) -> JsonObject:
    """Options of the verifier `render`: five assertions of equal weight."""
    assertions: list[Json] = [
        {"selector": "h1", "text": layout.title},
        {"selector": "#a", "visible": True},
        {"selector": "#a", "background": COLOURS[layout.first]},
        {"selector": "#b", "visible": True, "background": COLOURS[layout.second]},
        {"selector": "#a", PLACES[layout.place]: "#b"},
    ]
    return {"width": WIDTH, "height": HEIGHT, "seconds": [0.0], "assertions": assertions}


def page(layout: Layout) -> str:
    """A page with this layout."""
    heading = "" if layout.title is None else f"<h1>{layout.title}</h1>"
    way = "row" if layout.place == "left of" else "column"
    box = "width:90px;height:60px"
    named = "c" if layout.is_broken else "a"
    return (
        f"{heading}<div style='display:flex;flex-direction:{way}'>"
        f"<div id='a' style='background:{layout.first};{box}'></div>"
        f"<div id='b' style='background:{layout.second};{box}'></div></div>"
        f"<script>document.getElementById('{named}').title='first'</script>"
    )


def careless(layout: Layout, rng: Random) -> Layout:
    """What a careless designer makes of a request: each part is wrong at times."""
    return Layout(
        title=layout.title if rng.random() < 0.8 else None,
        first=layout.first if rng.random() < 0.7 else rng.choice(list(COLOURS)),
        second=layout.second if rng.random() < 0.7 else rng.choice(list(COLOURS)),
        place=layout.place if rng.random() < 0.7 else rng.choice(list(PLACES)),
        is_broken=rng.random() < 0.4,
    )


def revised(made: Layout, wanted: Layout, rng: Random) -> Layout:
    """The layout after a look: one wrong part is corrected, or at times the designer starts over, carelessly."""
    if rng.random() < 0.3:
        return careless(wanted, rng)
    names = ("title", "first", "second", "place", "is_broken")
    wrong = [name for name in names if getattr(made, name) != getattr(wanted, name)]
    name = rng.choice(wrong or list(names))
    return replace(made, **{name: getattr(wanted, name)})


def write_requests(path: Path, asked: Sequence[Layout]) -> Path:
    """Write one row per request, with the options by which `look` scores its pages."""
    rows = [
        {
            "data_source": "pages",
            "prompt": [{"role": Role.USER.value, "content": request_text(each)}],
            "metadata": json.dumps({"render": render_options(each)}),
            "ability": "pages",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, each in enumerate(asked)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
