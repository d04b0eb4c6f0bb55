"""Random and damaged rows: a reader reads or refuses each row, and the import counts every row."""

import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.format_examples import EXAMPLES, TEXT_CALL, TEXT_PROMPT, TOOLACE_PROMPT
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import DataError
from verl_pivot.formats.importing import import_files
from verl_pivot.formats.registry import known_formats
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.types import Json, JsonObject

FORMATS = known_formats()
ROWS = [example.row for example in EXAMPLES.values()]
TEXTS = [
    *("", "{", "[]", "{}", "null", "NaN", "1e999", "\ud800", "\0", "</think>", "x" * 20_000, "[" * 3000, "9" * 5000),
    *("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tools>[</tools>", "<tool_response></tool_response>"),
    *("<function=f>", "<parameter=a></parameter>", "[f(", "[f(a=1)]", "[f(**a)]", "[f(a=1, a=2)]", "(" * 3000),
    *(TEXT_PROMPT, TEXT_CALL, TOOLACE_PROMPT, TEXT_PROMPT[:-60], TOOLACE_PROMPT[:-60], "-" * 3000 + "1", "# Tools\n\n"),
]
NUMBERS = [0, 1, -1, 2, 10**400, math.nan, math.inf, 1e308, True, False]
DEEP = "nested 3000 times"
LEAVES = st.none() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text(max_size=20)


def keys_of(value: Json) -> set[str]:
    """All keys in a value, including those in its strings of JSON."""
    if isinstance(value, str):
        return keys_of(decoded) if isinstance(decoded := unpacked(value), dict | list) else set()
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (set(value) if isinstance(value, dict) else set()).union(*map(keys_of, children))


def unpacked(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


KEYS = sorted(set().union(*map(keys_of, ROWS)))
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
        | inner.map(lambda value: json.dumps(value))
    ),
    max_leaves=20,
)
NO_JSON = st.sampled_from([b"\xff", datetime.datetime(2026, 1, 1), (1,), {1: 2}, {"a"}, 1j, object()])


def dug(value: Any) -> Any:
    """Replace each DEEP in the value by a value nested 3000 levels deep, which hypothesis cannot print."""
    if value == DEEP:
        return nested(3000)
    if isinstance(value, dict):
        return {key: dug(child) for key, child in value.items()}
    return [dug(child) for child in value] if isinstance(value, list) else value


def nested(depth: int) -> Json:
    value: Json = "x"
    for number in range(depth):
        value = [value] if number % 2 else {"content": value}
    return value


@st.composite
def mutated(draw: st.DrawFn, value: Json, replacement: st.SearchStrategy[Any]) -> Any:
    """The value with something in it replaced, removed, doubled or nested."""
    if isinstance(value, str) and isinstance(inner := unpacked(value), dict | list) and draw(st.booleans()):
        return json.dumps(draw(mutated(inner, JSON)))
    if isinstance(value, dict | list) and value and draw(st.integers(0, 4)):
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        key: Any = (
            draw(st.sampled_from(sorted(value))) if isinstance(value, dict) else draw(st.integers(0, len(value) - 1))
        )
        match draw(st.sampled_from(["inner", "inner", "inner", "remove", "double"])):
            case "inner":
                copy[key] = draw(mutated(copy[key], replacement))
            case "remove":
                del copy[key]
            case _ if isinstance(copy, list):
                copy.insert(draw(st.integers(0, len(copy))), copy[key])
            case _:
                copy[draw(st.sampled_from(KEYS))] = copy[key]
        return copy
    return draw(replacement | st.sampled_from([[value], {"content": value}, nested(50), DEEP]))


def is_row(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


BROKEN_ROWS = st.sampled_from(ROWS).flatmap(lambda row: mutated(row, JSON)).filter(is_row)
BROKEN_COLUMNS = st.sampled_from(ROWS).flatmap(lambda row: mutated(row, JSON | NO_JSON)).filter(is_row)
SLOW = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", [None, *FORMATS])
@given(row=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
@SLOW
def test_any_json_is_read_or_refused(name: str | None, row: JsonObject) -> None:
    read_or_refuse(as_line(row), name)


@given(row=BROKEN_ROWS, name=st.none() | st.sampled_from(FORMATS))
@settings(SLOW, max_examples=300)
def test_a_broken_line_is_read_or_refused(row: JsonObject, name: str | None) -> None:
    read_or_refuse(as_line(row), name)


@given(row=BROKEN_COLUMNS, name=st.none() | st.sampled_from(FORMATS))
@settings(SLOW, max_examples=150)
def test_a_broken_row_of_parquet_is_read_or_refused(row: JsonObject, name: str | None) -> None:
    read_or_refuse(RawRow(place=Place(file="a.parquet", unit="row", number=1), raw=dug(row)), name)


@given(rows=st.lists(BROKEN_ROWS, max_size=8), outcome=st.sampled_from(["passed", "all"]))
@settings(SLOW, max_examples=30)
def test_every_row_of_an_import_is_kept_or_left_out_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, rows: list[JsonObject], outcome: Any
) -> None:
    folder = tmp_path_factory.mktemp("import")
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(map(raw_line, [ROWS[0], *rows])))

    report = import_files([path], folder / "out.jsonl", ImportOptions(outcome=outcome))

    assert report.num_rows == 1 + len(rows)
    assert report.num_rows == report.num_kept + report.num_not_passed + report.rejected.total()
    assert report.num_kept == len((folder / "out.jsonl").read_text().splitlines())


@given(
    suffix=st.sampled_from(["jsonl", "json", "traj"]),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3)), min_size=1, max_size=6),
    length=st.integers(0, 10**6),
)
@settings(SLOW, max_examples=30)
def test_a_file_with_broken_bytes_is_counted_row_by_row_or_refused(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, damage: list[tuple[int, bytes]], length: int
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    rows = [json.dumps(row).encode() for row in ROWS]
    content = bytearray(b"\n".join(rows) if suffix == "jsonl" else b"[" + b",\n".join(rows) + b"]")
    for place, written in damage:
        content[place % len(content) : place % len(content) + len(written)] = written
    path = folder / f"in.{suffix}"
    path.write_bytes(content[: length if length % 2 else len(content)])

    try:
        report = import_files([path], folder / "out.jsonl", ImportOptions(outcome="all"))
    except DataError:
        return

    assert report.num_rows == report.num_kept + report.num_not_passed + report.rejected.total()
    assert report.num_kept == len((folder / "out.jsonl").read_bytes().splitlines())


def as_line(row: JsonObject) -> RawRow:
    return RawRow(place=Place(file="a.jsonl", unit="line", number=1), raw=raw_line(row))


def raw_line(row: JsonObject) -> bytes:
    return json.dumps(row).encode().replace(json.dumps(DEEP).encode(), b"[" * 3000 + b"]" * 3000)


def read_or_refuse(row: RawRow, name: str | None) -> None:
    try:
        parsed = parse_row(row, ImportOptions(format=name))
    except BadRowError:
        return
    assert name in (None, parsed.format)
