"""Routing policies and the length model: the server of each request, what waits and what moves."""

import math
from collections import Counter

import numpy as np
import pytest

from verl_pivot.routing.baselines import CacheAware, KvAdmission, LeastInflight, Static
from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.length_model import LengthModel
from verl_pivot.routing.routing_policy import ConversationEnd, Placement, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.settings import make_routing_policy, parse_router
from verl_pivot.routing.simulator.proposals import AffinityMargin, ImbalanceGate, TogetherLeastInflight

NAMES = ["static", "least_inflight", "cache_aware", "kv_admission", "kv_forecast"]


def with_servers(policy: RoutingPolicy, servers: str = "ab", capacity: int = 100_000) -> RoutingPolicy:
    for name in servers:
        policy.add_server(name, capacity, 0.0)
    return policy


def ask(
    policy: RoutingPolicy, conversation: str, *, group: str = "g", context: int = 0, now: float = 0.0
) -> list[Placement]:
    request = TurnRequest(conversation=conversation, group=group, prompt_tokens=100, context_tokens=context, now=now)
    return list(policy.acquire(request))


def release(
    policy: RoutingPolicy, conversation: str, server: str, *, may_be_last: bool = False, now: float = 10.0
) -> list[Placement]:
    return list(policy.release(TurnRelease(conversation=conversation, server=server, now=now, may_be_last=may_be_last)))


def end(
    policy: RoutingPolicy, conversation: str, server: str, *, tokens: int | None = 500, now: float = 10.0
) -> list[Placement]:
    placed = release(policy, conversation, server, now=now)
    return [*placed, *policy.end(ConversationEnd(conversation=conversation, response_tokens=tokens, now=now))]


def test_static_gives_each_server_a_contiguous_block() -> None:
    policy = with_servers(Static(num_conversations=4))

    assert [ask(policy, name)[0].server for name in "wxyzx"] == ["a", "a", "b", "b", "a"]


def test_least_inflight_keeps_a_conversations_server_until_its_memory_overflows() -> None:
    policy = with_servers(LeastInflight(max_sessions=2))

    assert [ask(policy, name)[0].server for name in "wx"] == ["a", "b"]
    assert ask(policy, "w")[0].server == "a"
    assert ask(policy, "y")[0].server == "b"  # forgets x, which was used longest ago
    release(policy, "w", "a")
    release(policy, "w", "a")
    assert ask(policy, "x")[0].server == "a"


def test_kv_admission_reserves_the_longest_rollout_for_each_conversation() -> None:
    policy = with_servers(KvAdmission(budget=1_000), capacity=2_300)

    placed = [ask(policy, name) for name in "vwxyz"]

    assert [len(each) for each in placed] == [1, 1, 1, 1, 0]
    assert release(policy, "v", "a") == []
    assert ask(policy, "v", context=500) == [("v", "a")]
    assert end(policy, "w", "b") == [("z", "b")]


def test_cache_aware_follows_the_prefix_unless_the_load_is_out_of_balance() -> None:
    policy = with_servers(CacheAware(balance_abs_threshold=2))

    assert ask(policy, "w")[0].server == ask(policy, "x")[0].server == "a"
    assert ask(policy, "y")[0].server == "a"
    assert ask(policy, "z")[0].server == "b"


def routing_policy(name: str) -> RoutingPolicy:
    return with_servers(make_routing_policy(parse_router({"policy": name, "max_response_tokens": 1_000}, "test")))


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_whose_server_is_gone_continues_elsewhere_at_once(name: str) -> None:
    policy = routing_policy(name)
    ((_, server),) = ask(policy, "w")
    release(policy, "w", server)

    assert policy.remove_server(server, 1.0) in ((), [])

    ((_, other),) = ask(policy, "w", context=300)
    assert other != server


@pytest.mark.parametrize("name", NAMES)
def test_an_added_server_gets_conversations(name: str) -> None:
    policy = with_servers(routing_policy(name), "c")

    assert "c" in {server for number in range(800) for _, server in ask(policy, f"{number}", group=str(number))}


@pytest.mark.parametrize("name", NAMES)
def test_the_end_of_an_unknown_conversation_changes_nothing(name: str) -> None:
    assert not routing_policy(name).end(ConversationEnd(conversation="nobody", response_tokens=5, now=0.0))


@pytest.mark.parametrize("name", ["kv_admission", "kv_forecast"])
def test_an_added_server_takes_waiting_conversations(name: str) -> None:
    values = {"policy": name, "max_response_tokens": 1_000}
    policy = with_servers(make_routing_policy(parse_router(values, "test")), "a", 400)
    assert ask(policy, "w") == [("w", "a")]
    assert ask(policy, "x", group="h") == []

    assert list(policy.add_server("b", 1_500, 1.0)) == [("x", "b")]


