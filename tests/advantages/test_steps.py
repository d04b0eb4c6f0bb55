"""Advantages of steps: values worked out by hand, the rule of the released code, and general properties."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from verl_pivot.advantages.estimators import step_reinforce_pp
from verl_pivot.advantages.steps import sampled_runs, step_advantages

masks = st.lists(st.integers(0, 1), min_size=1, max_size=12)
returns = st.floats(-2.0, 2.0, allow_nan=False, width=32)


def config(normalise: str = "released") -> DictConfig:
    """Section `algorithm` of verl's config, within a whole config."""
    root = OmegaConf.create({"algorithm": {}, "pivot": {"notebook": {"normalise": normalise}}})
    section = root.algorithm
    assert isinstance(section, DictConfig)
    return section


def advantages_of(rewards: list[list[float]], mask: list[list[int]], normalise: str = "released") -> torch.Tensor:
    return step_reinforce_pp(torch.tensor(rewards), torch.tensor(mask), config=config(normalise))[0]


def released(values: list[float]) -> list[float]:
    """Normalise as the released code does in torch: its standard deviation divides by n - 1."""
    tensor = torch.tensor(values, dtype=torch.float64)
    return ((tensor - tensor.mean()) / (tensor.std() + 1e-8)).tolist()


def test_runs_of_sampled_tokens_are_the_steps() -> None:
    assert sampled_runs([1, 1, 0, 1]) == [(0, 2), (3, 4)]
    assert sampled_runs([0, 1, 0, 0, 1, 1, 0]) == [(1, 2), (4, 6)]
    assert sampled_runs([0, 0]) == []
    assert sampled_runs([]) == []


def test_advantages_of_two_steps_are_one_standard_deviation_of_n_less_1_apart_from_their_mean() -> None:
    assert step_advantages([0.0, 1.0]) == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert step_advantages([1.0, 2.0, 3.0]) == pytest.approx([-1.0, 0.0, 1.0])


def test_the_paper_puts_epsilon_under_the_root() -> None:
    assert step_advantages([0.0, 2e-4], "paper") == pytest.approx([-1e-4 / (3e-8**0.5), 1e-4 / (3e-8**0.5)])
    assert step_advantages([0.0, 2e-4], "released") == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-4)


def test_one_step_or_equal_returns_have_an_advantage_of_0() -> None:
    assert step_advantages([0.7]) == [0.0]
    assert step_advantages([0.3, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert step_advantages([]) == []


@given(st.lists(returns, min_size=2, max_size=40))
def test_advantages_are_those_of_the_released_code(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-3)

    assert step_advantages(values) == pytest.approx(released(values), rel=1e-6, abs=1e-6)


def test_verl_finds_the_estimator_by_its_name() -> None:
    assert get_adv_estimator_fn("step_reinforce_pp") is step_reinforce_pp


def test_every_token_of_a_step_has_its_advantage_and_its_return() -> None:
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]])
    rewards = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])

    advantages, step_returns = step_reinforce_pp(rewards, mask, config=config(), index=["a", "b"])

    assert advantages.tolist() == [[-1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    assert step_returns.tolist() == [[1.0, 1.0, 0.0, 2.0], [0.0, 3.0, 3.0, 0.0]]


def test_with_the_rewards_of_turns_a_step_has_the_sum_of_its_own_and_of_those_of_later_ones() -> None:
    """The first row's two steps return 2.5 + 0.5 x 1 and 1, the second row's step -0.5; the 9s are on observations."""
    root = OmegaConf.create({"algorithm": {"gamma": 0.5}, "pivot": {"process": {"mode": "sum"}}})
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]])
    rewards = torch.tensor([[0.5, 2.0, 9.0, 1.0], [9.0, 0.0, -0.5, 0.0]])

    advantages, step_returns = step_reinforce_pp(rewards, mask, config=root.algorithm)

    assert step_returns.tolist() == [[3.0, 3.0, 0.0, 1.0], [0.0, -0.5, -0.5, 0.0]]
    deviation = (((3.0 - 3.5 / 3) ** 2 + (1.0 - 3.5 / 3) ** 2 + (-0.5 - 3.5 / 3) ** 2) / 2) ** 0.5
    expected = [(each - 3.5 / 3) / deviation for each in (3.0, 1.0, -0.5)]
    assert advantages[0].tolist() == pytest.approx([expected[0], expected[0], 0.0, expected[1]])
    assert advantages[1].tolist() == pytest.approx([0.0, expected[2], expected[2], 0.0])


