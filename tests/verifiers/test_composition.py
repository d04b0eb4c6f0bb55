"""verifiers.composition: which verifiers are asked, which verdict is final, and what is undecided."""

import pickle
from collections.abc import Iterator

import pytest

from tests.support.factories import CALL, make_turn
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, Message, Turn, Verdict
from verl_pivot.verifiers import registry
from verl_pivot.verifiers.registry import get_verifier, register

asked: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def verifiers() -> Iterator[None]:
    """Verifiers that always give one score, named by the score."""
    scores = {"one": 1.0, "half": 0.5, "zero": 0.0, "none": None}
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
    ],
)
async def test_a_verifier_may_decide_only_acceptances_or_only_refusals(first: str, decides: str, score: float) -> None:
    verdict = await ask("first_decided", {"name": first, "decides": decides}, {"name": "half"})

    assert verdict.score == score


async def test_an_undecided_verdict_quotes_the_reason_of_each_verifier() -> None:
    verdict = await ask("first_decided", {"name": "none"}, {"name": "zero", "decides": "acceptance"})

    assert verdict == Verdict(score=None, reason="nobody_decided", detail="none: said_none; zero: said_zero")


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
        ([{"name": "tool_call", "wieght": 2.0}], "wieght: unknown key; known: (decides, )?name, options"),
    ],
)
def test_a_part_with_wrong_options_is_refused(kind: str, parts: list[Json], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier(kind, {"verifiers": parts})


async def test_combined_verifiers_survive_pickle() -> None:
    verifier = get_verifier("first_decided", {"verifiers": [{"name": "tool_call"}]})

    copy = pickle.loads(pickle.dumps(verifier))

    assert (await copy(CALL, make_turn())).score == 1.0
