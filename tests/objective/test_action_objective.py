"""min(w A, clip(w) A) of whole actions: values by hand and by a plain reference, gradients, and extremes."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.objective.action_objective import action_log_ratios, clipped_actions, clipped_objective


def objective(log_ratio: float, advantage: float, low: float = 0.2, high: float = 0.3) -> float:
    """The objective of one action."""
    value = clipped_objective(torch.tensor([log_ratio]), torch.tensor([advantage]), clip_low=low, clip_high=high)
    return value.item()


def gradient(log_ratio: float, advantage: float, low: float = 0.2, high: float = 0.3) -> float:
    """Derivative of the objective with respect to the log of the ratio."""
    log_ratios = torch.tensor([log_ratio], requires_grad=True)
    clipped_objective(log_ratios, torch.tensor([advantage]), clip_low=low, clip_high=high).sum().backward()
    assert log_ratios.grad is not None
    return log_ratios.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.25, 2.0, 2.5, 2.5),
        (1.5, 2.0, 2.6, 0.0),  # clipped above: 1.3 * 2
        (0.5, 2.0, 1.0, 1.0),  # not clipped below: the policy has moved the wrong way
        (1.0, -2.0, -2.0, -2.0),
        (1.5, -2.0, -3.0, -3.0),  # not clipped above
        (0.9, -2.0, -1.8, -1.8),
        (0.5, -2.0, -1.6, 0.0),  # clipped below: 0.8 * -2
        (7.0, 0.0, 0.0, 0.0),
    ],
)
def test_values_and_slopes_are_those_of_the_formula_worked_out_by_hand(
    ratio: float, advantage: float, value: float, slope: float
) -> None:
    assert objective(math.log(ratio), advantage) == pytest.approx(value, rel=1e-6)
    assert gradient(math.log(ratio), advantage) == pytest.approx(slope, rel=1e-6)


def test_an_action_is_counted_as_clipped_where_its_slope_is_0_and_its_advantage_is_not() -> None:
    ratios = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5, 7.0]).log()
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, 0.0])

    assert clipped_actions(ratios, advantages, clip_low=0.2, clip_high=0.3).tolist() == [
        False, True, False, False, True, False,
    ]  # fmt: skip


def reference(
    log_probs: Sequence[float], old: Sequence[float], mask: Sequence[bool], advantage: float, low: float, high: float
) -> float:
    """The formula by plain arithmetic, with the ratio as a product over the sampled tokens."""
    sampled = [(new, before) for new, before, kept in zip(log_probs, old, mask, strict=True) if kept]
    ratio = math.prod(math.exp(new) / math.exp(before) for new, before in sampled)
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


log_probs = st.floats(-3.0, 0.0, width=32)
tokens = st.lists(st.tuples(log_probs, log_probs, st.booleans()), min_size=1, max_size=8)


@given(tokens, st.floats(-3.0, 3.0, width=32), st.floats(0.01, 0.9), st.floats(0.01, 0.9))
def test_any_action_has_the_value_of_the_formula_over_its_sampled_tokens(
    action: list[tuple[float, float, bool]], advantage: float, low: float, high: float
) -> None:
    new, old, mask = (list(column) for column in zip(*action, strict=True))
    log_ratios = action_log_ratios(torch.tensor([new]), torch.tensor([old]), torch.tensor([mask]))
    value = clipped_objective(log_ratios, torch.tensor([advantage]), clip_low=low, clip_high=high).item()

    wanted = reference(new, old, mask, advantage, low, high)
    if wanted > math.exp(-18) or wanted < -math.exp(-18):
        assert value == pytest.approx(wanted, rel=2e-4)


@given(st.integers(1, 6), st.floats(-3.0, 3.0, width=32))
def test_at_a_ratio_of_1_every_token_gets_the_whole_advantage(num_tokens: int, advantage: float) -> None:
    """The gradient is that of a sum over tokens; that of a mean would be divided by the number of tokens."""
    old = torch.full((1, num_tokens), -0.5)
    new = old.clone().requires_grad_()
    mask = torch.ones(1, num_tokens, dtype=torch.bool)

    clipped_objective(
        action_log_ratios(new, old, mask), torch.tensor([advantage]), clip_low=0.2, clip_high=0.2
    ).sum().backward()

    assert new.grad is not None
    assert new.grad.tolist() == [[pytest.approx(advantage)] * num_tokens]


def test_what_stands_at_tokens_that_were_not_sampled_changes_neither_value_nor_gradient() -> None:
    mask = torch.tensor([[True, False, True, False]])
    old = torch.tensor([[-1.0, math.nan, -2.0, -math.inf]])
    new = torch.tensor([[-0.9, -math.inf, -2.0, math.nan]], requires_grad=True)

    log_ratios = action_log_ratios(new, old, mask)
    clipped_objective(log_ratios, torch.tensor([1.0]), clip_low=0.2, clip_high=0.2).sum().backward()

    assert log_ratios.item() == pytest.approx(0.1)
    assert new.grad is not None
    assert new.grad[0, [0, 2]].tolist() == [pytest.approx(math.exp(0.1))] * 2
    assert new.grad[0, [1, 3]].tolist() == [0.0, 0.0]


def test_an_action_without_sampled_tokens_has_the_ratio_1() -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)

    assert action_log_ratios(torch.full((1, 3), -9.0), torch.zeros(1, 3), nothing).tolist() == [0.0]


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("log_prob_gain", [-8.0, -0.5, 0.5, 8.0])
def test_an_action_of_twenty_thousand_tokens_overflows_nowhere(log_prob_gain: float, advantage: float) -> None:
    """The log ratio is 10,000 or 160,000 in size, and float32 overflows at exp(89)."""
    old = torch.full((1, 20_000), -10.0)
    new = (old + log_prob_gain).requires_grad_()

    value = clipped_objective(
        action_log_ratios(new, old, torch.ones(1, 20_000, dtype=torch.bool)),
        torch.tensor([advantage]), clip_low=0.2, clip_high=0.2,
    )  # fmt: skip
    value.sum().backward()

    side = 1.2 if log_prob_gain > 0 else 0.0
    assert value.item() == pytest.approx(
        {1.0: side, 0.0: 0.0, -1.0: -math.exp(20) if log_prob_gain > 0 else -0.8}[advantage]
    )
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_half_precision_is_summed_in_full_precision() -> None:
    old = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    new = torch.full((1, 4096), -1.0078125, dtype=torch.bfloat16)

    assert action_log_ratios(new, old, torch.ones(1, 4096, dtype=torch.bool)).item() == -32.0
