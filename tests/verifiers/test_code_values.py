"""verifiers.code_values: what the runner in the sandbox writes is read as the value that it was, in bounded time."""

import enum
import json
import math
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.expression_runner import load_runner
from verl_pivot.verifiers.code_values import MAX_BYTES, read_values
from verl_pivot.verifiers.verdicts import Reason


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The runner's own function, as it is in the sandbox."""
    return load_runner(tmp_path_factory.mktemp("runner")).evaluate


def came_back(evaluate: Any, value: object) -> Any:
    content = f"[{evaluate('value', {'value': value}, MAX_BYTES)}]"
    (answer,) = read_values(content.encode(), 1) or []
    assert answer.problem is None, answer.detail
    return answer.value


hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(min_value=-100, max_value=100),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(hashable, inner) | st.sets(hashable),
    max_leaves=10,
)


@given(plain)
def test_every_plain_value_comes_back(evaluate: Any, value: object) -> None:
    again = came_back(evaluate, value)

    assert type(again) is type(value)
    assert again == value


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "equal"),
    [
        (Counter("aab"), Counter({"a": 2, "b": 1})),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (OrderedDict([(2, 1), (1, 2)]), OrderedDict([(2, 1), (1, 2)])),
        (Fraction(1, 3), Fraction(2, 6)),
        (Decimal("0.10"), Decimal("0.1")),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
        (frozenset({1}), {1}),
        (deque([1, 2]), deque([1, 2])),
        (range(3), range(0, 3, 1)),
        (numpy.int64(3), 3),
        (numpy.float64(0.5), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.bool_(True), True),
        (numpy.str_("a"), "a"),
        ({1: 2}.keys(), {1}),
        ({1: 2}.items(), {(1, 2)}),
        (2**40_000 + 1, 2**40_000 + 1),
        (-(2**40_000), -(2**40_000)),
        (bytearray(b"a"), b"a"),
        (1 + 2j, 1 + 2j),
        (UserDict({1: [2]}), {1: [2]}),
        (ChainMap({1: 2}, {3: 4}), {1: 2, 3: 4}),
        (MappingProxyType({1: 2}), {1: 2}),
        (UserList([1, (2,)]), [1, (2,)]),
        (UserString("ab"), "ab"),
        ([Counter({(1, 2): 3})], [Counter({(1, 2): 3})]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_the_library_equal_what_they_equal_in_python(evaluate: Any, value: object, equal: object) -> None:
    assert came_back(evaluate, value) == equal


def test_values_that_differ_in_python_differ_here(evaluate: Any) -> None:
    assert came_back(evaluate, OrderedDict([(2, 1), (1, 2)])) != OrderedDict([(1, 2), (2, 1)])
    assert came_back(evaluate, (number for number in [1])) != [1]
    assert list(came_back(evaluate, (number for number in [1]))) == [1]
    assert came_back(evaluate, math.nan) != math.nan


@pytest.mark.parametrize(
    "value", [object(), len, numpy.array([1, 2]), lambda: 1, type], ids=lambda value: type(value).__name__
)
def test_anything_else_is_no_plain_value(evaluate: Any, value: object) -> None:
    content = f"[{evaluate('value', {'value': value}, MAX_BYTES)}]"
    (answer,) = read_values(content.encode(), 1) or []

    assert answer.problem is Reason.WRONG_OUTPUT
    assert "not a plain value" in answer.detail


def test_a_value_that_is_too_large_is_named_so(evaluate: Any) -> None:
    content = f"[{evaluate('value', {'value': [7] * 500_000}, MAX_BYTES)}]"
    (answer,) = read_values(content.encode(), 1) or []
    (endless,) = read_values(f"[{evaluate('iter(int, 1)', {}, MAX_BYTES)}]".encode(), 1) or []
    (all_of_it,) = read_values(b"7" * (MAX_BYTES + 1), 1) or []

    assert {answer.problem, endless.problem, all_of_it.problem} == {Reason.OUTPUT_LIMIT}


COLLIDING = [number * (2**61 - 1) for number in range(1, 5_000)]


@pytest.mark.parametrize(
    "forged",
    [
        {"set": COLLIDING},
        {"frozenset": [[number] for number in COLLIDING]},
        {"frozenset": [{"tuple": [number]} for number in COLLIDING]},
        {"dict": [[number, 1] for number in COLLIDING]},
        {"Counter": [[number, 1] for number in COLLIDING]},
        {"keys": COLLIDING},
        {"range": [0, 10**12, 1]},
        {"Decimal": "1e999999999"},
        {"Decimal": "9" * 5000},
        {"Fraction": [1, 0]},
        {"Fraction": [{"int": "f" * 10_000}, {"int": "e" * 10_000}]},
        {"int": "no number"},
        {"set": 5},
        {"tuple": {"list": []}},
        {"unknown": []},
        {"set": [1], "dict": []},
        {},
    ],
    ids=lambda forged: str(forged)[:40],
)
def test_a_forged_value_is_refused_before_it_costs_anything(forged: object) -> None:
    (answer,) = read_values(json.dumps([{"value": forged}]).encode(), 1) or []

    assert answer.problem is Reason.WRONG_OUTPUT


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1, 2]", b"[" * 50_000, b"\xff", b"[" + b"9" * 5000 + b"]", b'"values"', b"null"]
)
def test_a_forged_file_is_no_list_of_values(content: bytes) -> None:
    assert read_values(content, 1) is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["value", "error", "set", "dict", "int", "Fraction", "range", "keys", "items", "complex"]
                ),
                inner,
            )
        ),
    )
)
def test_no_forged_content_raises(forged: object) -> None:
    answers = read_values(json.dumps([forged]).encode(), 1)

    assert answers is not None
    assert len(answers) == 1
