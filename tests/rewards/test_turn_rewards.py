"""Positions of rewards in verl's rows, and what verl's estimators make of them, computed by hand."""

import math
from typing import Any

import pytest
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo import core_algos

from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord
from verl_pivot.rewards.turn_rewards import TurnRewardOutput

MASK = [1, 1, 0, 0, 1, 0, 1, 1]
"""Mask of three turns of two, one and two tokens, with observations between them."""
TURN_ENDS = [2, 5, 8]


def output(mask: list[int] = MASK, ends: list[int] | None = None, **fields: Any) -> TurnRewardOutput:
    return TurnRewardOutput(
        prompt_ids=[1, 2],
        response_ids=list(range(len(mask))),
        response_mask=mask,
        turn_ends=TURN_ENDS if ends is None else ends,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        **fields,
    )


def judged(rewards: tuple[float, ...], outcome: float, mask: list[int] = MASK, ends: list[int] | None = None) -> Any:
    """Scores per token of a rollout whose turns were judged."""
    record = ProcessRecord(rewards=rewards, scores=())
    info = {"score": outcome, PROCESS_FIELD: record.as_text()}
    made = output(mask, ends, reward_score=outcome, extra_fields={"reward_extra_info": info})
    return made.as_dict()["rm_scores"].tolist()


def test_each_turn_has_its_reward_on_its_last_token_and_all_other_tokens_have_none() -> None:
    assert judged((-0.25, -0.5, 0.0), 0.0) == [0.0, -0.25, 0.0, 0.0, -0.5, 0.0, 0.0, 0.0]
    assert judged((0.75, 0.5, 1.0), 1.0) == [0.0, 0.75, 0.0, 0.0, 0.5, 0.0, 0.0, 1.0]


def test_the_outcome_stands_once_also_where_the_last_turn_gets_none() -> None:
    assert judged((0.75, 0.5, 0.0), 1.0) == [0.0, 0.75, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]


def test_without_rewards_of_turns_the_outcome_stands_on_the_last_sampled_token() -> None:
    late = [1, 1, 0, 1, 0, 0]
    info = {"score": 1.0, PROCESS_FIELD: ""}

    row = output(late, [2, 4], reward_score=1.0, extra_fields={"reward_extra_info": info}).as_dict()

    assert row["rm_scores"].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert judged((0.5, 1.0), 1.0, late, [2, 4]) == [0.0, 0.5, 0.0, 1.0, 0.0, 0.0]


def test_rewards_of_calls_are_paid_in_the_place_of_their_sum() -> None:
    row = output(reward_score=3.5, call_rewards=[1.0, 0.0, 2.5]).as_dict()
    masked = output(reward_score=math.nan).as_dict()

    assert row["rm_scores"].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5]
    assert "call_rewards" not in row
    assert math.isnan(masked["rm_scores"].tolist()[-1])


def test_an_undecided_reward_stays_undecided_and_a_row_without_a_sampled_token_keeps_its_place() -> None:
    undecided = output(reward_score=math.nan).as_dict()["rm_scores"]
    nothing = output([0, 0], [], reward_score=0.5).as_dict()["rm_scores"]

    assert undecided.isnan().tolist() == [False] * 7 + [True]
    assert nothing.tolist() == [0.0, 0.5]


def test_a_row_that_nobody_rewarded_has_no_scores() -> None:
    assert "rm_scores" not in output().as_dict()


def test_rewards_that_are_not_one_for_each_turn_are_refused() -> None:
    with pytest.raises(ValueError, match="there must be one reward for each of 3 turns, got 2"):
        judged((0.5, 1.0), 1.0)


def test_rewards_that_an_agent_loop_sets_are_added_to_that_of_the_rollout() -> None:
    row = output(reward_score=1.0, turn_rewards=[0.1, 0.2, 0.3]).as_dict()

    assert row["rm_scores"].tolist() == pytest.approx([0.0, 0.1, 0.0, 0.0, 0.2, 0.0, 0.0, 1.3])
    assert "turn_rewards" not in row


