"""Labelled pairs of a real expert's calls: each mode's number of accepted equivalent pairs, and of different pairs."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.factories import make_turn
from tests.support.paths import SHARED_DATA
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.registry import get_verifier

ROOT = SHARED_DATA / "tau_airline"
PAIRS = Path(__file__).with_name("tau_airline_pairs.txt")
PROSE: JsonObject = {"free_text": ["transfer_to_human_agents.summary"], "min_similarity": 0.5}

pytestmark = pytest.mark.skipif(
    not ROOT.is_dir(), reason="tau-bench's trajectories are not at ../shared/data/tau_airline"
)


class Pair(NamedTuple):
    first: ToolCall
    second: ToolCall
    label: str


def trajectories() -> Iterator[dict[str, Any]]:
    for line in (ROOT / "gpt-4o-airline.jsonl").read_text().splitlines():
        yield json.loads(line)


def calls(messages: list[dict[str, Any]]) -> Iterator[ToolCall]:
    for message in messages:
        for call in message.get("tool_calls") or []:
            function = call["function"]
            yield ToolCall(name=function["name"], arguments=json.loads(function["arguments"]))


def pairs() -> list[Pair]:
    messages = {(row["task_id"], row["trial"]): row["traj"] for row in trajectories()}
    labelled = []
    for line in PAIRS.read_text().splitlines():
        if not line.startswith("#"):
            *numbers, label = line.split()
            task, trial, at, other_trial, other_at = map(int, numbers)
            first, second = messages[task, trial][at], messages[task, other_trial][other_at]
            labelled.append(Pair(next(calls([first])), next(calls([second])), label))
    return labelled


def tools() -> list[JsonObject]:
    """The airline's schemas, with a format where descriptions state one in words, and insurance "no" by default."""
    schemas: list[JsonObject] = json.loads((ROOT / "airline_tools.json").read_text())
    for schema in schemas:
        _mark(schema)
    return schemas


def _mark(schema: Json) -> None:
    if isinstance(schema, dict):
        if "YYYY-MM-DD" in str(schema.get("description")) and schema.get("type") == "string":
            schema["format"] = "date"
        if isinstance(required := schema.get("required"), list) and "insurance" in required:
            required.remove("insurance")
        for name, each in schema.items():
            if name == "insurance" and isinstance(each, dict):
                each["default"] = "no"
            _mark(each)
    elif isinstance(schema, list):
        for each in schema:
            _mark(each)


def accepted(cases: list[tuple[ToolCall, ToolCall]], **options: Json) -> int:
    """Number of cases (expert's call, another call) that the verifier tool_call accepts."""
    verifier, schemas = get_verifier("tool_call", options), tools()

    def action(call: ToolCall) -> Message:
        return Message(role=Role.ASSISTANT, tool_calls=(call,))

    async def count() -> int:
        verdicts = [
            await verifier(action(other), make_turn(expert=action(call), tools=schemas)) for call, other in cases
        ]
        return sum(verdict.score == 1.0 for verdict in verdicts)

    return asyncio.run(count())


def labelled(label: str) -> list[tuple[ToolCall, ToolCall]]:
    return [(pair.first, pair.second) for pair in pairs() if pair.label == label]


def test_there_are_enough_pairs_of_every_sort() -> None:
    counts = Counter((pair.first.name, pair.label) for pair in pairs())

    assert all(
        pair.first.name == pair.second.name and pair.first.arguments != pair.second.arguments for pair in pairs()
    )
    assert counts == {
        ("book_reservation", "different"): 34,
        ("update_reservation_flights", "different"): 42,
        ("update_reservation_baggages", "different"): 1,
        ("cancel_reservation", "different"): 5,
        ("search_onestop_flight", "different"): 2,
        ("calculate", "different"): 67,
        ("calculate", "same"): 6,
        ("transfer_to_human_agents", "same"): 15,
    }


@pytest.mark.parametrize("options", [{"mode": "strict"}, {}, {"dates": True, "enums": True, "paths": True, **PROSE}])
def test_no_pair_that_does_something_else_is_accepted(options: JsonObject) -> None:
    assert accepted(labelled("different"), **options) == 0


