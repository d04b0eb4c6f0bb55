"""Keys of Python texts: equal keys mean equal syntax trees, however small the parts are that are parsed at once."""

import argparse
import ast
import dataclasses
import difflib
import inspect
import random
import shlex
import tokenize
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.verifiers import edit_python_statements
from verl_pivot.verifiers.edit_python_statements import MAX_PARSED, statements_of, tree_key

MODULES = [argparse, dataclasses, difflib, shlex]
BLOCKS = """
match x:
    case [1, *rest] if rest:
        pass
    case {"a": b}:
        y = "é"
        z = '''
  two
'''
    case _:
        pass
@one
@two(3)
async def f(a, /, b: int = 2, *, c) -> None:
    async with a as b, c:
        if b: return 1
        elif c:
            return (2,
                    3)
        else: pass
    try:
        yield
    except* E as e:
        del e
    else:
        pass
    finally:
        pass
class C(B, metaclass=M): x = 1; y = 2
class D:
    "Doc."
    for i in range(3):
        while i:
            break
        else:
            continue
    def g(self): return f"{self!r:>{i}}" "b" 'c'
type = match = case = 1
a = b; c = [
    1,  # one
    2,
]
"""
SNIPPETS = [
    "",
    "(",
    ")",
    ",",
    '"',
    "'",
    "\n",
    " ",
    "    ",
    "#",
    ":",
    "\\\n",
    ";",
    "x",
    "0",
    "else:\n",
    "pass\n",
    "@",
    "\f",
]


def dump_of(text: str) -> str | None:
    try:
        return ast.dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def key_of(text: str, indent: str = "") -> bytes | None:
    try:
        return tree_key(text, indent)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("max_parsed", [0, 60, 800, MAX_PARSED])
def test_real_files_have_keys_that_comments_and_blank_lines_do_not_change(
    module: ModuleType, max_parsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit_python_statements, "MAX_PARSED", max_parsed)
    text = inspect.getsource(module)
    statements = statements_of(text)
    rows = text.splitlines(keepends=True)
    spaced = "".join("".join(("# c\n\n", *rows[each.row : each.end_row], "\n# d\n")) for each in statements)

    assert [each.row for each in statements] == [
        min([each.lineno, *(found.lineno for found in getattr(each, "decorator_list", []))]) - 1
        for each in ast.parse(text).body
    ]
    assert key_of(text) == key_of(spaced) is not None
    assert key_of(text) == key_of(text.replace("\n", "\r\n"))


@pytest.mark.parametrize("max_parsed", [0, 30, 120])
@settings(deadline=None, max_examples=400)
@given(
    at=st.integers(0, len(BLOCKS)),
    num_removed=st.integers(0, 12),
    inserted=st.lists(st.sampled_from(SNIPPETS), max_size=3),
    is_indented=st.booleans(),
)
def test_texts_of_one_key_have_one_tree(
    max_parsed: int, at: int, num_removed: int, inserted: list[str], is_indented: bool
) -> None:
    text = BLOCKS[:at] + "".join(inserted) + BLOCKS[at + num_removed :]
    others = [BLOCKS, text]
    if is_indented:
        others = ["".join(f"  {row}" for row in each.splitlines(keepends=True)) for each in others]
    indent = "  " * is_indented
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edit_python_statements, "MAX_PARSED", max_parsed)
        expert, given_key = (key_of(each, indent) for each in others)

    assert expert is not None
    if given_key == expert:
        opening = "if 1:\n" * is_indented
        assert dump_of(opening + others[1]) == dump_of(opening + others[0])


@pytest.mark.parametrize("module", MODULES)
def test_mutants_of_real_files_with_one_key_have_one_tree(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_python_statements, "MAX_PARSED", 300)
    rng = random.Random(0)
    text = inspect.getsource(module)[:12_000].rsplit("\ndef ", 1)[0].rsplit("\nclass ", 1)[0]
    key, dump = key_of(text), dump_of(text)
    num_equal = 0
    for _ in range(150):
        at = rng.randrange(len(text))
        mutant = text[:at] + rng.choice(SNIPPETS) + text[at + rng.choice([0, 0, 1, 4]) :]
        if key_of(mutant) == key:
            num_equal += 1
            assert dump_of(mutant) == dump

    assert dump is not None
    assert num_equal > 0


@pytest.mark.parametrize(
    "text", ["if x:\n  a\n b\n", "(", '"""', "a = $\n", "\tif a:\n\t\tb\n", "def f(:\n  a\n", "else:\n  a\n"]
)
def test_what_is_no_python_has_no_key(text: str) -> None:
    assert key_of(text) is None
