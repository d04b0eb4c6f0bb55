"""verifiers.composition: which verifiers are asked, which verdict is final, and what is undecided."""

import asyncio
import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import CALL, make_turn
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message, Turn, Verdict
from verl_pivot.verifiers import registry
from verl_pivot.verifiers.registry import get_verifier, register

asked: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def verifiers() -> Iterator[None]:
    """Register verifiers that always give the score which their name says."""
    scores = {"one": 1.0, "half": 0.5, "third": 1 / 3, "zero": 0.0, "none": None}
    for name, score in scores.items():
        register(name)(_always(name, score))
    yield
    for name in scores:
        del registry._verifiers._registered[name]


def _always(name: str, score: float | None) -> registry.Verifier:
    async def verifier(action: Message, turn: Turn) -> Verdict:
        asked.append(name)
        return Verdict(score=score, reason=f"said_{name}")

    return verifier


async def ask(kind: str, *parts: Json) -> Verdict:
    asked.clear()
    return await get_verifier(kind, {"verifiers": list(parts)})(CALL, make_turn())


async def test_no_verifier_is_asked_after_a_final_verdict() -> None:
    verdict = await ask("first_decided", {"name": "none"}, {"name": "zero"}, {"name": "one"})

    assert (verdict.score, verdict.reason) == (0.0, "said_zero")
    assert asked == ["none", "zero"]


@pytest.mark.parametrize(
    ("first", "decides", "score"),
    [
        ("one", "acceptance", 1.0),
        ("zero", "acceptance", 0.5),
        ("half", "acceptance", 0.5),
        ("zero", "refusal", 0.0),
        ("one", "refusal", 0.5),
        ("third", "refusal", 0.5),
        ("third", "both", 1 / 3),
    ],
)
async def test_a_verifier_may_decide_only_acceptances_or_only_refusals(first: str, decides: str, score: float) -> None:
    verdict = await ask("first_decided", {"name": first, "decides": decides}, {"name": "half"})

    assert verdict.score == score


@pytest.mark.parametrize(
    ("part", "score"),
    [
        ({"name": "third", "decides": "acceptance", "min_accepted": 0.3}, 1 / 3),
        ({"name": "third", "decides": "acceptance", "min_accepted": 0.4}, 0.5),
        ({"name": "third", "decides": "refusal", "max_refused": 0.4}, 1 / 3),
        ({"name": "third", "decides": "refusal", "max_refused": 0.3}, 0.5),
        ({"name": "none", "decides": "refusal", "max_refused": 0.9}, 0.5),
    ],
)
async def test_the_scores_that_accept_and_refuse_have_bounds(part: Json, score: float) -> None:
    assert (await ask("first_decided", part, {"name": "half"})).score == score


async def combine(rule: str, *parts: Json) -> Verdict:
    return await get_verifier("weighted", {"rule": rule, "verifiers": list(parts)})(CALL, make_turn())


@pytest.mark.parametrize(
    ("rule", "names", "score", "reason"),
    [
        ("min", ["one", "one"], 1.0, "accepted"),
        ("min", ["one", "half", "third"], 1 / 3, "partial"),
        ("product", ["one", "half", "third"], 1 / 6, "partial"),
        ("product", ["one", "one"], 1.0, "accepted"),
        ("min", ["one", "zero"], 0.0, "said_zero"),
        ("product", ["zero", "none"], 0.0, "said_zero"),
        ("min", ["none", "one", "zero"], 0.0, "said_zero"),
        ("min", ["none", "one"], None, "said_none"),
        ("product", ["half", "none"], None, "said_none"),
        ("mean", ["zero", "none"], None, "said_none"),
    ],
)
async def test_all_of_several_verifiers_must_accept(
    rule: str, names: list[str], score: float | None, reason: str
) -> None:
    verdict = await combine(rule, *({"name": name} for name in names))

    assert (verdict.score, verdict.reason) == (None if score is None else pytest.approx(score), reason)


async def test_a_part_closes_the_gate_below_its_least_score() -> None:
    gate: Json = {"name": "half", "min_score": 0.6}

    assert (await combine("mean", {"name": "one"}, gate)).score == 0.0
    assert (await combine("mean", {"name": "none"}, gate)).score == 0.0
    assert (await combine("mean", {"name": "one"}, {"name": "half", "min_score": 0.5})).score == 0.75
    assert (await combine("mean", {"name": "one"}, {"name": "none", "min_score": 0.5})).score is None


members = st.lists(st.sampled_from(["one", "half", "third", "zero", "none"]), min_size=1, max_size=5)


@given(members)
async def test_the_product_is_at_most_the_least_score_and_that_at_most_the_mean(names: list[str]) -> None:
    parts: list[Json] = [{"name": name} for name in names]
    product, least, mean = [(await combine(rule, *parts)).score for rule in ("product", "min", "mean")]

    assert (mean is None) == ("none" in names)
    assert (product is None) == (least is None) == ("none" in names and "zero" not in names)
    if product is not None and least is not None and mean is not None:
        assert product <= least + 1e-12
        assert least <= mean + 1e-12