@pytest.mark.parametrize(
    ("options", "num_accepted"), [({"mode": "strict"}, 0), ({}, 0), (PROSE, 6), ({"mode": "name_only"}, 21)]
)
def test_number_of_the_21_equivalent_pairs_that_each_mode_accepts(options: JsonObject, num_accepted: int) -> None:
    """The other pairs need a judge: six sums that are written differently, and nine summaries that give other numbers,
    negate more often or use other words."""
    assert accepted(labelled("same"), **options) == num_accepted


def test_name_only_accepts_every_pair() -> None:
    assert accepted(labelled("different"), mode="name_only") == 151


def reordered(call: ToolCall) -> JsonObject | None:
    changed = dict(reversed(call.arguments.items()))
    return changed if len(changed) > 1 else None


def as_float(value: Json) -> Json:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, dict):
        return {name: as_float(each) for name, each in value.items()}
    return [as_float(each) for each in value] if isinstance(value, list) else value


def numbers_as_floats(call: ToolCall) -> JsonObject | None:
    changed = as_float(call.arguments)
    assert isinstance(changed, dict)
    return changed if json.dumps(changed) != json.dumps(call.arguments) else None


def in_words(value: Json) -> Json:
    if isinstance(value, str):
        try:
            day = date.fromisoformat(value)
        except ValueError:
            return value
        return f"{day:%B} {day.day}, {day.year}"
    if isinstance(value, dict):
        return {name: in_words(each) for name, each in value.items()}
    return [in_words(each) for each in value] if isinstance(value, list) else value


def dates_in_words(call: ToolCall) -> JsonObject | None:
    changed = in_words(call.arguments)
    assert isinstance(changed, dict)
    return changed if changed != call.arguments else None


def without_default(call: ToolCall) -> JsonObject | None:
    if call.arguments.get("insurance") != "no":
        return None
    return {name: value for name, value in call.arguments.items() if name != "insurance"}


def rewritten(rewrite: Callable[[ToolCall], JsonObject | None]) -> list[tuple[ToolCall, ToolCall]]:
    """Pairs (call, rewritten call) of all expert calls that the rewriting applies to."""
    everything = [call for row in trajectories() for call in calls(row["traj"])]
    return [
        (call, ToolCall(name=call.name, arguments=changed))
        for call in everything
        if (changed := rewrite(call)) is not None
    ]


@pytest.mark.parametrize(
    ("rewrite", "num_cases", "num_strict"),
    [(reordered, 261, 261), (numbers_as_floats, 52, 0), (dates_in_words, 247, 0), (without_default, 38, 0)],
)
def test_functional_accepts_every_rewritten_call_and_strict_misses_most(
    rewrite: Callable[[ToolCall], JsonObject | None], num_cases: int, num_strict: int
) -> None:
    cases = rewritten(rewrite)

    assert len(cases) == num_cases
    assert accepted(cases, mode="strict") == num_strict
    assert accepted(cases, dates=True) == num_cases


def test_a_rewriting_of_another_call_is_refused() -> None:
    """Calls are rewritten as above after a digit of their dates was changed, or one was put before their numbers."""

    def later(call: ToolCall) -> JsonObject | None:
        changed = json.loads(json.dumps(call.arguments).replace("2024-05-2", "2024-05-1"))
        other = dates_in_words(ToolCall(name=call.name, arguments=changed))
        return other if changed != call.arguments else None

    def more(call: ToolCall) -> JsonObject | None:
        text = json.dumps(call.arguments)
        changed = json.loads(text.replace('"amount": ', '"amount": 1').replace('_baggages": ', '_baggages": 1'))
        return numbers_as_floats(ToolCall(name=call.name, arguments=changed)) if changed != call.arguments else None

    cases = [*rewritten(later), *rewritten(more)]

    assert len(cases) > 100
    assert accepted(cases, dates=True, enums=True, paths=True) == 0
