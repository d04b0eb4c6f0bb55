"""Scenarios and seeds -> makespan and costs of each routing policy, beside the lower bound and verl's own router."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from verl_pivot.routing.baselines import CacheAware, KvAdmission, LeastInflight, Static
from verl_pivot.routing.kv_forecast import KvForecast
from verl_pivot.routing.routing_policy import RoutingPolicy
from verl_pivot.routing.simulator.bound import bound
from verl_pivot.routing.simulator.engine import RATES, EngineRates
from verl_pivot.routing.simulator.oracle import Oracle
from verl_pivot.routing.simulator.proposals import AffinityMargin, ImbalanceGate, TogetherLeastInflight
from verl_pivot.routing.simulator.sharded import ShardedForecast
from verl_pivot.routing.simulator.step import SimulatedStep, simulate
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_conversations

BASELINE = "least_inflight"
"""Routing policy that the others are compared with: the default of verl 0.9.1."""
_SEED_OF_STEP_BEFORE = 1_000_000
"""Number added to a step's seed to draw the step before it, whose lengths the routing policies know."""

_ROUNDING = 1e-9
"""Share of a makespan that its sum of many times may be rounded by: a rollout alone takes exactly its lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """A step that routing policies are compared on."""

    scenario: Scenario
    conversations: Sequence[SimulatedConversation]
    lengths_before: Sequence[int]
    """[num_rollouts] response tokens of the step before, which has other prompts."""
    returning_before: float
    """Share of that step's turns that another turn of their conversation followed."""


def _forecast(prior: Callable[[ComparedStep], Sequence[int]]) -> Callable[[ComparedStep], RoutingPolicy]:
    def make(setting: ComparedStep) -> KvForecast:
        lengths = prior(setting)
        returning = setting.returning_before if lengths else None
        return KvForecast(budget=setting.scenario.budget, prior=lengths, prior_returning=returning)

    return make


def _scaled(factor: float) -> Callable[[ComparedStep], list[int]]:
    return lambda setting: [min(setting.scenario.budget, int(factor * each)) for each in setting.lengths_before]


ROUTING_POLICIES: dict[str, Callable[[ComparedStep], RoutingPolicy]] = {
    "static": lambda setting: Static(num_conversations=len(setting.conversations)),
    BASELINE: lambda setting: LeastInflight(),
    "least_inflight_unbounded": lambda setting: LeastInflight(max_sessions=None),
    "least_inflight_together": lambda setting: TogetherLeastInflight(),
    "affinity_margin": lambda setting: AffinityMargin(),
    "imbalance_gate": lambda setting: ImbalanceGate(),
    "cache_aware": lambda setting: CacheAware(),
    "kv_admission": lambda setting: KvAdmission(budget=setting.scenario.budget),
    "kv_forecast": _forecast(_scaled(1.0)),
    "kv_forecast_4_shards": lambda setting: ShardedForecast(
        setting.scenario.num_engines,
        4,
        lambda: KvForecast(
            budget=setting.scenario.budget,
            prior=setting.lengths_before[::4],
            prior_returning=setting.returning_before,
        ),
    ),
    "kv_forecast_prior_0.6": _forecast(_scaled(0.6)),
    "kv_forecast_prior_1.6": _forecast(_scaled(1.6)),
    "kv_forecast_no_prior": _forecast(lambda setting: ()),
    "oracle": lambda setting: Oracle(
        {str(each.id): each.response_tokens for each in setting.conversations}, budget=setting.scenario.budget
    ),
}
"""{name: makes the routing policy for a step}.

`kv_forecast` knows the lengths of the step before. `kv_forecast_prior_0.6` and `_1.6` know these lengths times 0.6 and
1.6, `kv_forecast_no_prior` knows nothing, and `oracle` knows the lengths of the step itself. `kv_forecast_4_shards` has
four actors, each with a quarter of the engines. `affinity_margin` and `imbalance_gate` are proposals to verl, and
`least_inflight_together` is verl's router with blocks of prompts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """The outcome of every routing policy on one step, drawn with one seed."""

    scenario: str
    seed: int
    bound_seconds: float
    """Lower bound of the makespan of any schedule."""
    sticky_bound_seconds: float
    """Lower bound of the makespan of schedules in which rollouts stay on their engine."""
    outcomes: dict[str, SimulatedStep]
    """{routing policy: its outcome}."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def seed_result_from_json(text: str) -> SeedResult:
    """Decode what `SeedResult.to_json` wrote."""
    values = json.loads(text)
    outcomes = {policy: SimulatedStep(**outcome) for policy, outcome in values["outcomes"].items()}
    return SeedResult(**{**values, "outcomes": outcomes})


