"""Regular expressions of the package: each takes time linear in the length of the text, whatever the text is."""

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]  # the parser of Python's own patterns
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import pytest

from tests.support.paths import ROOT
from tests.support.processor_time import (
    GROWTH,
    MAX_RATIO,
    MAX_SECONDS,
    LimitedWorker,
    TooMuchProcessorTimeError,
    growth,
    seconds_of,
)

NUM_CHARS = 2_000
MIN_SECONDS = 0.02
"""Processor seconds of the longer text above which the growth of the time is measured."""
_METHODS = ("search", "match", "fullmatch", "sub", "finditer", "findall", "split")
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_OF_CATEGORY = {
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_NOT_DIGIT: "a",
    codes.CATEGORY_SPACE: " \n",
    codes.CATEGORY_NOT_SPACE: "a(",
    codes.CATEGORY_WORD: "a1_",
    codes.CATEGORY_NOT_WORD: " (",
}
PIECES = [
    *(" ", "\n", "\t", " \n", "\n ", "a", "A", "1", "-", ".", "(", "[", "{", "<", "'", '"', "*", "_", "\\", "$", "#"),
    *("`", "/", "=", "a ", "a.", "1,", "1.", "1/", "a-", "x=", "ab1"),
]
ENDS = ("\0", "\n!")
"""Ends of the texts, chosen so that most patterns do not match them."""
FILES = [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "verl_pivot").rglob("*.py"))
    if "shims" not in path.parts and re.search(r"^import re$", path.read_text(), re.MULTILINE)
]


class Use(NamedTuple):
    """One pattern with the method by which a file uses it."""

    name: str
    pattern: re.Pattern[str]
    method: str


class Attack(NamedTuple):
    """Text that begins with `head` and then repeats `piece`."""

    head: str
    piece: str


def attacks_on(pattern: re.Pattern[str]) -> set[Attack]:
    """Texts that repeat PIECES or what parts of the pattern match, the latter after what the pattern wants before."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    pieces = {*PIECES, *_parts(tree)}
    return {each for each in {*_repeats(tree, ""), *(Attack("", piece) for piece in pieces)} if each.piece}


def _sample(tree: Iterable[Any]) -> str:
    """Text that the pattern matches, or nearly matches."""
    return "".join(_sample_of(code, value) for code, value in tree)


def _sample_of(code: object, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code in (codes.IN, codes.ANY, codes.NOT_LITERAL):
        return _letters(code, value)[0]
    if code in _REPEATS:
        return _sample(value[2]) * value[0]
    if code is codes.BRANCH:
        return _sample(value[1][0])
    return "".join(map(_sample, _children(code, value))) if code not in (codes.ASSERT, codes.ASSERT_NOT) else ""


def _children(code: object, value: Any) -> list[Any]:
    """The patterns within one part of a pattern."""
    if code in _REPEATS:
        return [value[2]]
    if code is codes.SUBPATTERN:
        return [value[3]]
    if code is codes.ATOMIC_GROUP:
        return [value]
    if code is codes.BRANCH:
        return list(value[1])
    return [value[1]] if code in (codes.ASSERT, codes.ASSERT_NOT) else []


def _letters(code: object, value: Any) -> list[str]:
    """Some characters that a part of a pattern, one character wide, matches."""
    if code is codes.LITERAL:
        return [chr(value)]
    if code is codes.ANY or code is codes.NOT_LITERAL:
        return [each for each in "ab\n" if code is codes.ANY or each != chr(value)]
    found = []
    for each, item in value:
        found += [chr(item)] if each is codes.LITERAL else [chr(item[0])] if each is codes.RANGE else []
        found += _OF_CATEGORY.get(item, "") if each is codes.CATEGORY else ""
    if value[0][0] is codes.NEGATE:
        return [each for each in "a1 (\n<{\"'`-\\" if each not in found][:6]
    return list(dict.fromkeys(found))[:8]


def _parts(tree: Iterable[Any]) -> Iterator[str]:
    """Texts that single parts of a pattern match."""
    for code, value in tree:
        if code in (codes.LITERAL, codes.IN, codes.ANY, codes.NOT_LITERAL):
            yield from _letters(code, value)
        for child in _children(code, value):
            yield _sample(child)
            yield from _parts(child)


def _repeats(tree: Iterable[Any], head: str) -> Iterator[Attack]:
    """Attacks that repeat a repeatable part after what the pattern wants before it, or the pattern's beginning."""
    for code, value in tree:
        for child in _children(code, value):
            if code in _REPEATS and value[1] > 8:
                yield from (Attack(head, piece) for piece in (*_parts(child), _sample(child)))
            yield from _repeats(child, head)
        head += _sample_of(code, value)
        yield Attack("", head)


