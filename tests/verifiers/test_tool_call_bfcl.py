"""Berkeley Function-Calling Leaderboard v4: all of its accepted values are accepted, and no mutation of them."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.factories import make_turn
from tests.support.paths import SHARED_DATA
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.registry import Verifier, get_verifier

DATA = SHARED_DATA / "bfcl"
NUM_ROWS = {"simple_python": 400, "multiple": 200, "parallel": 200}
MAX_COMBINATIONS = 5000

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the leaderboard's data are not at ../shared/data/bfcl")


def rows(name: str) -> Iterator[tuple[str, list[JsonObject]]]:
    """(id, one object of accepted values per call of the expert)"""
    for line in (DATA / f"possible_answer_BFCL_v4_{name}.json").read_text().splitlines():
        row = json.loads(line)
        yield row["id"], row["ground_truth"]


def choices(accepted: Json) -> list[Json]:
    """Every value that one accepted value allows."""
    if isinstance(accepted, dict):
        return list(objects(accepted))
    if isinstance(accepted, list):
        return [list(items) for items in itertools.product(*map(choices, accepted))]
    return [accepted]


def objects(accepted: JsonObject) -> Iterator[JsonObject]:
    """Every object of arguments that the lists allow; an argument whose list has an empty text may be left out."""
    options = [
        [(name, value) for each in values for value in ([None] if each == "" else choices(each))]
        if isinstance(values, list)
        else []
        for name, values in accepted.items()
    ]
    left_out = {name for name, values in accepted.items() if isinstance(values, list) and "" in values}
    for picked in itertools.product(*options):
        yield {name: value for name, value in picked if not (value is None and name in left_out)}


def calls_of(accepted: JsonObject) -> Iterator[ToolCall]:
    ((name, arguments),) = accepted.items()
    assert isinstance(arguments, dict)
    for each in objects(arguments):
        yield ToolCall(name=name, arguments=each)


def act(*calls: ToolCall) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=calls)


def verifier_of(accepted: list[JsonObject]) -> Verifier:
    return get_verifier("tool_call", {"mode": "accepted_values", "accepted": list(accepted)})


async def score(verifier: Verifier, *calls: ToolCall) -> float | None:
    return (await verifier(act(*calls), make_turn(expert=act(*calls[:1]), tools=()))).score


@pytest.mark.parametrize("name", NUM_ROWS)
async def test_every_combination_of_accepted_values_is_accepted(name: str) -> None:
    num_rows = num_actions = 0
    for row_id, accepted in rows(name):
        verifier = verifier_of(accepted)
        first = [next(calls_of(each)) for each in accepted]
        for index, each in enumerate(accepted):
            for call in itertools.islice(calls_of(each), MAX_COMBINATIONS):
                action = [*first[:index], call, *first[index + 1 :]]
                assert await score(verifier, *reversed(action)) == 1.0, (row_id, call)
                num_actions += 1
        num_rows += 1

    assert num_rows == NUM_ROWS[name]
    assert num_actions > num_rows


def mutations(call: ToolCall, accepted: JsonObject) -> Iterator[tuple[str, ToolCall]]:
    lists = accepted[call.name]
    assert isinstance(lists, dict)
    yield "other function", ToolCall(name=f"{call.name}_2", arguments=call.arguments)
    yield "unknown argument", ToolCall(name=call.name, arguments={**call.arguments, "a_new_one": 1})
    for name, value in call.arguments.items():
        if "" not in (lists[name] or ()):  # type: ignore[operator]
            rest = {other: each for other, each in call.arguments.items() if other != name}
            yield "missing argument", ToolCall(name=call.name, arguments=rest)
        for wrong in wrong_values(value):
            yield "wrong value", ToolCall(name=call.name, arguments={**call.arguments, name: wrong})


def wrong_values(value: Json) -> list[Json]:
    if isinstance(value, bool):
        return [str(value), int(value)]
    if isinstance(value, int | float):
        return [value + 1234.5, str(value), [value]]
    if isinstance(value, str):
        return [value + " and more", [value], f" {value}", ""]
    if isinstance(value, list):
        return [[*value, *value[:1], "x"], {"items": value}]
    return [[value], None if value is not None else 0]


@pytest.mark.parametrize("name", NUM_ROWS)
async def test_no_mutation_is_accepted(name: str) -> None:
    refused: Counter[str] = Counter()
    for row_id, accepted in rows(name):
        verifier = verifier_of(accepted)
        calls = [next(calls_of(each)) for each in accepted]
        for index, (call, each) in enumerate(zip(calls, accepted, strict=True)):
            for kind, mutated in mutations(call, each):
                action = [*calls[:index], mutated, *calls[index + 1 :]]
                assert await score(verifier, *action) == 0.0, (row_id, kind, mutated)
                refused[kind] += 1
        for kind, action in (("a call too many", [*calls, calls[0]]), ("a call too few", calls[1:])):
            assert await score(verifier, *action) == 0.0, (row_id, kind)
            refused[kind] += 1

    assert min(refused.values()) >= NUM_ROWS[name]
    assert len(refused) == 6
