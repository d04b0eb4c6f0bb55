"""routing.simulator: engines, the lower bound, and the duration of a step under each routing policy."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.launching import cli
from tests.support.rollout_records import make_record, write_dump
from verl_pivot.commands.route import RESULTS, journal_settings
from verl_pivot.data.journal import open_journal
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.routing.baselines import Static
from verl_pivot.routing.routing_policy import ConversationEnd, Placement, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.simulator.bound import bound
from verl_pivot.routing.simulator.comparison import (
    ROUTING_POLICIES,
    ComparedStep,
    compare,
    compare_seed,
    compared_step,
    summarize,
)
from verl_pivot.routing.simulator.engine import EngineRates, EngineRequest, SimulatedEngine
from verl_pivot.routing.simulator.oracle import Oracle
from verl_pivot.routing.simulator.recorded import read_conversations
from verl_pivot.routing.simulator.step import simulate
from verl_pivot.routing.simulator.workload import (
    SCENARIOS,
    Scenario,
    SimulatedConversation,
    SimulatedTurn,
    all_scenarios,
    draw_conversations,
    shrink,
    with_options,
)

RATES = EngineRates()
ONE = Scenario(num_engines=1, num_groups=1, group_size=1, capacity=100_000, prompt_tokens=100)
SMALL = Scenario(num_engines=4, num_groups=16, group_size=8, capacity=60_000, median_tokens=1_500.0, budget=6_000)


def conversation(
    *turns: SimulatedTurn, id_: int = 0, group: int = 0, prompt_tokens: int = 100
) -> SimulatedConversation:
    return SimulatedConversation(id=id_, group=group, prompt_tokens=prompt_tokens, turns=turns)


def request(remaining: int, *, conversation: int = 0, group: int = 0, context: int = 0) -> EngineRequest:
    return EngineRequest(
        conversation=conversation, group=group, prompt_tokens=100, context=context, computed=0,
        remaining=remaining, max_new=remaining,
    )  # fmt: skip


def engine(
    capacity: int = 100_000, *, has_reservation: bool = True, max_running: int = 1_024, rates: EngineRates = RATES
) -> SimulatedEngine:
    return SimulatedEngine(capacity, rates, has_reservation=has_reservation, max_running=max_running)


def run_to_end(simulated: SimulatedEngine) -> list[tuple[float, int]]:
    """[(seconds, conversation)] of the turns that end, in order."""
    ended = []
    while not math.isinf(simulated.next_time):
        now = simulated.next_time
        ended += [(now, each.conversation) for each in simulated.advance()]
    return ended


def test_one_turn_takes_the_time_of_its_prefill_and_its_decode_steps() -> None:
    simulated = engine()
    simulated.submit(request(10), 0.0)

    ((seconds, _),) = run_to_end(simulated)

    prefill = 100 / 16_000 + 12e-3
    decode = 10 * (11.5e-3 + 45e-6) + 61e-9 * (10 * 100 + 45)
    assert seconds == pytest.approx(prefill + decode, abs=1e-12)


def test_a_turn_submitted_during_a_decode_step_waits_for_the_end_of_that_step() -> None:
    simulated = engine()
    simulated.submit(request(100), 0.0)
    simulated.advance()
    began = simulated.next_time - 0.5

    simulated.submit(request(1, conversation=1), began)

    step = 11.5e-3 + 45e-6 + 61e-9 * 100
    assert began <= simulated.next_time < began + 1.2 * step


def test_the_prompt_of_a_group_is_prefilled_once() -> None:
    simulated = engine()
    for number in range(8):
        simulated.submit(request(5, conversation=number), 0.0)

    run_to_end(simulated)

    assert simulated.counts.prefilled_tokens == 100
    assert simulated.counts.generated_tokens == 40


def test_requests_of_one_prefill_share_only_prompts_that_were_cached_before() -> None:
    """SGLang looks a prompt up when it admits a request, and caches it when its prefill has ended."""
    simulated = engine()
    simulated.submit(request(50, conversation=9, group=9), 0.0)  # is prefilled alone
    for number in range(4):
        simulated.submit(request(5, conversation=number), 0.0)  # wait for that prefill, and are prefilled together
    simulated.advance()
    simulated.advance()

    simulated.submit(request(5, conversation=4), simulated.next_time - 1e-6)
    run_to_end(simulated)

    assert simulated.counts.prefilled_tokens == 100 + 4 * 100 + 0


def test_a_full_batch_takes_no_request_until_one_ends() -> None:
    """At the start all 4 * 100 + 3 * 300 + 800 tokens would be reserved, which are more than 1,900.

    After one decode step 0.7 of what the first three may generate is reserved, so that the last request would fit.
    """
    simulated = engine(1_900)
    for number, tokens in enumerate((300, 300, 300, 800)):
        simulated.submit(request(tokens, conversation=number, group=number), 0.0)

    ended = {number: seconds for seconds, number in run_to_end(simulated)}

    assert ended[0] == ended[1] == ended[2]
    assert ended[3] > ended[2] + 800 * RATES.step_seconds


def test_a_retraction_ends_as_soon_as_the_next_decode_step_fits() -> None:
    """Three requests of 100 + 500 tokens fill 1,500 tokens after 400 steps; without one of them the others fit."""
    simulated = engine(1_500, has_reservation=False)
    for number in range(3):
        simulated.submit(request(500, conversation=number, group=number), 0.0)

    run_to_end(simulated)

    assert simulated.counts.num_retracted == 1


def test_an_engine_whose_prefills_take_no_time_of_their_own_goes_on() -> None:
    scenario = Scenario(
        num_engines=1,
        capacity=12_288,
        num_groups=12,
        group_size=8,
        prompt_tokens=128,
        budget=1_024,
        median_tokens=307.0,
    )
    conversations = draw_conversations(scenario, 0)

    outcome = simulate(scenario, conversations, Static(num_conversations=96), EngineRates(prefill_batch_seconds=0.0))

    assert outcome.num_rollouts == 96


def test_an_engine_runs_no_more_requests_than_its_limit() -> None:
    simulated = engine(max_running=2)
    for number in range(6):
        simulated.submit(request(20, conversation=number, group=number), 0.0)

    most = 0
    while not math.isinf(simulated.next_time):
        most = max(most, simulated.num_running)
        simulated.advance()

    assert most == 2
    assert simulated.counts.generated_tokens == 6 * 20


def test_a_slow_engine_needs_its_factor_of_the_time() -> None:
    def seconds(factor: float) -> float:
        simulated = engine(rates=RATES.slowed(factor))
        simulated.submit(request(30), 0.0)
        ((found, _),) = run_to_end(simulated)
        return found

    assert seconds(3.0) == pytest.approx(3.0 * seconds(1.0))


@pytest.mark.parametrize("name", ["least_inflight", "kv_admission", "kv_forecast", "cache_aware", "static"])
def test_turns_on_an_engine_that_dies_are_repeated_elsewhere(name: str) -> None:
    scenario = replace(SMALL, dies_at_seconds=10.0)

    outcome = compare_seed("dies", scenario, 0, ["least_inflight", name]).outcomes[name]  # the call asserts the tokens

    unharmed = compare_seed("lives", SMALL, 0, ["least_inflight", name]).outcomes[name]
    assert outcome.generated_tokens > unharmed.generated_tokens


def test_a_prefix_stays_cached_until_other_conversations_need_the_memory() -> None:
    def recomputed_tokens(capacity: int) -> int:
        simulated = engine(capacity, has_reservation=False)
        simulated.submit(request(500), 0.0)
        run_to_end(simulated)
        simulated.submit(request(400, conversation=1, group=1), 100.0)
        run_to_end(simulated)
        back = request(10, context=520)
        back.computed = 500
        simulated.submit(back, 200.0)
        run_to_end(simulated)
        return simulated.counts.recomputed_tokens

    assert recomputed_tokens(capacity=10_000) == 0
    assert recomputed_tokens(capacity=800) == 500


def test_an_engine_without_reservation_retracts_requests_that_do_not_fit_and_ends_all() -> None:
    simulated = engine(2_000, has_reservation=False)
    for number in range(8):
        simulated.submit(request(600, conversation=number), 0.0)

    ended = run_to_end(simulated)

    assert sorted(number for _, number in ended) == list(range(8))
    assert simulated.counts.generated_tokens == 8 * 600
    assert simulated.counts.num_retracted > 0
    assert simulated.locked == 0


def test_a_single_conversation_takes_as_long_as_its_critical_path() -> None:
    alone = [conversation(SimulatedTurn(generated=300, observed=50, wait_seconds=2.0), SimulatedTurn(generated=200))]

    outcome = simulate(ONE, alone, Static(num_conversations=1))

    assert outcome.makespan_seconds == pytest.approx(bound(ONE, alone, RATES).critical_path, rel=1e-9)


def test_without_reports_of_the_end_every_turn_may_be_the_last() -> None:
    policy = _Recorder()

    simulate(replace(ONE, reports_end=False), [conversation(SimulatedTurn(generated=7))], policy)

    assert [type(call) for call in policy.calls] == [TurnRequest, TurnRelease]
    assert isinstance(policy.calls[1], TurnRelease)
    assert policy.calls[1].may_be_last


class _Recorder:
    """Routing policy that sends every turn to server 0 and records its calls."""

    def __init__(self) -> None:
        self.calls: list[TurnRequest | TurnRelease | ConversationEnd] = []

    def acquire(self, request: TurnRequest) -> list[Placement]:
        self.calls.append(request)
        return [Placement(request.conversation, "0")]

    def release(self, release: TurnRelease) -> list[Placement]:
        self.calls.append(release)
        return []

    def end(self, end: ConversationEnd) -> list[Placement]:
        self.calls.append(end)
        return []

    def add_server(self, name: str, capacity: int, now: float, *, max_running: int | None = None) -> list[Placement]:
        return []

    def remove_server(self, name: str, now: float) -> list[Placement]:
        return []

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        pass


def test_a_policy_learns_what_a_router_sees_and_no_future_lengths() -> None:
    policy = _Recorder()

    simulate(
        ONE,
        [conversation(SimulatedTurn(generated=7, observed=3, wait_seconds=1.0), SimulatedTurn(generated=5))],
        policy,
    )

    first, released, second, _, over = policy.calls
    assert isinstance(first, TurnRequest)
    assert isinstance(second, TurnRequest)
    assert isinstance(over, ConversationEnd)
    assert (first.context_tokens, second.context_tokens, over.response_tokens) == (0, 10, 15)
    assert released == TurnRelease(conversation="0", server="0", now=released.now)
    assert not hasattr(first, "turns")


def test_the_oracle_admits_the_longest_rollouts_whose_peak_fits_the_cache() -> None:
    """Rollouts of 500 and 300 tokens peak at 2 x (300 + 50 of the prompt); one of 100 adds only its prompt."""

    def admitted(capacity: int) -> list[str]:
        oracle = Oracle({"a": 100, "b": 500, "c": 300}, budget=1_000)
        oracle.add_server("0", capacity, 0.0)
        requests = [
            TurnRequest(conversation=name, group=name, prompt_tokens=50, context_tokens=0, now=0.0) for name in "abc"
        ]
        return [placement.conversation for request in requests for placement in oracle.acquire(request)]

    fill = 0.85
    assert admitted(math.ceil(750 / fill)) == ["b", "c", "a"]
    assert admitted(math.ceil(700 / fill)) == ["b", "c"]
    assert admitted(math.floor(699 / fill)) == ["b"]


@pytest.mark.parametrize("name", ROUTING_POLICIES)
def test_every_policy_ends_every_rollout_and_is_deterministic(name: str) -> None:
    def run() -> object:
        conversations = draw_conversations(SMALL, 3)
        setting = ComparedStep(
            scenario=SMALL, conversations=conversations, lengths_before=[1_000, 2_000, 3_000], returning_before=0.6
        )
        policy: RoutingPolicy = ROUTING_POLICIES[name](setting)
        return simulate(SMALL, conversations, policy)

    assert run() == run()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    capacity=st.sampled_from([8_000, 30_000, 1_000_000]),
    has_reservation=st.booleans(),
    name=st.sampled_from(list(ROUTING_POLICIES)),
)
def test_tokens_are_conserved_and_no_schedule_beats_the_bound(
    seed: int, capacity: int, has_reservation: bool, name: str
) -> None:
    scenario = replace(SMALL, num_groups=6, capacity=capacity, has_reservation=has_reservation)

    result = compare_seed("any", scenario, seed, ["least_inflight", name])  # the call asserts the bound

    assert result.outcomes[name].generated_tokens == sum(
        turn.generated for each in draw_conversations(scenario, seed) for turn in each.turns
    )


def test_scenarios_have_the_documented_lengths_and_numbers_of_turns() -> None:
    """16,384 rollouts; responses of 3 to 4 thousand tokens, 3 % at the budget and 21 % in F; 2.8 turns and six in M."""
    drawn = {name: draw_conversations(SCENARIOS[name], 0) for name in "AMF"}

    lengths = {name: [each.response_tokens for each in found] for name, found in drawn.items()}
    turns = {name: sum(len(each.turns) for each in found) / len(found) for name, found in drawn.items()}
    assert {len(found) for found in drawn.values()} == {16_384}
    assert 3_000 < sum(lengths["A"]) / 16_384 < 4_000
    assert 0.02 < sum(length > 12_200 for length in lengths["A"]) / 16_384 < 0.05
    assert 0.18 < sum(length > 12_100 for length in lengths["F"]) / 16_384 < 0.24
    assert 2.6 < turns["A"] < 3.0
    assert 5.7 < turns["M"] < 6.2


def test_a_smaller_scenario_has_the_same_load_on_each_engine() -> None:
    assert shrink(SCENARIOS["A"], 8) == replace(SCENARIOS["A"], num_engines=8, num_groups=64)


def test_the_bound_for_sticky_rollouts_is_the_stricter_one() -> None:
    found = bound(SMALL, draw_conversations(SMALL, 0), RATES)

    assert found.seconds == max(found.work, found.critical_path)
    assert found.sticky_seconds == max(found.seconds, found.packing) > found.seconds


@pytest.mark.parametrize("name", ["A1", "G1", "A1-stock"])
def test_single_turns_are_never_slower_than_under_verls_router(name: str) -> None:
    """Without returning turns there is nothing to hold back for, so that a step is at most 3 % slower."""
    scenario = shrink(SCENARIOS[name], SCENARIOS[name].num_engines // 4)
    results = [compare_seed(name, scenario, seed, ["least_inflight", "kv_forecast"]) for seed in range(2)]

    _, ours = summarize(results)

    assert ours.min_speed_up > 0.97


def test_a_first_step_whose_agent_loops_report_no_end_is_not_slower_than_under_verls_router() -> None:
    """No length is known at its beginning, and lengths are learnt from turns that may be the last."""
    scenario = shrink(SCENARIOS["A-stock"], SCENARIOS["A-stock"].num_engines // 4)
    results = [compare_seed("A-stock", scenario, seed, ["least_inflight", "kv_forecast_no_prior"]) for seed in range(3)]

    _, ours = summarize(results)

    assert ours.min_speed_up > 0.98


def test_all_scenarios_have_16_engines_at_most_and_their_load() -> None:
    found = all_scenarios()

    assert set(found) == set(SCENARIOS) - {"H"}
    assert {scenario.num_engines for scenario in found.values()} == {16, 8}
    assert {scenario.num_groups / scenario.num_engines for scenario in found.values()} == {8, 1}  # 1 in scenario L


def test_a_simulation_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """The journal holds a result that no simulation gives, so that the table shows where it comes from."""
    out = tmp_path / "table.json"
    scenario = with_options(SCENARIOS["L"], ["num_engines=2", "num_groups=2"])
    done = compare_seed("L", scenario, 0, ["least_inflight"])
    outcomes = {"least_inflight": replace(done.outcomes["least_inflight"], makespan_seconds=123456.0)}
    with open_journal(out, journal_settings({"L": scenario}, ["least_inflight"], "estimated")) as journal:
        journal.append_to(RESULTS).write(f"{replace(done, outcomes=outcomes).to_json()}\n".encode())
        journal.commit({})

    finished = cli("route", "simulate", "--scenario", "L", "--policy", "least_inflight", "--seeds", "1", "--workers",
                   "1", "--set", "num_engines=2", "--set", "num_groups=2", "--out", out)  # fmt: skip

    assert finished.returncode == 0, finished.stderr
    assert json.loads(out.read_text())["L"][0]["makespan_seconds"] == 123456.0
    assert list(tmp_path.iterdir()) == [out]


def test_rows_of_the_table_give_speed_ups_over_verls_router() -> None:
    results = [compare_seed("small", SMALL, seed, ["least_inflight", "kv_forecast"]) for seed in range(2)]

    baseline, ours = summarize(results)

    assert (baseline.speed_up, baseline.min_speed_up) == (1.0, 1.0)
    ratios = [
        each.outcomes["least_inflight"].makespan_seconds / each.outcomes["kv_forecast"].makespan_seconds
        for each in results
    ]
    assert ours.speed_up == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert ours.min_speed_up == min(ratios)
    assert ours.bound_ratio >= 1.0


@pytest.mark.heavy
def test_the_command_prints_a_table_and_refuses_unknown_names() -> None:
    done = cli("route", "simulate", "--scenario", "L", "--policy", "oracle", "--policy", "kv_forecast", "--seeds", "1",
               "--workers", "1", "--rates", "measured")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kv_forecast" in done.stdout
    assert "oracle      knows the length of every response in advance" in done.stdout
    assert "L: means of 1 steps, lower bound" in done.stdout

    assert "kv_forecast" in cli("route", "simulate", "--help").stdout
    refused = cli("route", "simulate", "--policy", "kv_forecats")
    assert refused.returncode == 1
    assert "error: --policy kv_forecats: unknown name, choose from static, least_inflight" in refused.stderr
    refused = cli("route", "simulate", "--rates", "guessed")
    assert refused.returncode == 1
    assert "error: --rates guessed: unknown name, choose from estimated, measured" in refused.stderr


def test_a_field_of_a_scenario_can_be_set_and_an_unknown_one_lists_all_fields() -> None:
    changed = with_options(SCENARIOS["A"], ["capacity=300000", "has_reservation=false", "last_turn=0.5"])

    assert changed == replace(SCENARIOS["A"], capacity=300_000, has_reservation=False, last_turn=0.5)
    with pytest.raises(
        ConfigError, match="--set capasity=1: unknown field 'capasity'; scenarios have the fields num_engines, capacity"
    ):
        with_options(SCENARIOS["A"], ["capasity=1"])
    with pytest.raises(
        ConfigError, match="--set capacity=much: capacity must be of type int, such as 400000, got 'much'"
    ):
        with_options(SCENARIOS["A"], ["capacity=much"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("num_engines=0", "num_engines must be from 1 to 1e+09"),
        ("max_running=0", "max_running must be from 1 to 1e+09"),
        ("prompt_sigma=11", "prompt_sigma must be from 0 to 10"),
        ("slow_factor=0", "slow_factor must be from 0.001 to 1e+09"),
        ("hard_groups=1.5", "hard_groups must be from 0 to 1"),
        ("median_tokens=inf", "median_tokens must be from 1 to 1e+09"),
    ],
)
def test_a_value_of_a_field_out_of_its_range_is_refused_with_the_range(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--set {re.escape(f'{option}: {message}')}$"):
        with_options(SCENARIOS["A"], [option])


def test_every_number_of_a_scenario_has_a_range_from_0_on() -> None:
    numbers = {name: value for name, value in asdict(Scenario()).items() if not isinstance(value, bool)}

    for name, value in numbers.items():
        for text in ("-1",) if isinstance(value, int) else ("-1", "nan", "inf"):
            with pytest.raises(ConfigError, match=f"^--set {name}={text}: {name} must be from "):
                with_options(SCENARIOS["A"], [f"{name}={text}"])


def test_known_scenarios_are_within_their_ranges() -> None:
    for scenario in SCENARIOS.values():
        values = [f"{name}={value}" for name, value in asdict(scenario).items()]
        assert with_options(SCENARIOS["A"], values) == scenario


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["capacity=13311"],
            r"^an engine with capacity=13311 cannot hold a rollout with prompt_tokens=1024 and budget=",
        ),
        (["num_engines=1", "dies_at_seconds=5"], "^the only engine cannot die: let --set num_engines be 2 or more, or"),
    ],
)
def test_engines_that_could_not_run_every_rollout_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_options(SCENARIOS["A"], options)
    with_options(SCENARIOS["A"], ["capacity=13312"])
    with_options(SCENARIOS["A"], ["num_engines=2", "dies_at_seconds=5"])


def recorded_rollout(*turn_tokens: int) -> RolloutRecord:
    calls = [
        CallRecord(turn=0, name="jupyter_code", arguments={}, status=CallStatus.OK, seconds=seconds, num_tokens=30)
        for seconds in (0.5, 0.25)
    ]
    return make_record(prompt_tokens=50, calls=tuple(calls), turn_tokens=turn_tokens)


def test_recorded_rollouts_are_rolled_out_again(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "1.jsonl", {"a_0_0": recorded_rollout(10, 20), "a_1_0": recorded_rollout(7)})

    assert read_conversations(dump) == [
        conversation(
            SimulatedTurn(generated=10, observed=60, wait_seconds=0.75), SimulatedTurn(generated=20), prompt_tokens=50
        ),
        conversation(SimulatedTurn(generated=7), id_=1, prompt_tokens=50),
    ]  # fmt: skip
    done = cli("route", "simulate", "--recorded", dump, "--set", "num_engines=2", "--policy", "kv_forecast")
    assert done.returncode == 0, done.stderr
    assert "1.jsonl: means of 1 steps, lower bound" in done.stdout


@pytest.mark.parametrize("size", [1, 8, 128])
def test_all_recorded_rollouts_of_a_prompt_bear_an_equal_share_of_it_in_the_bound(size: int) -> None:
    scenario = replace(SMALL, num_engines=1)  # with groups of 8
    recorded = [conversation(SimulatedTurn(generated=100), id_=each, prompt_tokens=20_000) for each in range(size)]

    found = bound(scenario, recorded, RATES)
    result = compare("recorded", 0, compared_step(scenario, recorded, []), ["least_inflight"])

    response_reads = size * (100 * 99 / 2)
    steps = (response_reads + 100 * 20_000) / 60_000
    reads = response_reads + size * 100 * 20_000
    assert found.work == pytest.approx(11.5e-3 * steps + 45e-6 * size * 100 + 61e-9 * reads + 20_000 / 16_000)
    assert result.bound_seconds == found.seconds
    assert result.outcomes["least_inflight"].makespan_seconds >= found.seconds - 1e-9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; leave it out"),
        ('{"uid": "a_0_0"}', r"line 1 is not a rollout \(Object missing required field `score`\): give a file"),
    ],
)
def test_a_file_without_recorded_rollouts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "1.jsonl").write_text(text)

    with pytest.raises(DataError, match=message):
        read_conversations(tmp_path / "1.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--before", "0.jsonl"), "--before does nothing without --recorded: name the recorded step, too"),
        (("--recorded", "1.jsonl", "--all"), "--all does nothing with --recorded"),
        (("--recorded", "1.jsonl", "--seeds", "2"), "--seeds does nothing with --recorded"),
        (("--recorded", "1.jsonl", "--scenario", "A", "--scenario", "M"), "a second --scenario does nothing with"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: tuple[str, ...], message: str) -> None:
    done = cli("route", "simulate", *options)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {message}")
