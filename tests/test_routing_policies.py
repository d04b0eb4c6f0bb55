"""routing.policy, kv_forecast and lengths: where requests go, who waits and who moves."""

import numpy as np
import pytest

from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.lengths import LengthModel
from verl_pivot.routing.policy import (
    CacheAware,
    KvAdmission,
    LeastInflight,
    Placement,
    Policy,
    Release,
    Request,
    Static,
)


def ask(policy: Policy, conversation: str, *, group: str = "g", context: int = 0, now: float = 0.0) -> list[Placement]:
    return list(
        policy.acquire(
            Request(
                conversation=conversation, group=group, prompt_tokens=100, context_tokens=context, budget=1_000, now=now
            )
        )
    )


def end(
    policy: Policy, conversation: str, server: str, *, context: int = 500, is_last: bool = True, now: float = 10.0
) -> list[Placement]:
    release = Release(conversation=conversation, server=server, context_tokens=context, is_last=is_last, now=now)
    return list(policy.release(release))


def test_static_gives_contiguous_blocks() -> None:
    policy = Static(["a", "b"], 4)

    assert [ask(policy, name)[0].server for name in "wxyzx"] == ["a", "a", "b", "b", "a"]


def test_least_inflight_stays_until_its_memory_of_sessions_overflows() -> None:
    policy = LeastInflight(["a", "b"], max_sessions=2)

    assert [ask(policy, name)[0].server for name in "wx"] == ["a", "b"]
    assert ask(policy, "w")[0].server == "a"
    assert ask(policy, "y")[0].server == "b"  # forgets x, which was used longest ago
    end(policy, "w", "a")
    end(policy, "w", "a")
    assert ask(policy, "x")[0].server == "a"


def test_the_papers_rule_reserves_the_longest_rollout_for_each() -> None:
    policy = KvAdmission(["a", "b"], capacity=2_300)

    placed = [ask(policy, name) for name in "vwxyz"]

    assert [len(each) for each in placed] == [1, 1, 1, 1, 0]
    assert end(policy, "v", "a", is_last=False) == []
    assert ask(policy, "v", context=500) == [("v", "a")]
    assert end(policy, "w", "b") == [("z", "b")]


def test_cache_aware_follows_the_prefix_unless_the_load_is_out_of_balance() -> None:
    policy = CacheAware(["a", "b"], balance_abs_threshold=2)

    assert ask(policy, "w")[0].server == ask(policy, "x")[0].server == "a"
    assert ask(policy, "y")[0].server == "a"
    assert ask(policy, "z")[0].server == "b"


def forecast(capacity: int = 1_500, *, servers: str = "ab", **options: float) -> KvForecast:
    """Of rollouts that were all 1,000 tokens long: one fits, and half of another."""
    chosen = ForecastOptions(**{"fill": 1.0, "deviations": 0.0, "unit": 1, **options})  # type: ignore[arg-type]
    return KvForecast(dict.fromkeys(servers, capacity), budget=1_000, prior=[1_000] * 8, options=chosen)


def test_fresh_conversations_wait_until_their_forecast_fits() -> None:
    policy = forecast()

    assert [ask(policy, name, group=name) for name in "wxyz"] == [[("w", "a")], [("x", "b")], [], []]
    assert end(policy, "x", "b", is_last=False) == []
    assert ask(policy, "x", context=500, now=11.0) == [("x", "b")]
    assert end(policy, "w", "a", context=1_000) == [("y", "a")]


def test_a_request_that_fits_no_server_goes_to_an_empty_one() -> None:
    assert ask(forecast(capacity=50), "w") == [("w", "a")]


def test_rollouts_of_a_prompt_share_a_server_up_to_the_unit() -> None:
    policy = forecast(capacity=100_000, unit=2)

    assert [ask(policy, name)[0].server for name in "uvwxyz"] == ["a", "a", "b", "b", "a", "a"]


def test_a_returning_turn_moves_to_a_far_emptier_server_once_nothing_waits() -> None:
    policy = forecast(capacity=100_000, servers="ab", unit=8)
    for number in range(8):
        ask(policy, f"c{number}")
    ask(policy, "other", group="h")
    assert end(policy, "c0", "a", is_last=False) == []

    assert ask(policy, "c0", context=520, now=12.0) == [("c0", "b")]


def test_moves_are_capped() -> None:
    policy = forecast(capacity=100_000, unit=8, max_moves=0.0)
    for number in range(8):
        ask(policy, f"c{number}")
    end(policy, "c0", "a", is_last=False)

    assert ask(policy, "c0", context=520, now=12.0) == [("c0", "a")]


def test_survival_counts_running_rollouts_until_where_they_are() -> None:
    """Kaplan and Meier: of four one ends at 300, one runs at 600, one ends at 700, one runs at 900."""
    model = LengthModel(1_024, prior=[1_024] * 4, prior_weight=1e-9)
    model.end(300)
    model.end(700)

    survival = model.survival([600, 900])

    assert survival == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.5], abs=1e-6)


def test_with_nothing_known_lengths_up_to_the_budget_are_alike() -> None:
    assert LengthModel(1_024).survival(()) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_the_peak_is_at_the_moment_in_which_most_is_held() -> None:
    """In bins of 256: when the third reaches its end at 1,024 the others are at 512; later it is gone."""
    model = LengthModel(1_024, prior=[1_024])

    assert model.peak([0.0, 0.0, 512.0], 0.0) == pytest.approx(640 + 640 + 1_152)


def test_deviations_raise_the_peak_only_where_lengths_differ() -> None:
    certain, open_ = LengthModel(1_024, prior=[1_024]), LengthModel(1_024, prior=[128, 1_024])

    assert certain.peak([0.0] * 4, 2.0) == certain.peak([0.0] * 4, 0.0)
    assert open_.peak([0.0] * 4, 2.0) > open_.peak([0.0] * 4, 0.0)
    assert np.isfinite(open_.peak([5_000.0], 1.0))
