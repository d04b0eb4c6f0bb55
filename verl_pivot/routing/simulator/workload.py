"""Scenario and seed -> the conversations of one simulated training step, with all their lengths drawn in advance."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from verl_pivot.errors import ConfigError

_BOOLS = {"true": True, "false": False}


class _Range(NamedTuple):
    """Values that a field of a scenario may have."""

    least: float
    most: float = 1e9


_RANGES = {
    "num_engines": _Range(1),
    "capacity": _Range(1),
    "max_running": _Range(1),
    "num_slow_engines": _Range(0),
    "slow_factor": _Range(0.001),
    "dies_at_seconds": _Range(0),
    "num_groups": _Range(1),
    "group_size": _Range(1),
    "prompt_tokens": _Range(1),
    "budget": _Range(1),
    "median_tokens": _Range(1),
    "prompt_sigma": _Range(0, 10),
    "rollout_sigma": _Range(0, 10),
    "last_turn": _Range(0, 1),
    "max_turns": _Range(1),
    "observation_tokens": _Range(0),
    "mean_wait_seconds": _Range(0),
    "max_wait_seconds": _Range(0),
    "hard_groups": _Range(0, 1),
    "hard_factor": _Range(0.001),
}
"""{field of a scenario that is a number: its range}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """One turn of the policy, and the observations and waiting time of its tools."""

    generated: int
    """Tokens that the policy samples, >= 1."""
    observed: int = 0
    """Tokens of the tools' observations; 0 after the last turn."""
    wait_seconds: float = 0.0
    """Seconds until the tools have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConversation:
    """One rollout, with the length of each turn.

    Example:
        SimulatedConversation(id=3, group=0, prompt_tokens=1024, turns=(SimulatedTurn(generated=900),))
    """

    id: int
    group: int
    """Number of its prompt, which the rollouts of a group share."""
    prompt_tokens: int
    turns: tuple[SimulatedTurn, ...]
    context_tokens: int = 0
    """Tokens of its response from earlier steps, before the first of these turns."""

    @property
    def response_tokens(self) -> int:
        """Tokens of the whole response, observations included."""
        return self.context_tokens + sum(turn.generated + turn.observed for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The engines of a simulation, and the distribution from which its rollouts are drawn.

    Lengths of responses are lognormal, with a deviation per prompt and one per rollout; numbers of turns are geometric.
    """

    num_engines: int = 64
    capacity: int = 400_000
    """Tokens that the KV cache of one engine holds."""
    has_reservation: bool = True
    """Whether an engine admits a request only if there is room for the tokens that it may generate, as SGLang does."""
    has_exact_limits: bool = False
    """Whether engines know the length of each turn, as if only a token limit ended it. Routers never know it."""
    max_running: int = 1_024
    """Maximum number of requests that an engine runs at once; verl gives SGLang 1,024."""
    num_slow_engines: int = 0
    """Number of engines that need `slow_factor` times as long for everything. Routing policies do not know which."""
    slow_factor: float = 2.0
    dies_at_seconds: float = 0.0
    """Time at which the first engine dies, with all requests that run on it; 0 where none dies."""
    reports_end: bool = True
    """Whether agent loops report the end of a conversation, as ours do and verl's own do not."""
    num_groups: int = 512
    """Number of prompts of a step."""
    group_size: int = 32
    """Number of rollouts of each prompt."""
    prompt_tokens: int = 1_024
    budget: int = 12_288
    """Maximum number of tokens of a response, observations included; longer ones are cut."""
    median_tokens: float = 2_450.0
    """Median of the responses' tokens before they are cut."""
    prompt_sigma: float = 0.7
    """Standard deviation of log(tokens) between prompts."""
    rollout_sigma: float = 0.55
    """Standard deviation of log(tokens) between the rollouts of a prompt."""
    last_turn: float = 0.35
    """Probability that a turn is the last."""
    max_turns: int = 10
    observation_tokens: int = 200
    """Mean tokens of the observations after a turn."""
    mean_wait_seconds: float = 1.0
    """Mean time until the tools of a turn have answered."""
    max_wait_seconds: float = 10.0
    """Longest time until the tools of a turn have answered."""
    hard_groups: float = 0.0
    """Share of the prompts whose responses are `hard_factor` times as long. They are the first of the step."""
    hard_factor: float = 4.0

    @property
    def has_one_turn(self) -> bool:
        """Whether the agent loop says that every conversation has one turn, as ours for single turns does."""
        return self.last_turn == 1.0 and self.reports_end