def compare_seed(
    name: str, scenario: Scenario, seed: int, policies: Sequence[str], rates: EngineRates = RATES["estimated"]
) -> SeedResult:
    """Draw a step of a scenario and roll it out under each policy.

    Args:
        name: Name of the scenario.
        scenario: The scenario.
        seed: Seed of the conversations that are drawn.
        policies: Names in ROUTING_POLICIES.
        rates: Speeds of the engines.
    """
    before = draw_conversations(scenario, seed + _SEED_OF_STEP_BEFORE)
    setting = compared_step(scenario, draw_conversations(scenario, seed), before)
    return compare(name, seed, setting, policies, rates)


def compared_step(
    scenario: Scenario, conversations: Sequence[SimulatedConversation], before: Sequence[SimulatedConversation]
) -> ComparedStep:
    """A step, with what the routing policies know of the step before it."""
    num_turns = sum(len(each.turns) for each in before)
    return ComparedStep(
        scenario=scenario,
        conversations=conversations,
        lengths_before=[each.response_tokens for each in before],
        returning_before=1.0 - len(before) / num_turns if num_turns else 0.0,
    )


def compare(
    name: str, seed: int, setting: ComparedStep, policies: Sequence[str], rates: EngineRates = RATES["estimated"]
) -> SeedResult:
    """Roll out the same conversations under each routing policy.

    Raises:
        AssertionError: If an outcome is faster than the lower bound.
    """
    scenario, conversations = setting.scenario, setting.conversations
    outcomes = {each: simulate(scenario, conversations, ROUTING_POLICIES[each](setting), rates) for each in policies}
    bounds = bound(scenario, conversations, rates)
    least = bounds.seconds
    for each, outcome in outcomes.items():
        assert outcome.makespan_seconds >= (1.0 - _ROUNDING) * least, (
            f"{each} took {outcome.makespan_seconds} s, but the lower bound is {least} s"
        )
    return SeedResult(
        scenario=name,
        seed=seed,
        bound_seconds=least,
        sticky_bound_seconds=bounds.sticky_seconds,
        outcomes=outcomes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """The results of one routing policy in one scenario, over all seeds."""

    policy: str
    makespan_seconds: float
    """Time until the last rollout ends: mean over the seeds."""
    speed_up: float
    """Makespan under verl's router / makespan: geometric mean over the seeds."""
    min_speed_up: float
    """Smallest speed-up of any seed."""
    bound_ratio: float
    """Makespan / its lower bound: geometric mean over the seeds."""
    sticky_bound_ratio: float
    """Makespan / its lower bound where rollouts stay on their engine: geometric mean over the seeds."""
    ninety_percent_seconds: float
    """Time until nine of ten rollouts have ended: mean over the seeds."""
    recomputed_share: float
    """Tokens of conversations that were computed again / generated tokens."""
    retracted_share: float
    """Retractions of running requests / rollouts."""
    num_moves: float
    """Turns that went to another engine than the turn before: mean over the seeds."""


def summarize(results: Sequence[SeedResult]) -> Iterable[ComparisonRow]:
    """One row per routing policy over the seeds of one scenario, in the order of the policies."""
    for policy in results[0].outcomes:
        outcomes = [result.outcomes[policy] for result in results]
        ratios = [
            result.outcomes[BASELINE].makespan_seconds / result.outcomes[policy].makespan_seconds for result in results
        ]
        yield ComparisonRow(
            policy=policy,
            makespan_seconds=fmean(each.makespan_seconds for each in outcomes),
            speed_up=_geometric_mean(ratios),
            min_speed_up=min(ratios),
            bound_ratio=_geometric_mean(
                [result.outcomes[policy].makespan_seconds / result.bound_seconds for result in results]
            ),
            sticky_bound_ratio=_geometric_mean(
                [result.outcomes[policy].makespan_seconds / result.sticky_bound_seconds for result in results]
            ),
            ninety_percent_seconds=fmean(each.ninety_percent_seconds for each in outcomes),
            recomputed_share=sum(each.recomputed_tokens for each in outcomes)
            / sum(each.generated_tokens for each in outcomes),
            retracted_share=sum(each.num_retracted for each in outcomes) / sum(each.num_rollouts for each in outcomes),
            num_moves=fmean(each.num_moves for each in outcomes),
        )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))
