"""The policy loss `pivot_action` through verl's own ppo_loss: scaling, padding, the other terms, and refusals."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from verl_pivot.errors import ConfigError
from verl_pivot.objective import policy_loss
from verl_pivot.objective.settings import OBJECTIVES

PROMPT = 2
"""Number of tokens of every prompt."""
Row = tuple[Sequence[float], Sequence[float], float]
"""Log-prob gains of an action's tokens, their log-probs under the reference policy, and the action's advantage."""
ROWS: tuple[Row, ...] = (
    ([0.05, -0.02, 0.1], [-0.9, -1.1, -1.0], 1.5),
    ([0.3], [-1.0], 1.5),  # its ratio is above 1.2: clipped
    ([-0.2, -0.2], [-1.2, -1.0], -0.5),  # its ratio is below 0.8: clipped
    ([0.2, 0.2, 0.1, 0.0, 0.02], [-1.0] * 5, -0.5),
)
OLD = -1.0
"""Log-prob of every token under the policy that sampled it."""


def actor(objective: str, **changes: Any) -> FSDPActorConfig:
    settings = OBJECTIVES[objective]
    options: dict[str, Any] = {
        "strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": 2, "use_kl_loss": False,
        "loss_agg_mode": settings.loss_agg_mode, "clip_ratio_c": settings.clip_ratio_c,
        "policy_loss": PolicyLossConfig(loss_mode=settings.loss_mode), **changes,
    }  # fmt: skip
    return FSDPActorConfig(**options)


def nested(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def loss_of(
    rows: Sequence[Row], log_probs: torch.Tensor, config: FSDPActorConfig, *, masks: Sequence[Sequence[int]] = (),
    global_batch_size: int | None = None, dp_size: int = 1, num_tokens: int | None = None, **fields: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
    """verl's loss of one micro-batch, called as verl's engines call it.

    Args:
        rows: The actions of the micro-batch.
        log_probs: [num_tokens of all rows and prompts] log-prob of the next token at each place, as models give it.
    """
    lengths = [len(gains) for gains, _, _ in rows]
    masks = masks or [[1] * length for length in lengths]
    data = TensorDict(
        {
            "prompts": nested([[1] * PROMPT] * len(rows), torch.long),
            "responses": nested([[1] * length for length in lengths], torch.long),
            "response_mask": nested(masks, torch.long),
            "old_log_probs": nested([[OLD] * length for length in lengths]),
            "ref_log_prob": nested([reference for _, reference, _ in rows]),
            "advantages": nested([[advantage] * len(gains) for gains, _, advantage in rows]),
            **fields,
        },
        batch_size=len(rows),
    )
    tensordict_utils.assign_non_tensor(
        data, dp_size=dp_size, batch_num_tokens=num_tokens, global_batch_size=global_batch_size
    )
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + PROMPT + length)
    as_nested = torch.nested.nested_tensor_from_jagged(log_probs, torch.tensor(offsets))
    return ppo_loss(config, {"log_probs": as_nested}, data)


def model_log_probs(rows: Sequence[Row]) -> torch.Tensor:
    """Log-probs of all rows in one line; 7 in a prompt and -7 at the last token of a row must not count."""
    values: list[float] = []
    for gains, _, _ in rows:
        values += [7.0] * (PROMPT - 1) + [OLD + gain for gain in gains] + [-7.0]
    return torch.tensor(values, requires_grad=True)


def loss_and_gradient(rows: Sequence[Row], config: FSDPActorConfig, **options: Any) -> tuple[float, torch.Tensor]:
    log_probs = model_log_probs(rows)
    loss, _ = loss_of(rows, log_probs, config, **options)
    value = loss.item()
    loss.backward()
    assert log_probs.grad is not None
    return value, log_probs.grad


def by_hand(rows: Sequence[Row]) -> list[float]:
    """The objective of each action, by plain arithmetic."""
    values = []
    for gains, _, advantage in rows:
        ratio = 2.718281828459045 ** sum(gains)
        values.append(min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
    return values


def test_the_loss_is_the_negative_mean_of_the_actions_objectives() -> None:
    value, gradient = loss_and_gradient(ROWS, actor("paper"))

    assert value == pytest.approx(-sum(by_hand(ROWS)) / 4, rel=1e-5)
    slope_of_first = -1.5 * 2.718281828459045**0.13 / 4
    assert gradient[:5].tolist() == [0.0, *[pytest.approx(slope_of_first, rel=1e-5)] * 3, 0.0]
    assert gradient[5:8].tolist() == [0.0] * 3  # clipped
    assert gradient[8:12].tolist() == [0.0] * 4  # clipped


def test_at_a_ratio_of_1_the_gradient_is_that_of_verls_own_loss_with_the_sum_over_tokens() -> None:
    rows = [([0.0] * len(gains), reference, advantage) for gains, reference, advantage in ROWS]
    stock = actor("paper", policy_loss=PolicyLossConfig(loss_mode="vanilla"))

    torch.testing.assert_close(loss_and_gradient(rows, actor("paper"))[1], loss_and_gradient(rows, stock)[1])


@pytest.mark.parametrize("objective", ["paper", "nemo_rl", "verl"])
@pytest.mark.parametrize("cuts", [(1, 2, 3), (2,), (3,), ()])
def test_micro_batches_of_any_sizes_add_up_to_the_whole_batch(objective: str, cuts: tuple[int, ...]) -> None:
    """Dynamic batch sizes cut a batch like this; the loss includes the KL term."""
    config = actor(objective, use_kl_loss=True, kl_loss_coef=0.5)
    sizes = {"global_batch_size": 4, "num_tokens": 11}
    whole, gradient = loss_and_gradient(ROWS, config, **sizes)

    bounds = [0, *cuts, 4]
    parts = [
        loss_and_gradient(ROWS[begin:end], copy.deepcopy(config), **sizes) for begin, end in itertools.pairwise(bounds)
    ]

    assert sum(value for value, _ in parts) == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(torch.cat([part for _, part in parts]), gradient)


def test_gpus_that_each_hold_a_part_average_to_the_whole_batch() -> None:
    """Data-parallel training averages the gradients of its ranks, so verl multiplies each loss by their number."""
    whole, gradient = loss_and_gradient(ROWS, actor("paper"), global_batch_size=4)
    parts = [loss_and_gradient(rows, actor("paper"), global_batch_size=4, dp_size=2) for rows in (ROWS[:1], ROWS[1:])]

    assert sum(value for value, _ in parts) / 2 == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(torch.cat([part for _, part in parts]) / 2, gradient)


def test_padding_rows_add_nothing() -> None:
    padded = [*ROWS, ([0.4, 0.4], [-1.0, -1.0], 0.0)]
    masks = [*([1] * len(gains) for gains, _, _ in ROWS), [0, 0]]
    value, gradient = loss_and_gradient(ROWS, actor("paper"))

    with_padding, its_gradient = loss_and_gradient(padded, actor("paper"), masks=masks)

    assert with_padding == pytest.approx(value, rel=1e-6)
    torch.testing.assert_close(its_gradient[: len(gradient)], gradient)
    assert not its_gradient[len(gradient) :].any()


@pytest.mark.parametrize(("objective", "share"), [("paper", 4 / 5), ("nemo_rl", 1.0), ("verl", 4 / 5)])
def test_the_trainer_divides_by_the_configured_number_of_actions_also_where_some_are_missing(
    objective: str, share: float
) -> None:
    """verl passes the size of a whole mini-batch to its losses; nemo_rl's mean counts only the sampled tokens."""
    value, gradient = loss_and_gradient(ROWS, actor(objective))

    of_five, its_gradient = loss_and_gradient(ROWS, actor(objective), global_batch_size=5, num_tokens=11)

    assert of_five == pytest.approx(share * value, rel=1e-6)
    torch.testing.assert_close(its_gradient, share * gradient)


