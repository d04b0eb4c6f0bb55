"""Scenario and seed -> the conversations of one training step, drawn in advance: what no scheduler may see."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from verl_pivot.errors import ConfigError

_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """One turn of the policy and what its tools give back."""

    generated: int
    """Tokens that it samples, >= 1."""
    observed: int = 0
    """Tokens that its tools add; 0 after the last turn."""
    wait_seconds: float = 0.0
    """Until they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConversation:
    """One rollout.

    Example:
        SimulatedConversation(id=3, group=0, prompt_tokens=1024, turns=(SimulatedTurn(generated=900),))
    """

    id: int
    group: int
    """Number of the prompt, which the rollouts of a group share."""
    prompt_tokens: int
    turns: tuple[SimulatedTurn, ...]

    @property
    def response_tokens(self) -> int:
        return sum(turn.generated + turn.observed for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Engines, and how rollouts are drawn: lognormal per prompt and per rollout, geometric turns."""

    num_engines: int = 64
    capacity: int = 400_000
    """KV tokens of an engine."""
    has_reservation: bool = True
    """Whether engines admit with room for what is to be generated, as SGLang does."""
    has_exact_limits: bool = False
    """Whether an engine is told how long a turn will be, as where only that limit ends it; no router is."""
    num_groups: int = 512
    group_size: int = 32
    prompt_tokens: int = 1_024
    budget: int = 12_288
    """Tokens of a response, observations included; longer ones are cut."""
    median_tokens: float = 2_450.0
    prompt_sigma: float = 0.7
    rollout_sigma: float = 0.55
    last_turn: float = 0.35
    """Chance that a turn is the last."""
    max_turns: int = 10
    observation_tokens: int = 200
    mean_wait_seconds: float = 1.0
    max_wait_seconds: float = 10.0
    """Time limit of a tool."""
    hard_groups: float = 0.0
    """Share of prompts, the first ones, whose responses are `hard_factor` times as long."""
    hard_factor: float = 4.0


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
"""Pressure, many turns, long, severe, none, light, skewed, few engines, many, without reservation, waits for tools."""


def shrink(scenario: Scenario, factor: int) -> Scenario:
    """The same load per engine on a `factor`-th of the engines."""
    return replace(
        scenario,
        num_engines=max(1, scenario.num_engines // factor),
        num_groups=max(1, scenario.num_groups // factor),
    )


def with_options(scenario: Scenario, options: Sequence[str]) -> Scenario:
    """A scenario with some of its fields set otherwise.

    Args:
        scenario: Any.
        options: `field=value` each.

    Raises:
        ConfigError: If there is no such field, or no such value.
    """
    types = {name: type(value) for name, value in asdict(Scenario()).items()}
    chosen: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        if name not in types:
            raise ConfigError(f"--set {option}: a scenario has {', '.join(types)}")
        try:
            chosen[name] = _BOOLS[text.lower()] if types[name] is bool else types[name](text)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"--set {option}: {name} is {types[name].__name__}, as {getattr(scenario, name)}"
            ) from error
    return replace(scenario, **chosen)


def draw_conversations(scenario: Scenario, seed: int) -> list[SimulatedConversation]:
    """All rollouts of a step, prompt by prompt, in the order in which they are handed out."""
    rng = random.Random(f"workload/{seed}")
    conversations: list[SimulatedConversation] = []
    for group in range(scenario.num_groups):
        is_hard = group < scenario.hard_groups * scenario.num_groups
        centre = math.log(scenario.median_tokens * (scenario.hard_factor if is_hard else 1.0))
        centre += rng.gauss(0.0, scenario.prompt_sigma)
        for _ in range(scenario.group_size):
            total = min(scenario.budget, max(8, round(math.exp(centre + rng.gauss(0.0, scenario.rollout_sigma)))))
            conversations.append(
                SimulatedConversation(
                    id=len(conversations),
                    group=group,
                    prompt_tokens=scenario.prompt_tokens,
                    turns=_turns(scenario, total, rng),
                )
            )
    return conversations


def _turns(scenario: Scenario, total: int, rng: random.Random) -> tuple[SimulatedTurn, ...]:
    """Split a response of `total` tokens into turns of like length with observations between them."""
    num_turns = 1
    while num_turns < scenario.max_turns and rng.random() > scenario.last_turn:
        num_turns += 1
    num_turns = min(num_turns, max(1, total // 4))
    mean_observed = min(scenario.observation_tokens, total / (2 * num_turns))
    observed = [max(1, round(rng.uniform(0.5, 1.5) * mean_observed)) for _ in range(num_turns - 1)]
    generated = max(num_turns, total - sum(observed))
    weights = [rng.expovariate(1.0) + 0.2 for _ in range(num_turns)]
    parts = [max(1, int(generated * weight / sum(weights))) for weight in weights]
    # Lognormal of mean 1 and sigma 1.
    waits = [
        min(scenario.max_wait_seconds, scenario.mean_wait_seconds * math.exp(rng.gauss(-0.5, 1.0)))
        for _ in range(num_turns - 1)
    ]
    return tuple(
        SimulatedTurn(generated=part, observed=seen, wait_seconds=wait)
        for part, seen, wait in zip(parts, [*observed, 0], [*waits, 0.0], strict=True)
    )