SCENARIOS = {
    "A": Scenario(),
    "M": Scenario(last_turn=0.12),
    "F": Scenario(median_tokens=6_000.0),
    "S": Scenario(capacity=150_000),
    "D": Scenario(capacity=4_000_000),
    "L": Scenario(num_groups=64),
    "E": Scenario(hard_groups=0.1),
    "G": Scenario(num_engines=8, num_groups=64),
    "H": Scenario(num_engines=512, num_groups=4_096),
    "V": Scenario(has_reservation=False),
    "W": Scenario(last_turn=0.06, max_turns=20, mean_wait_seconds=20.0, max_wait_seconds=60.0),
}
_A = SCENARIOS["A"]
SCENARIOS |= {
    "A1": replace(_A, last_turn=1.0),
    "G1": replace(SCENARIOS["G"], last_turn=1.0),
    "A1-stock": replace(_A, last_turn=1.0, reports_end=False),
    "A-stock": replace(_A, reports_end=False),
    "A-slow": replace(_A, num_slow_engines=1),
    "A-3-slow": replace(_A, num_slow_engines=3),
    "D-slow": replace(SCENARIOS["D"], num_slow_engines=1),
    "A1-slow": replace(_A, last_turn=1.0, num_slow_engines=1),
    "A-dies": replace(_A, dies_at_seconds=100.0),
    "A-0.7": replace(_A, median_tokens=0.7 * _A.median_tokens),
    "A-1.5": replace(_A, median_tokens=1.5 * _A.median_tokens),
    "A-tail": replace(_A, median_tokens=1_500.0, rollout_sigma=1.0),
    "A-tools": replace(_A, mean_wait_seconds=3.0, max_wait_seconds=30.0),
    "A-half": replace(_A, capacity=200_000),
    "M-64": replace(SCENARIOS["M"], max_running=64),
}
"""{name: scenario}. A: memory pressure; M: many turns; F: long responses; S: severe memory pressure; D: no memory
pressure; L: light load; E: prompts of long responses come first; G: 8 engines; H: 512 engines; V: engines that reserve
no memory; W: slow tools.

The others change one thing of the scenario before the hyphen. 1: one turn; stock: agent loops that do not report the
end of conversations; slow: one or three engines at half the speed; dies: an engine dies after 100 s; 0.7, 1.5: times
the lengths of responses; tail: more varied lengths; tools: three times the waiting for tools; half: half the KV cache;
64: engines run 64 requests at most.
"""