def test_a_micro_batch_of_padding_alone_has_no_loss_and_its_metrics_are_numbers() -> None:
    rows = [([0.4, 0.4], [-1.0, -1.0], 0.0)]

    loss, metrics = loss_of(rows, model_log_probs(rows), actor("paper"), masks=[[0, 0]], global_batch_size=4)

    assert loss.item() == 0.0
    assert [metrics[f"actor/{name}"].values for name in ("pg_clipfrac", "ppo_kl")] == [[0.0], [0.0]]


def test_the_ratio_leaves_out_tokens_that_are_masked() -> None:
    rows = [([0.1, 5.0], [-1.0, -1.0], 1.0)]

    value, gradient = loss_and_gradient(rows, actor("paper"), masks=[[1, 0]])

    assert value == pytest.approx(-(2.718281828459045**0.1), rel=1e-6)
    assert gradient.tolist() == [0.0, pytest.approx(value, rel=1e-6), 0.0, 0.0]


def test_the_penalty_for_divergence_is_that_of_verls_own_loss() -> None:
    """The KL penalty adds the same value and the same gradient to this loss as to verl's own."""
    added = []
    for loss_mode in ("pivot_action", "vanilla"):
        mode = {"policy_loss": PolicyLossConfig(loss_mode=loss_mode)}
        value, gradient = loss_and_gradient(ROWS, actor("paper", **mode))
        penalized = loss_and_gradient(ROWS, actor("paper", use_kl_loss=True, kl_loss_coef=0.5, **mode))
        added.append((penalized[0] - value, penalized[1] - gradient))

    assert added[0][0] == pytest.approx(added[1][0], rel=1e-4)
    assert added[0][0] > 0.01
    torch.testing.assert_close(added[0][1], added[1][1])