def test_rewards_on_tokens_that_nobody_sampled_do_not_count() -> None:
    assert advantages_of([[0.0, 9.0, 1.0], [2.0, 9.0, 3.0]], [[0, 0, 1], [1, 0, 1]]).tolist() == [
        [0.0, 0.0, -1.0],
        [0.0, 0.0, 1.0],
    ]


def test_normalise_is_read_from_the_section_pivot_notebook() -> None:
    rewards, mask = [[0.0], [2e-4]], [[1], [1]]

    assert advantages_of(rewards, mask, "paper")[1].item() == pytest.approx(1e-4 / 3e-8**0.5, rel=1e-4)
    assert advantages_of(rewards, mask, "released")[1].item() == pytest.approx(0.5**0.5, rel=1e-3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]]]:
    """Rewards and masks of equal length, with a return at the last token of each step."""
    length = draw(st.integers(1, 10))
    mask = draw(st.lists(st.lists(st.integers(0, 1), min_size=length, max_size=length), min_size=1, max_size=6))
    rewards = [[0.0] * length for _ in mask]
    for row, values in enumerate(mask):
        for _, end in sampled_runs(values):
            rewards[row][end - 1] = draw(returns)
    return rewards, mask


@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_advantage(
    batch: tuple[list[list[float]], list[list[int]]], rng: "object"
) -> None:
    rewards, mask = batch
    order = list(range(len(mask)))
    rng.shuffle(order)  # type: ignore[attr-defined]

    shuffled = advantages_of([rewards[row] for row in order], [mask[row] for row in order])

    assert torch.equal(shuffled, advantages_of(rewards, mask)[order])


@given(batches(), st.integers(1, 5))
def test_padding_rows_change_no_advantage_and_have_none(
    batch: tuple[list[list[float]], list[list[int]]], num_padding: int
) -> None:
    rewards, mask = batch
    length = len(mask[0])
    padding = [[0.0] * length] * num_padding, [[0] * length] * num_padding

    padded = advantages_of(rewards + padding[0], mask + padding[1])

    assert torch.equal(padded[: len(mask)], advantages_of(rewards, mask))
    assert not padded[len(mask) :].any()


@given(batches())
def test_rows_of_single_steps_have_the_advantages_of_rows_with_several(
    batch: tuple[list[list[float]], list[list[int]]],
) -> None:
    rewards, mask = batch
    runs = [(row, start, end) for row, values in enumerate(mask) for start, end in sampled_runs(values)]
    assume(runs)
    length = len(mask[0])
    single = [[int(start <= at < end) for at in range(length)] for _, start, end in runs]

    split = advantages_of([rewards[row] for row, _, _ in runs], single)
    whole = advantages_of(rewards, mask)

    assert [split[number, start].item() for number, (_, start, _) in enumerate(runs)] == [
        whole[row, start].item() for row, start, _ in runs
    ]


@given(st.lists(returns, min_size=2, max_size=20))
def test_advantages_have_a_mean_of_0_and_a_standard_deviation_of_1(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-2)
    found = step_advantages(values)

    assert math.fsum(found) / len(found) == pytest.approx(0.0, abs=1e-6)
    assert torch.tensor(found, dtype=torch.float64).std().item() == pytest.approx(1.0, rel=1e-4)