def shrink(scenario: Scenario, factor: int) -> Scenario:
    """The scenario with the same load on each engine, and `factor` times fewer engines."""
    return replace(
        scenario,
        num_engines=max(1, scenario.num_engines // factor),
        num_groups=max(1, scenario.num_groups // factor),
    )


def all_scenarios() -> dict[str, Scenario]:
    """All scenarios but H, with 16 engines at most and the load of each engine unchanged."""
    return {
        name: shrink(scenario, max(1, scenario.num_engines // 16))
        for name, scenario in SCENARIOS.items()
        if name != "H"
    }


def with_options(scenario: Scenario, options: Sequence[str]) -> Scenario:
    """The scenario with some of its fields changed.

    Args:
        scenario: The scenario.
        options: `field=value` each, as on the command line.

    Raises:
        ConfigError: If a field is unknown, its value has another type or is out of its range, or no engine could run
            the longest rollout.
    """
    types = {name: type(value) for name, value in asdict(Scenario()).items()}
    chosen: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        if name not in types:
            raise ConfigError(f"--set {option}: unknown field {name!r}; scenarios have the fields {', '.join(types)}")
        try:
            chosen[name] = _BOOLS[text.lower()] if types[name] is bool else types[name](text)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"--set {option}: {name} must be of type {types[name].__name__}, such as {getattr(scenario, name)}, "
                f"got {text!r}"
            ) from error
        if (allowed := _RANGES.get(name)) and not allowed.least <= chosen[name] <= allowed.most:
            raise ConfigError(f"--set {option}: {name} must be from {allowed.least:g} to {allowed.most:g}")
    changed = replace(scenario, **chosen)
    _check_engines(changed)
    return changed


def _check_engines(scenario: Scenario) -> None:
    if scenario.capacity < scenario.prompt_tokens + scenario.budget:
        raise ConfigError(
            f"an engine with capacity={scenario.capacity} cannot hold a rollout with prompt_tokens="
            f"{scenario.prompt_tokens} and budget={scenario.budget}: let --set capacity be at least their sum"
        )
    if scenario.dies_at_seconds and scenario.num_engines == 1:
        raise ConfigError(
            "the only engine cannot die: let --set num_engines be 2 or more, or give --set dies_at_seconds=0"
        )


def draw_conversations(scenario: Scenario, seed: int) -> list[SimulatedConversation]:
    """All rollouts of a step, prompt by prompt, in the order in which they ask for an engine."""
    rng = random.Random(f"workload/{seed}")
    conversations: list[SimulatedConversation] = []
    for group in range(scenario.num_groups):
        is_hard = group < scenario.hard_groups * scenario.num_groups
        centre = math.log(scenario.median_tokens * (scenario.hard_factor if is_hard else 1.0))
        centre += rng.gauss(0.0, scenario.prompt_sigma)
        conversations += draw_group(scenario, group, centre, scenario.group_size, rng)
    return conversations


def draw_group(
    scenario: Scenario, group: int, centre: float, num_rollouts: int, rng: random.Random
) -> list[SimulatedConversation]:
    """Rollouts of one prompt; their ids are unique if all prompts have the same `num_rollouts`.

    Args:
        scenario: The distribution around the prompt's mean.
        group: Number of the prompt.
        centre: Mean of log(tokens) of the prompt's responses.
        num_rollouts: Number of rollouts to draw.
        rng: Source of the draws.
    """
    conversations = []
    for number in range(num_rollouts):
        total = min(scenario.budget, max(8, round(math.exp(centre + rng.gauss(0.0, scenario.rollout_sigma)))))
        conversations.append(
            SimulatedConversation(
                id=group * num_rollouts + number,
                group=group,
                prompt_tokens=scenario.prompt_tokens,
                turns=_turns(scenario, total, rng),
            )
        )
    return conversations


def _turns(scenario: Scenario, total: int, rng: random.Random) -> tuple[SimulatedTurn, ...]:
    """Split a response of `total` tokens into turns of random length, with observations between them."""
    num_turns = 1
    while num_turns < scenario.max_turns and rng.random() > scenario.last_turn:
        num_turns += 1
    num_turns = min(num_turns, max(1, total // 4))
    mean_observed = min(scenario.observation_tokens, total / (2 * num_turns))
    observed = [max(1, round(rng.uniform(0.5, 1.5) * mean_observed)) for _ in range(num_turns - 1)]
    generated = max(num_turns, total - sum(observed))
    weights = [rng.expovariate(1.0) + 0.2 for _ in range(num_turns)]
    parts = [max(1, int(generated * weight / sum(weights))) for weight in weights]
    # exp(N(-0.5, 1)) has mean 1.
    waits = [
        min(scenario.max_wait_seconds, scenario.mean_wait_seconds * math.exp(rng.gauss(-0.5, 1.0)))
        for _ in range(num_turns - 1)
    ]
    return tuple(
        SimulatedTurn(generated=part, observed=seen, wait_seconds=wait)
        for part, seen, wait in zip(parts, [*observed, 0], [*waits, 0.0], strict=True)
    )