def test_metrics_have_the_share_of_clipped_actions_under_verls_names() -> None:
    _, metrics = loss_of(ROWS, model_log_probs(ROWS), actor("paper"))

    assert metrics["actor/pg_clipfrac"].values == [0.5]
    assert metrics["actor/ppo_kl"].values == [pytest.approx(-(0.13 + 0.3 - 0.4 + 0.52) / 11, rel=1e-5)]


def test_nemo_rl_is_the_mean_over_tokens_of_clipped_token_ratios_without_a_second_clip() -> None:
    rows = [([2.0], [-1.0], -1.0), ([0.1, -0.3], [-1.0, -1.0], 1.0)]

    value, _ = loss_and_gradient(rows, actor("nemo_rl"))

    e = 2.718281828459045
    assert value == pytest.approx((e**2.0 - e**0.1 - e**-0.3) / 3, rel=1e-5)
    assert loss_and_gradient(rows, actor("verl"))[0] == pytest.approx((3.0 - (e**0.1 + e**-0.3) / 2) / 2, rel=1e-5)


def test_weights_of_whole_actions_weigh_their_objectives_and_weights_of_tokens_are_refused() -> None:
    weights = [2.0, 0.5, 1.0, 0.25]
    whole = nested([[weight] * len(gains) for weight, (gains, _, _) in zip(weights, ROWS, strict=True)])
    value, _ = loss_and_gradient(ROWS, actor("paper"), rollout_is_weights=whole)

    assert value == pytest.approx(
        -sum(weight * each for weight, each in zip(weights, by_hand(ROWS), strict=True)) / 4, rel=1e-5
    )
    with pytest.raises(ConfigError, match=r"same weight: set algorithm\.rollout_correction\.rollout_is=sequence"):
        loss_and_gradient(
            ROWS, actor("paper"), rollout_is_weights=nested([[float(i) for i in range(len(r[0]))] for r in ROWS])
        )


def test_an_action_whose_tokens_differ_in_advantage_is_refused() -> None:
    by_token = nested([[0.1 * place for place in range(len(gains))] for gains, _, _ in ROWS])

    with pytest.raises(ConfigError, match=r"same advantage: choose another algorithm\.adv_estimator, such as grpo"):
        loss_and_gradient(ROWS, actor("paper"), advantages=by_token)


def test_another_aggregation_than_the_sum_over_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs actor_rollout_ref\.actor\.loss_agg_mode=seq-mean-token-sum, got"):
        loss_and_gradient(ROWS, actor("paper", loss_agg_mode="token-mean"))


def test_the_loss_is_registered_under_the_name_that_the_objective_gives_verl() -> None:
    assert get_policy_loss_fn(OBJECTIVES["paper"].loss_mode) is policy_loss.action_loss