def test_stock_verl_puts_the_outcome_on_the_last_token_of_all() -> None:
    """If this fails, verl has changed `as_dict`: see rewards/turn_rewards.py."""
    late = [1, 1, 0, 1, 0, 0]
    stock = AgentLoopOutput(
        prompt_ids=[1], response_ids=late, response_mask=late, reward_score=1.0, metrics=AgentLoopMetrics()
    )

    assert stock.as_dict()["rm_scores"].tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def gae(rewards: list[float], mask: list[int], values: list[float] | None = None) -> list[float]:
    """Returns of verl's GAE with gamma = lambda = 1, on the tokens of the mask."""
    row = torch.tensor([rewards])
    _, returns = core_algos.compute_gae_advantage_return(
        token_level_rewards=row,
        values=torch.tensor([values or [0.0] * len(rewards)]),
        response_mask=torch.tensor([mask]),
        gamma=torch.tensor(1.0),
        lam=torch.tensor(1.0),
    )
    return [value for value, is_sampled in zip(returns[0].tolist(), mask, strict=True) if is_sampled]


def reinforce(rewards: list[float], mask: list[int]) -> list[float]:
    """Returns of verl's REINFORCE++ with gamma = 1, on the tokens of the mask."""
    _, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards=torch.tensor([rewards]),
        response_mask=torch.tensor([mask]),
        config=core_algos.AlgoConfig(gamma=1.0),
    )
    return [value for value, is_sampled in zip(returns[0].tolist(), mask, strict=True) if is_sampled]


def test_gae_gives_each_turn_its_own_reward_and_those_of_later_turns() -> None:
    rewards = judged((-0.25, -0.5, 0.0), 0.0)

    assert gae(rewards, MASK) == [-0.75, -0.75, -0.5, 0.0, 0.0]
    assert reinforce(rewards, MASK) == [-0.75, -0.75, -0.5, 0.0, 0.0]
    assert gae(judged((0.75, 0.5, 1.0), 1.0), MASK) == [2.25, 2.25, 1.5, 1.0, 1.0]


def test_with_values_of_a_critic_returns_stay_those_of_the_rewards_when_lambda_is_1() -> None:
    values = [0.5, -0.5, 9.0, 9.0, 0.25, 9.0, 0.125, 1.0]

    assert gae(judged((0.75, 0.5, 1.0), 1.0), MASK, values) == pytest.approx([2.25, 2.25, 1.5, 1.0, 1.0])


@pytest.mark.parametrize("place", [2, 3, 5])
def test_stock_verl_drops_a_reward_on_a_token_of_an_observation(place: int) -> None:
    """The released code of PPR puts a turn's reward there. If this fails, verl has begun to read it."""
    rewards = [0.0] * len(MASK)
    rewards[place] = 1.0

    assert gae(rewards, MASK) == [0.0] * 5
    assert reinforce(rewards, MASK) == [0.0] * 5


def test_stock_verl_would_lose_an_outcome_behind_the_last_turn_and_ours_keeps_it() -> None:
    late = [1, 1, 0, 1, 0, 0]
    stock = [0.0] * 5 + [1.0]

    assert gae(stock, late) == reinforce(stock, late) == [0.0] * 3
    assert gae(judged((0.0, 1.0), 1.0, late, [2, 4]), late) == [1.0] * 3


def test_grpo_takes_the_sum_of_the_turns() -> None:
    rows = [judged((-0.25, -0.5, 0.0), 0.0), judged((0.75, 0.5, 1.0), 1.0)]
    import numpy

    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=torch.tensor(rows),
        response_mask=torch.tensor([MASK, MASK]),
        index=numpy.array(["group", "group"]),
        norm_adv_by_std_in_grpo=False,
    )

    mean = (-0.75 + 2.25) / 2
    assert advantages[0].tolist() == pytest.approx([(-0.75 - mean) * is_sampled for is_sampled in MASK])
    assert advantages[1].tolist() == pytest.approx([(2.25 - mean) * is_sampled for is_sampled in MASK])