@pytest.mark.parametrize("name", ["kv_admission", "kv_forecast"])
def test_a_conversation_that_may_have_ended_takes_no_room_and_keeps_its_place(name: str) -> None:
    values = {"policy": name, "max_response_tokens": 1_000}
    policy = with_servers(make_routing_policy(parse_router(values, "test")), "a", 400)
    ask(policy, "w")
    assert ask(policy, "x", group="h") == []

    assert release(policy, "w", "a", may_be_last=True) == [("x", "a")]
    assert ask(policy, "w", context=300) == [("w", "a")]


def forecast(capacity: int = 1_500, *, servers: str = "ab", **options: float) -> RoutingPolicy:
    """`kv_forecast` after a step of rollouts of 1,000 tokens; by default a server holds one and a half of these."""
    values = {"fill": 1.0, "deviations": 0.0, "block_size": 1, "light_block_size": 1, **options}
    options = ForecastOptions.model_validate(values)
    policy = KvForecast(budget=1_000, prior=[1_000] * 64, prior_returning=1.0, options=options)
    return with_servers(policy, servers, capacity)


def test_new_conversations_wait_until_their_forecast_fits() -> None:
    policy = forecast()

    assert [ask(policy, name, group=name) for name in "wxyz"] == [[("w", "a")], [("x", "b")], [], []]
    assert release(policy, "x", "b") == []
    assert ask(policy, "x", context=500, now=11.0) == [("x", "b")]
    assert end(policy, "w", "a", tokens=1_000) == [("y", "a")]


def test_a_forecast_that_fits_no_server_goes_to_an_empty_one() -> None:
    assert ask(forecast(capacity=50), "w") == [("w", "a")]


@pytest.mark.parametrize(("running_share", "placed"), [(0.0, ""), (0.4, ""), (0.5, "x"), (0.75, "xy")])
def test_where_tools_are_slow_more_conversations_are_admitted_than_fit(running_share: float, placed: str) -> None:
    """Turns take 10 s and tools 20 s: shares of 0.4, 0.5 and 0.75 allow 1.2, 1.5 and 2.25 times the KV cache."""
    policy = forecast(servers="a", running_share=running_share)
    ask(policy, "w", group="w")
    release(policy, "w", "a", now=10.0)
    ask(policy, "w", group="w", context=250, now=30.0)

    assert ask(policy, "x", group="x", now=30.0) == [("x", "a")][: "x" in placed]
    assert ask(policy, "y", group="y", now=30.0) == [("y", "a")][: "y" in placed]


def test_rollouts_of_a_prompt_share_a_server_up_to_the_block_size() -> None:
    policy = forecast(capacity=100_000, light_block_size=2)

    assert [ask(policy, name)[0].server for name in "uvwxyz"] == ["a", "a", "b", "b", "a", "a"]


def test_blocks_are_larger_where_the_step_before_would_not_fit() -> None:
    """The step before had 64 rollouts of 1,000 tokens; two servers hold 20,000 each."""
    policy = forecast(capacity=20_000, light_block_size=2, block_size=4)

    assert [ask(policy, name)[0].server for name in "uvwxyz"] == ["a", "a", "a", "a", "b", "b"]


def test_a_returning_turn_moves_to_a_far_emptier_server_once_nothing_waits() -> None:
    policy = forecast(capacity=100_000, light_block_size=8)
    for number in range(8):
        ask(policy, f"c{number}")
    ask(policy, "other", group="h")
    assert release(policy, "c0", "a") == []

    assert ask(policy, "c0", context=520, now=12.0) == [("c0", "b")]


def test_the_number_of_moves_is_limited() -> None:
    policy = forecast(capacity=100_000, light_block_size=8, max_moves=0.0)
    for number in range(8):
        ask(policy, f"c{number}")
    release(policy, "c0", "a")

    assert ask(policy, "c0", context=520, now=12.0) == [("c0", "a")]


def test_a_parked_prefix_that_new_weights_invalidated_does_not_prevent_a_move() -> None:
    policy = forecast(capacity=100_000, light_block_size=8, max_moves=0.0)
    for number in range(8):
        ask(policy, f"c{number}")
    for number in range(2):
        release(policy, f"c{number}", "a", may_be_last=True)
    policy.forget_prefixes(["c0"])

    assert [ask(policy, name, context=520, now=12.0) for name in ("c0", "c1")] == [[("c0", "b")], [("c1", "a")]]


def test_least_inflight_forgets_the_servers_of_the_conversations_whose_prefix_new_weights_invalidated() -> None:
    policy = with_servers(LeastInflight())
    assert [ask(policy, name)[0].server for name in "wxyz"] == ["a", "b", "a", "b"]
    for name, server in (("x", "b"), ("w", "a"), ("z", "b")):
        release(policy, name, server)
    policy.forget_prefixes(["w", "unknown"])

    assert [ask(policy, name, context=10)[0].server for name in "wz"] == ["b", "b"]


