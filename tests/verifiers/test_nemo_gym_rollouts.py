"""Ten rollouts that NeMo Gym ships get the rewards of its own verifiers; five of them make no call."""

import json
from typing import Any

import pytest

from tests.support.factories import CALL, make_turn
from tests.support.paths import SHARED_DATA
from verl_pivot.formats.nemo_gym import read_nemo_gym
from verl_pivot.types import Message, Role, ToolCall
from verl_pivot.verifiers.registry import get_verifier

DATA = SHARED_DATA / "nemo_gym"
SINGLE_STEP = "single_step_tool_use_with_argument_comparison"
THRESHOLD = 0.1
"""Threshold in NeMo Gym's configuration of the environment SINGLE_STEP."""

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="NeMo Gym's rollouts are not at ../shared/data/nemo_gym")


def rollouts(name: str) -> list[dict[str, Any]]:
    lines = (DATA / f"{name}.example_rollouts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def sampled(row: dict[str, Any]) -> Message:
    """One action that holds all texts and calls of the response."""
    items = row["response"]["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    return Message(
        role=Role.ASSISTANT,
        content="\n".join(texts),
        tool_calls=tuple(ToolCall(name=call["name"], arguments=json.loads(call["arguments"])) for call in calls),
    )


@pytest.mark.parametrize("index", range(5))
async def test_a_rollout_gets_the_reward_that_nemo_gym_gave_it(index: int) -> None:
    row = rollouts(SINGLE_STEP)[index]
    *state, expert = read_nemo_gym(row).messages
    verifier = get_verifier("tool_call", {"mode": "nemo_gym", "threshold": THRESHOLD})

    verdict = await verifier(sampled(row), make_turn(state=state, expert=expert))

    assert verdict.score == row["reward"] == [1.0, 1.0, 0.0, 1.0, 0.0][index]


@pytest.mark.parametrize("index", range(5))
async def test_a_rollout_of_text_where_the_expert_calls_scores_0(index: int) -> None:
    """These rows have neither tools nor the expert's call, so any call stands in for the expert's."""
    row = rollouts("swe_pivot")[index]

    verdict = await get_verifier("tool_call", {"mode": "name_only"})(sampled(row), make_turn(expert=CALL))

    assert (verdict.score, verdict.reason) == (0.0, "message_instead_of_call")
    assert (row["reward"], row["failure_reason"]) == (0.0, "model_output_invalid")