def nested(depth: int) -> Json:
    part: Json = {"name": "one"}
    for _ in range(depth):
        part = {"name": "weighted", "options": {"verifiers": [part]}}
    return part


async def test_verifiers_may_stand_within_each_other_but_not_without_end() -> None:
    assert (await combine("mean", nested(7))).score == 1.0
    for depth in (20, 200, 5000):
        with pytest.raises(ConfigError, match="deep"):
            get_verifier("weighted", {"verifiers": [nested(depth)]})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("weighted", {"rule": "min", "verifiers": [{"name": "one", "weight": 2.0}]}, "rule 'min' takes no weights"),
        ("weighted", {"verifiers": [{"name": "one", "weight": 1e308}]}, "weight: Input should be less than or equal"),
        ("weighted", {"verifiers": [{"name": "one", "weight": float("inf")}]}, "weight: Input should be less than"),
        ("weighted", {"verifiers": [{"name": "one", "weight": float("nan")}]}, "weight: Input should be"),
        ("weighted", {"verifiers": [{"name": "one", "min_score": 2.0}]}, "min_score: Input should be"),
        ("first_decided", {"verifiers": [{"name": "one", "min_accepted": 0.5}]}, "min_accepted has no effect if"),
        ("first_decided", {"verifiers": [{"name": "one", "decides": "acceptance", "max_refused": 0.5}]},
         "max_refused has no effect if decides is 'acceptance'"),
    ],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(kind: str, options: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier(kind, options)


async def test_an_undecided_verdict_quotes_the_reason_of_each_verifier() -> None:
    verdict = await ask("first_decided", {"name": "none"}, {"name": "zero", "decides": "acceptance"})

    assert verdict == Verdict(score=None, reason="nobody_decided", detail="none: said_none; zero: said_zero")


async def test_parts_are_given_up_once_one_raises() -> None:
    ended: list[str] = []

    async def slow(action: Message, turn: Turn) -> Verdict:
        try:
            await asyncio.sleep(600.0)
        finally:
            ended.append("slow")
        return Verdict.accept()

    async def broken(action: Message, turn: Turn) -> Verdict:
        raise ZeroDivisionError

    for name, verifier in (("slow", slow), ("broken", broken)):
        register(name)(verifier)
    try:
        with pytest.raises(ZeroDivisionError):
            await ask("weighted", {"name": "slow"}, {"name": "broken"})
    finally:
        for name in ("slow", "broken"):
            del registry._verifiers._registered[name]

    assert ended == ["slow"]


async def test_strict_then_functional_accepts_what_either_accepts() -> None:
    strict: Json = {"name": "tool_call", "options": {"mode": "strict"}, "decides": "acceptance"}

    verdict = await ask("first_decided", strict, {"name": "tool_call"})

    assert (verdict.score, verdict.reason) == (1.0, "accepted")


@pytest.mark.parametrize(
    ("parts", "score", "reason"),
    [
        ([("one", 1.0), ("one", 3.0)], 1.0, "accepted"),
        ([("one", 3.0), ("zero", 1.0)], 0.75, "partial"),
        ([("half", 1.0), ("zero", 1.0)], 0.25, "partial"),
        ([("zero", 1.0), ("zero", 2.0)], 0.0, "said_zero"),
        ([("one", 1.0), ("none", 1e-9)], None, "said_none"),
    ],
)
async def test_weighted_gives_the_mean_of_the_scores_or_is_undecided(
    parts: list[tuple[str, float]], score: float | None, reason: str
) -> None:
    verdict = await ask("weighted", *({"name": name, "weight": weight} for name, weight in parts))

    assert (verdict.score, verdict.reason) == (score, reason)


@pytest.mark.parametrize("kind", ["first_decided", "weighted"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "verifiers: Tuple should have at least 1 item"),
        ([{"name": "nobody"}], "unknown verifier 'nobody'"),
        ([{"name": "tool_call", "options": {"mode": "loose"}}], "tool_call.mode: Input should be"),
        (
            [{"name": "tool_call", "wieght": 2.0}],
            "wieght: unknown key; known: (decides, max_refused, min_accepted|min_score), name, options",
        ),
    ],
)
def test_a_part_with_wrong_options_is_refused(kind: str, parts: list[Json], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier(kind, {"verifiers": parts})


async def test_combined_verifiers_survive_pickle() -> None:
    verifier = get_verifier("first_decided", {"verifiers": [{"name": "tool_call"}]})

    copy = pickle.loads(pickle.dumps(verifier))

    assert (await copy(CALL, make_turn())).score == 1.0