def uses_in(file: str) -> Iterator[Use]:
    """Every pattern of a file, with the methods by which the file uses it."""
    source = (ROOT / file).read_text()
    module = importlib.import_module(".".join(Path(file).with_suffix("").parts))
    methods: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            name = getattr(node.value, "attr", getattr(node.value, "id", ""))
            methods.setdefault(name, set()).add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("re.") in _METHODS and node.args:
            literal = node.args[0]
            if ast.unparse(node.func).startswith("re.") and isinstance(literal, ast.Constant):
                yield Use(f"line {node.lineno}", re.compile(str(literal.value)), node.func.attr)  # type: ignore[attr-defined]
    for name, value in vars(module).items():
        for field, pattern in _patterns(name, value):
            for method in sorted(
                methods.get(field) or {"match" if "match" in methods.get("opening", ()) else "search"}
            ):
                yield Use(field, pattern, method)


def _patterns(name: str, value: object) -> Iterator[tuple[str, re.Pattern[str]]]:
    """(name, pattern) of each pattern that a value is or contains."""
    if isinstance(value, re.Pattern):
        yield name, value
    elif hasattr(value, "_asdict") and not isinstance(value, type):
        for field, inner in value._asdict().items():
            yield from _patterns(field, inner)
    elif isinstance(value, tuple | list | frozenset | set):
        for inner in value:
            yield from _patterns(name, inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _patterns(name, inner)


def write(head: str, piece: str, end: str, num_chars: int) -> str:
    return head + piece * (num_chars // len(piece)) + end


def on_bytes(run: Callable[[bytes], object], text: str) -> object:
    return run(text.encode())


def slow_text(pattern: re.Pattern[str], method: str, num_chars: int = NUM_CHARS) -> str | None:
    """Description of a text on which the time of a pattern's method grows too much; None if none is found."""
    run = getattr(pattern, "findall" if method == "finditer" else method)
    read = partial(run, "") if method == "sub" else run
    if isinstance(pattern.pattern, bytes):
        read = partial(on_bytes, run)
    for head, piece in sorted(attacks_on(pattern)):
        texts = [partial(write, head, piece, end) for end in ENDS]
        slow = [each for each in texts if seconds_of(read, each(GROWTH * num_chars)) > MIN_SECONDS]
        if any(growth(read, each, num_chars) > MAX_RATIO for each in slow):
            return f"{head!r} + n * {piece!r}"
    return None


def slow_uses(file: str) -> dict[str, str]:
    """{pattern and method: description of a text on which its time grows too much} for a file."""
    found = {f"{use.name}.{use.method}": slow_text(use.pattern, use.method) for use in uses_in(file)}
    return {name: text for name, text in found.items() if text is not None}


@pytest.fixture(scope="module")
def worker() -> Iterator[LimitedWorker]:
    worker = LimitedWorker()
    yield worker
    worker.close()


@pytest.mark.parametrize("file", FILES)
def test_no_pattern_takes_longer_than_the_length_of_its_text(file: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, slow_uses, file) == {}


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"<\s*(/?)\s*([a-z])", "finditer"),
        (r"(?:- [^\n]*\n)*- [^\n]*\s*\Z", "match"),
        (r"([^;]+);", "findall"),
    ],
)
def test_a_pattern_whose_time_grows_with_the_square_is_found(pattern: str, method: str, worker: LimitedWorker) -> None:
    assert worker.run(MAX_SECONDS, slow_text, re.compile(pattern, re.DOTALL), method, 1000) is not None


@pytest.mark.parametrize("pattern", [r"\{ *\(?([^{}()]*)\)? *\}", r"(a|aa)*c"])
def test_a_pattern_that_may_never_end_is_found_or_killed(pattern: str, worker: LimitedWorker) -> None:
    try:
        found = worker.run(1, slow_text, re.compile(pattern), "fullmatch")
    except TooMuchProcessorTimeError:
        return
    assert found is not None
