"""Attacks on `tool_call`: no completion is paid without the expert's call; docs/verifier_attacks.md lists them."""

import pytest

from tests.support.paths import ROOT
from tests.support.tool_call_attacks import ATTACKS, RIGHT, turn_of
from verl_pivot.types import Verdict
from verl_pivot.verifiers.scoring import score_completion

PAGE = ROOT / "docs" / "verifier_attacks.md"


async def judge(text: str, mode: str) -> Verdict:
    return await score_completion(text, True, turn_of(mode))


@pytest.mark.parametrize("mode", ["functional", "strict"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_refused(attack: str, mode: str) -> None:
    verdict = await judge(ATTACKS[attack], mode)

    assert verdict.score == 0.0, verdict
    assert len(verdict.detail) < 1000


@pytest.mark.parametrize("mode", ["functional", "strict", "name_only", "nemo_gym", "toolrl"])
async def test_the_right_call_is_accepted_whatever_is_said_around_it(mode: str) -> None:
    for text in (RIGHT, f"<think>The order is 17.</think>{RIGHT}", f"I refund it now.\n{RIGHT}"):
        assert (await judge(text, mode)).score == 1.0


async def test_the_page_shows_what_each_rule_pays() -> None:
    rows = []
    for attack, text in ATTACKS.items():
        ours, published, graded = [await judge(text, mode) for mode in ("functional", "nemo_gym", "toolrl")]
        assert ours.score is not None
        assert published.score is not None
        assert graded.score is not None
        rows.append(f"| {attack} | {ours.score:.0f}, `{ours.reason}` | {published.score:.0f} | {graded.score:.2f} |")

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