def test_cache_aware_forgets_only_the_prefixes_that_new_weights_invalidated() -> None:
    policy = with_servers(CacheAware())
    assert [ask(policy, name, group=name)[0].server for name in "wxy"] == ["a", "b", "a"]
    policy.forget_prefixes(["w", "unknown"])

    assert [ask(policy, name, group=name, context=10)[0].server for name in "wx"] == ["b", "b"]


def test_a_prefix_that_new_weights_invalidated_does_not_prevent_a_move() -> None:
    policy = forecast(capacity=100_000, light_block_size=8, max_moves=0.0)
    for number in range(8):
        ask(policy, f"c{number}")
    release(policy, "c0", "a")
    policy.forget_prefixes(["c0", "unknown"])

    assert ask(policy, "c0", context=520, now=12.0) == [("c0", "b")]
    release(policy, "c1", "a")
    assert ask(policy, "c1", context=520, now=12.0) == [("c1", "a")]


def test_rollouts_of_one_turn_are_spread_one_by_one_and_fill_the_engines_queues() -> None:
    """Blocks of four are only for turns that come back; without such turns a server of 1,500 tokens takes 4,500."""
    policy = forecast(block_size=4, light_block_size=4)
    requests = [
        TurnRequest(conversation=name, group="g", prompt_tokens=100, context_tokens=0, is_only_turn=True, now=0.0)
        for name in "abcdefghij"
    ]

    placed = [server for request in requests for _, server in policy.acquire(request)]

    assert placed == ["a", "b"] * 4


def test_where_no_turn_came_back_the_next_step_spreads_its_rollouts() -> None:
    policy = with_servers(KvForecast(budget=1_000, options=ForecastOptions(light_block_size=8)))
    first = [ask(policy, f"0/{number}")[0].server for number in range(200)]
    assert first[:4] == ["a"] * 4  # half of the block size while nothing is known
    for number, server in enumerate(first):
        end(policy, f"0/{number}", server)
    for number in range(2_000):
        ((name, server),) = ask(policy, f"1/{number}", now=50.0)
        end(policy, name, server, now=51.0)

    assert [ask(policy, f"2/{number}", now=100.0)[0].server for number in range(2)] == ["a", "b"]


def test_no_server_gets_more_than_a_block_above_the_emptiest_when_lengths_turn_out_short() -> None:
    policy = with_servers(
        KvForecast(budget=1_000, prior_returning=1.0, options=ForecastOptions(deviations=0.0)), "abcd", 6_000
    )
    places = {name: server for number in range(400) for name, server in ask(policy, f"{number}", group=str(number))}
    assert len(places) < 200

    for _ in range(8):  # one server learns that rollouts are short
        name = next(each for each, server in places.items() if server == "a")
        del places[name]
        places |= dict(end(policy, name, "a", tokens=20, now=1.0))

    counts = Counter(places.values())
    assert max(counts.values()) - min(counts.values()) <= ForecastOptions().block_size


def test_a_slow_server_counts_as_fuller() -> None:
    """Turns of 500 tokens take 10 s on server a and 1 s on b, so that b gets sqrt(10) times as many rollouts."""
    policy = forecast(capacity=1_000_000)
    for number in range(0, 400, 10):
        pair = [ask(policy, f"{number} {each}", group=f"{number} {each}", now=float(number))[0] for each in "xyzuvw"]
        for name, server in pair:
            end(policy, name, server, tokens=500, now=number + (10.0 if server == "a" else 1.0))

    counts = Counter(ask(policy, f"next {number}", group=f"h{number}")[0].server for number in range(400))

    assert counts["b"] / counts["a"] == pytest.approx(math.sqrt(10), rel=0.1)


def test_a_response_that_became_shorter_teaches_no_speed() -> None:
    """A response is shorter than before where a conversation begins anew under its old id."""
    policy = forecast()
    ask(policy, "w")
    release(policy, "w", "a")
    ask(policy, "w", context=900, now=11.0)

    end(policy, "w", "a", tokens=5, now=20.0)

    assert ask(policy, "x", now=21.0) == [("x", "a")]


