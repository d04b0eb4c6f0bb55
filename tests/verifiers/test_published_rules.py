"""Modes of `tool_call` against judges that are written from the published rules, over random calls.

Also `qa` against SQuAD's formula, `sql` against SQLite and Counter, and the asserts of `code` against Python itself.
"""

import random
import sqlite3
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.published_judges import leaderboard_calls, nemo_gym_accepts, toolrl_share
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.code_asserts import parse_assert
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.sql_rows import same_rows

NUM_PAIRS = [1_000, pytest.param(30_000, marks=pytest.mark.soak)]
TEXTS = ("", "a", "A", "a b", "b a", "a b c", "x y", "a  b", "a a b", "p q r s t")
LEAVES: tuple[Json, ...] = (0, 1, 2, 1.0, 1.0000005, 1.1, True, False, None, *TEXTS)
PLAIN: tuple[Json, ...] = (1, 2, 3, "m", "M", "km", True, None)


def draw_value(rng: random.Random, depth: int = 2) -> Json:
    kind = rng.random() if depth else 1.0
    if kind < 0.15:
        return [draw_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind < 0.3:
        return {name: draw_value(rng, depth - 1) for name in rng.sample("kl", rng.randrange(3))}
    return rng.choice(LEAVES)


def draw_calls(rng: random.Random, names: str) -> list[ToolCall]:
    arguments = [{name: draw_value(rng) for name in rng.sample("xyz", rng.randrange(4))} for _ in names]
    return [ToolCall(name=name, arguments=each) for name, each in zip(names, arguments, strict=True)]


def changed(rng: random.Random, calls: list[ToolCall]) -> list[ToolCall]:
    """The calls in another order, with single arguments changed, left out or added, and sometimes without a call."""
    found = [replace(call, arguments=_changed_arguments(rng, call.arguments)) for call in calls]
    rng.shuffle(found)
    return found[rng.random() < 0.1 :] or found


def _changed_arguments(rng: random.Random, arguments: JsonObject) -> JsonObject:
    kept: JsonObject = {name: draw_value(rng) if rng.random() < 0.2 else value for name, value in arguments.items()}
    if rng.random() < 0.1:
        kept[rng.choice("xyz")] = draw_value(rng)
    if kept and rng.random() < 0.1:
        del kept[rng.choice(list(kept))]
    return kept


def act(calls: list[ToolCall]) -> Message:
    return Message(role=Role.ASSISTANT, content="", tool_calls=tuple(calls))


async def score(options: JsonObject, calls: list[ToolCall], expert: list[ToolCall]) -> float | None:
    return (await get_verifier("tool_call", options)(act(calls), make_turn(expert=act(expert), tools=()))).score


@pytest.mark.parametrize("num_pairs", NUM_PAIRS)
async def test_nemo_gym_is_the_published_rule(num_pairs: int) -> None:
    rng, verdicts = random.Random(0), Counter[float]()
    for _ in range(num_pairs):
        threshold = rng.choice([0.1, 0.3, 0.5])
        expert = draw_calls(rng, "".join(rng.choices("fg", k=rng.randint(1, 3))))
        calls = [*changed(rng, expert), *draw_calls(rng, rng.choice(["", "", "f"]))]
        paid = float(nemo_gym_accepts(calls, expert, threshold))
        verdicts[paid] += 1

        assert await score({"mode": "nemo_gym", "threshold": threshold}, calls, expert) == paid, (calls, expert)
    assert min(verdicts[0.0], verdicts[1.0]) > num_pairs / 10, verdicts


@pytest.mark.parametrize("num_pairs", NUM_PAIRS)
async def test_toolrl_is_the_published_rule(num_pairs: int) -> None:
    rng, shares = random.Random(0), set()
    for _ in range(num_pairs):
        expert = draw_calls(rng, "".join(rng.sample("fgh", rng.randint(1, 3))))
        calls = changed(rng, expert) if rng.random() < 0.7 else draw_calls(rng, "".join(rng.sample("fgh", 2)))
        share = toolrl_share(calls, expert)
        shares.add(round(share, 3))

        assert await score({"mode": "toolrl"}, calls, expert) == pytest.approx(share), (calls, expert)
    assert len(shares) > 30


@pytest.mark.parametrize("num_pairs", NUM_PAIRS)
async def test_accepted_values_are_the_leaderboards(num_pairs: int) -> None:
    """Verdicts on values with their types: the Leaderboard asks for the type before the value."""
    rng, verdicts = random.Random(0), Counter[float]()
    for _ in range(num_pairs):
        values = {
            name: [*rng.sample(PLAIN, rng.randint(1, 3)), *rng.choice([[], [""]])] for name in rng.sample("xy", 2)
        }
        given_values: JsonObject = {
            name: rng.choice(values[name] if name in values and rng.random() < 0.8 else PLAIN)
            for name in rng.sample("xyz", rng.choice([1, 2, 2, 2, 3]))
        }
        row: JsonObject = {"f": {name: list(each) for name, each in values.items()}}
        paid = float(_typed(given_values) in [_typed(call.arguments) for call in leaderboard_calls(row)])
        verdicts[paid] += 1
        call = ToolCall(name="f", arguments=given_values)

        assert await score({"mode": "accepted_values", "accepted": [row]}, [call], []) == paid, (row, call)
    assert min(verdicts[0.0], verdicts[1.0]) > num_pairs / 10, verdicts


def _typed(arguments: JsonObject) -> dict[str, tuple[type, Json]]:
    return {name: (type(value), value) for name, value in arguments.items()}


WORDS = st.lists(st.sampled_from(["paris", "lyon", "new", "york", "tower"]), min_size=1, max_size=5)


@given(WORDS, WORDS)
async def test_f1_of_answers_is_that_of_their_words(given_words: list[str], expert_words: list[str]) -> None:
    """F1 as SQuAD defines it: the harmonic mean of precision and recall of words."""
    answer, expert = (Message(role=Role.ASSISTANT, content=" ".join(each)) for each in (given_words, expert_words))
    num_shared = sum(min(given_words.count(word), expert_words.count(word)) for word in set(given_words))
    precision, recall = num_shared / len(given_words), num_shared / len(expert_words)
    f1 = 2 * precision * recall / (precision + recall) if num_shared else 0.0

    verdict = await get_verifier("qa", {"metric": "f1", "place": "all"})(answer, make_turn(expert=expert))

    assert verdict.score == pytest.approx(f1)


PYTHON_VALUES = st.recursive(
    st.sampled_from([0, 1, 1.0, 2, True, None, "1", b"1", 0.5, float("inf")]),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@given(PYTHON_VALUES, PYTHON_VALUES, st.sampled_from(["==", "!=", "in", "is"]))
def test_an_assert_holds_where_pythons_does(value: object, expected: object, operator: str) -> None:
    literal = repr(expected).replace("inf", "float('inf')")
    assume(operator != "is" or expected is None or isinstance(expected, bool))
    text = f"f(1) {operator} {literal}"
    try:
        holds = bool(eval(text, {"f": lambda _: value}))
    except TypeError:
        holds = False

    assert parse_assert(f"assert {text}").holds([value]) == holds


ROWS = st.lists(st.tuples(st.sampled_from([0, 1, None]), st.sampled_from(["a", "b", None])), max_size=4)


@given(ROWS, ROWS)
def test_rows_are_equal_where_sqlite_finds_no_difference(
    first: list[tuple[int | None, str | None]], second: list[tuple[int | None, str | None]]
) -> None:
    database = sqlite3.connect(":memory:")
    for name, rows in (("first", first), ("second", second)):
        database.execute(f"create table {name} (n, t)")
        database.executemany(f"insert into {name} values (?, ?)", rows)
    counted = "select n, t, count(*) from {} group by n, t"
    difference = " union all ".join(
        f"select * from ({counted.format(one)} except {counted.format(other)})"
        for one, other in (("first", "second"), ("second", "first"))
    )
    is_same = database.execute(difference).fetchall() == []
    database.close()

    lists: list[list[list[Json]]] = [[list(row) for row in rows] for rows in (first, second)]
    assert same_rows(*lists, is_ordered=False) == is_same
    assert is_same == (Counter(first) == Counter(second))