def test_proposals_to_verl_let_a_conversation_leave_a_busy_server() -> None:
    def server_of_the_second_turn(policy: LeastInflight, num_more: int) -> str:
        """The server of a conversation that began on server a, with `num_more` requests on a than on b."""
        with_servers(policy, "a")
        for number in range(num_more + 1):
            ask(policy, f"{number}")
        policy.add_server("b", 100_000, 0.0)
        release(policy, "0", "a")
        return ask(policy, "0", context=50)[0].server

    assert [server_of_the_second_turn(LeastInflight(), more) for more in (2, 3, 9)] == ["a", "a", "a"]
    assert [server_of_the_second_turn(AffinityMargin(), more) for more in (2, 3, 9)] == ["a", "b", "b"]
    assert [server_of_the_second_turn(ImbalanceGate(), more) for more in (2, 8, 9)] == ["a", "a", "b"]


def test_rollouts_of_a_prompt_begin_together_in_the_row_of_honesty() -> None:
    policy = with_servers(TogetherLeastInflight())

    assert [ask(policy, f"{number}")[0].server for number in range(17)] == [*"a" * 8, *"b" * 8, "a"]


def test_the_next_step_knows_the_lengths_of_this_one() -> None:
    """At first 1,000 tokens are possible; after a step of rollouts of 100 tokens, many more rollouts fit."""
    policy = with_servers(KvForecast(budget=1_000, options=ForecastOptions(deviations=0.0)), "a", 3_000)

    def placed_at_once(step: int) -> int:
        return sum(len(ask(policy, f"{step}/{number}", now=100.0 * step)) for number in range(64))

    first = placed_at_once(0)
    running = [f"0/{number}" for number in range(first)]
    while running:
        running += [name for name, _ in end(policy, running.pop(), "a", tokens=100, now=50.0)]

    assert placed_at_once(1) > 1.5 * first


def test_turns_that_may_be_the_last_teach_the_lengths_where_no_end_is_reported() -> None:
    options = ForecastOptions(deviations=0.0)
    policy = with_servers(KvForecast(budget=1_000, prior_returning=1.0, options=options), "a", 3_000)
    running = [name for number in range(400) for name, _ in ask(policy, f"{number}")]
    num_at_first = len(running)

    for _ in range(32):
        running += [name for name, _ in release(policy, running.pop(0), "a", may_be_last=True, now=1.0)]

    assert len(running) > 1.5 * num_at_first


def test_survival_counts_running_rollouts_up_to_their_current_length() -> None:
    """Kaplan and Meier: of four one ends at 300, one runs at 600, one ends at 700, one runs at 900."""
    model = LengthModel(1_024, bin_tokens=256, prior=[1_024] * 4, prior_weight=1e-9)
    model.add_ended(300)
    model.add_ended(700)

    survival = model.survival([600, 900])

    assert survival == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.5], abs=1e-6)


def test_while_no_lengths_are_known_short_ones_are_likelier() -> None:
    """Lengths of 0, 256, ..., 1,024 tokens have the weights 5, 4, 3, 2 and 1."""
    survival = LengthModel(1_024, bin_tokens=256).survival(())

    assert survival == pytest.approx([each / 15 for each in (15, 10, 6, 3, 1)])


def test_rollouts_that_may_have_ended_count_as_ended_this_time_only() -> None:
    """Of two rollouts one may have ended at 300 tokens, and one runs at 600."""
    model = LengthModel(1_024, bin_tokens=256, prior=[1_024] * 4, prior_weight=1e-9)

    assert model.survival([600], [300]) == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.5], abs=1e-6)
    assert model.survival([600]) == pytest.approx([1.0] * 5, abs=1e-6)


def test_the_peak_is_the_most_tokens_held_at_once() -> None:
    """In bins of 256: when the third rollout reaches its end at 1,024 tokens, the others are at 512."""
    model = LengthModel(1_024, bin_tokens=256, prior=[1_024] * 64)

    assert model.peak([0.0, 0.0, 512.0], 0.0) == pytest.approx(640 + 640 + 1_152)


@pytest.mark.parametrize("budget", [100, 512, 1_024, 12_288])
def test_the_peak_of_evenly_spread_lengths_is_a_quarter_of_the_budget_each(budget: int) -> None:
    """Of rollouts up to B tokens, half still run at B / 2 tokens, which is the peak: B / 4 for each rollout."""
    model = LengthModel(budget, prior=[*range(0, budget + 1)])

    assert model.peak([0.0] * 100, 0.0) / 100 == pytest.approx(budget / 4, rel=0.05)


def test_deviations_raise_the_peak_only_where_lengths_differ() -> None:
    certain, uncertain = (
        LengthModel(1_024, bin_tokens=256, prior=[1_024] * 64),
        LengthModel(1_024, bin_tokens=256, prior=[128, 1_024] * 32),
    )

    assert certain.peak([0.0] * 4, 2.0) == certain.peak([0.0] * 4, 0.0)
    assert uncertain.peak([0.0] * 4, 2.0) > uncertain.peak([0.0] * 4, 0.0)
    assert np.isfinite(uncertain.peak([5_000.0], 1.0))
