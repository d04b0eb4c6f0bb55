"""Scenario, seed and TailRule -> SimulatedTraining: many steps, in which slow groups may be left for later steps."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from verl_pivot.routing.kv_forecast import KvForecast
from verl_pivot.routing.simulator.engine import EngineRates
from verl_pivot.routing.simulator.step import Simulation
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_group

_NUM_SORTED_BATCHES = 8
"""Batches whose prompts are sorted together, with `TailRule.sorts_prompts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRule:
    """What a training does about the slowest rollouts of a step. With the defaults each step waits for all of them."""

    extra_prompts: float = 0.0
    """Prompts under way beyond a batch, as a share of the batch. A step ends when as many groups as a batch has are
    complete; the others are left for later steps."""
    goes_on: bool = False
    """Whether rollouts that are left go on in the next step, as in APRIL (arXiv:2509.18521). Otherwise they are thrown
    away, and their prompts are sampled anew in a step of such prompts alone, as in RollPacker (arXiv:2509.21009)."""
    max_steps: int | None = None
    """With `goes_on`, maximum number of steps in which a group may be under way; the last of them waits for it."""
    extra_rollouts: float = 0.0
    """Rollouts of a prompt beyond a group, as a share of it. Those that end first are trained, as in RollPacker; the
    others run until the step ends."""
    sorts_prompts: bool = False
    """Whether the prompts of a batch have similar mean lengths, which no trainer knows in advance."""
    probes: bool = False
    """Whether the first rollout of each prompt asks for an engine before all others. Prompts are sorted by the length
    of that rollout, the longest first. As in Seer (arXiv:2511.14617), but with these lengths known at once."""


TAIL_RULES = {
    "wait": TailRule(),
    "tail_batching": TailRule(extra_prompts=0.25),
    "tail_batching_half": TailRule(extra_prompts=0.5),
    "tail_batching_rollouts": TailRule(extra_prompts=0.25, extra_rollouts=0.25),
    "known_lengths": TailRule(sorts_prompts=True),
    "group_order": TailRule(probes=True),
    "partial_quarter": TailRule(extra_prompts=0.25, goes_on=True, max_steps=4),
    "partial_half": TailRule(extra_prompts=0.5, goes_on=True, max_steps=4),
    "partial_full": TailRule(extra_prompts=1.0, goes_on=True, max_steps=4),
}
"""{name: rule}. `wait` is a training whose steps wait for all rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTraining:
    """Durations and costs of many steps under one rule."""

    rollout_seconds: float
    """Seconds of rollouts per trained rollout."""
    trained_tokens: float
    """Mean tokens of the trained responses."""
    length_ratio: float
    """Mean tokens of the trained responses / mean tokens of all responses of the same groups."""
    wasted_share: float
    """Generated tokens of rollouts that were thrown away / generated tokens."""
    recomputed_share: float
    """Tokens of conversations that were computed again / generated tokens."""
    mean_steps: float
    """Mean number of steps from the one that first began a prompt to the one that trained it, both included."""
    max_steps: int
    """Largest number of these steps for any prompt."""


class _Step(NamedTuple):
    """One step that was rolled out."""

    seconds: float
    generated_tokens: int
    recomputed_tokens: int
    trained: list[SimulatedConversation]
    """Trained rollouts, as they were drawn."""
    group_tokens: float
    """Mean tokens of all responses of the trained groups."""
    ages: list[int]
    """[num_groups] steps from the one that first began each trained prompt to this one, both included."""


class _Prompts:
    """An endless file of prompts."""

    def __init__(self, scenario: Scenario, seed: int, num_rollouts: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._num_rollouts = num_rollouts
        self._num_drawn: Counter[int] = Counter()
        """{prompt: times that its rollouts were drawn}"""

    def draw(self, prompt: int) -> list[SimulatedConversation]:
        """New rollouts of a prompt, whose mean length stays the same."""
        rng = random.Random(f"training/{self._seed}/{prompt}/{self._num_drawn[prompt]}")
        self._num_drawn[prompt] += 1
        return draw_group(self._scenario, prompt, self.centre(prompt), self._num_rollouts, rng)

    def centre(self, prompt: int) -> float:
        """Mean of log(tokens) of a prompt's responses."""
        rng = random.Random(f"training/{self._seed}/{prompt}")
        return math.log(self._scenario.median_tokens) + rng.gauss(0.0, self._scenario.prompt_sigma)


class TrainingSimulation:
    """A training, simulated step by step under `kv_forecast`."""

    def __init__(self, scenario: Scenario, seed: int, rule: TailRule, rates: EngineRates) -> None:
        self._scenario = scenario
        self._rule = rule
        self._rates = rates
        num_rollouts = round(scenario.group_size * (1 + rule.extra_rollouts))
        self._prompts = _Prompts(scenario, seed, num_rollouts)
        self._num_prompts = 0
        """Prompts that were taken from the file."""
        self._sorted: list[int] = []
        """Prompts that come next, with `sorts_prompts`."""
        self._step = 0
        self._begun_in: dict[int, int] = {}
        """{prompt: step in which it was first begun}"""
        self._groups: dict[int, list[SimulatedConversation]] = {}
        """{prompt: its rollouts, as they were drawn} for the prompts under way, the oldest first."""
        self._ended: dict[int, list[int]] = {}
        """{prompt: ids of its rollouts that have ended, in their order} for the prompts under way."""
        self._left: list[SimulatedConversation] = []
        """Rollouts that go on in the next step."""
        self._to_repeat: list[int] = []
        """Prompts whose rollouts were thrown away, the oldest first."""
        before = [self._prompts.draw(-1 - number) for number in range(scenario.num_groups)]
        self._last_lengths = [each.response_tokens for group in before for each in group]

    def advance(self) -> _Step:
        """Roll out one step."""
        self._step += 1
        new = [self._begin(prompt) for prompt in self._next_prompts()]
        if self._rule.probes:
            new.sort(key=lambda group: -group[0].response_tokens)
        first = [each for group in new for each in group[:1]]
        later = [each for group in new for each in group[1:]]
        conversations = [*self._left, *first, *later] if self._rule.probes else [*self._left, *_flat(new)]
        simulation = Simulation(self._scenario, conversations, self._policy(conversations), self._rates)
        seconds = simulation.run_until(self._count)
        self._last_lengths = [each.response_tokens for each in _flat(new)]
        self._left = simulation.interrupt(seconds) if self._rule.goes_on else []
        return self._train(seconds, simulation)

    def _next_prompts(self) -> list[int]:
        """Prompts that the step begins."""
        size = self._scenario.num_groups
        if len(self._to_repeat) >= size:
            repeated, self._to_repeat = self._to_repeat[:size], self._to_repeat[size:]
            return repeated
        number = size if self._rule.goes_on and self._step > 1 else round(size * (1 + self._rule.extra_prompts))
        if not self._rule.sorts_prompts:
            return self._from_file(number)
        if not self._sorted:
            self._sorted = sorted(self._from_file(_NUM_SORTED_BATCHES * size), key=self._prompts.centre)
        chosen, self._sorted = self._sorted[:number], self._sorted[number:]
        return chosen

    def _from_file(self, number: int) -> list[int]:
        first = self._num_prompts
        self._num_prompts += number
        return list(range(first, self._num_prompts))

    def _begin(self, prompt: int) -> list[SimulatedConversation]:
        self._begun_in.setdefault(prompt, self._step)
        self._groups[prompt] = self._prompts.draw(prompt)
        self._ended[prompt] = []
        return self._groups[prompt]

    def _policy(self, conversations: Sequence[SimulatedConversation]) -> KvForecast:
        returning = 1.0 - len(conversations) / sum(len(each.turns) for each in conversations)
        return KvForecast(budget=self._scenario.budget, prior=self._last_lengths, prior_returning=returning)

    def _count(self, ended: Sequence[SimulatedConversation]) -> bool:
        """Count rollouts that have ended; returns whether the step ends with them."""
        for each in ended:
            self._ended[each.group].append(each.id)
        complete = self._complete()
        if len(complete) < self._scenario.num_groups:
            return False
        last_step = math.inf if self._rule.max_steps is None else self._rule.max_steps
        return all(prompt in complete or self._age(prompt) < last_step for prompt in self._groups)

    def _complete(self) -> dict[int, None]:
        """Complete groups, the oldest first."""
        size = self._scenario.group_size
        return {prompt: None for prompt in self._groups if len(self._ended[prompt]) >= size}

    def _age(self, prompt: int) -> int:
        """Number of steps from the one that first began the prompt to this one, both included."""
        return self._step - self._begun_in[prompt] + 1

    def _train(self, seconds: float, simulation: Simulation) -> _Step:
        """Train the oldest complete groups, and leave or throw away the others."""
        chosen = list(self._complete())[: self._scenario.num_groups]
        ids = {each for prompt in chosen for each in self._ended[prompt][: self._scenario.group_size]}
        drawn = [each for prompt in chosen for each in self._groups[prompt]]
        ages = [self._age(prompt) for prompt in chosen]
        for prompt in chosen:
            del self._groups[prompt], self._ended[prompt]
        if not self._rule.goes_on:
            self._to_repeat += self._groups
            self._groups.clear()
        return _Step(
            seconds=seconds,
            generated_tokens=simulation.generated_tokens,
            recomputed_tokens=simulation.recomputed_tokens,
            trained=[each for each in drawn if each.id in ids],
            group_tokens=fmean(each.response_tokens for each in drawn),
            ages=ages,
        )


def simulate_training(
    scenario: Scenario, seed: int, rule: TailRule, rates: EngineRates, *, num_steps: int, num_warmup_steps: int
) -> SimulatedTraining:
    """Simulate a training under `kv_forecast`.

    Args:
        scenario: The engines, the batch and the lengths of its rollouts.
        seed: Seed of the lengths; rules that begin the same prompts get the same rollouts.
        rule: What the training does about slow rollouts.
        rates: Speeds of the engines.
        num_steps: Number of steps that are counted.
        num_warmup_steps: Number of steps before them, which are not counted.
    """
    training = TrainingSimulation(scenario, seed, rule, rates)
    steps = [training.advance() for _ in range(num_warmup_steps + num_steps)][num_warmup_steps:]
    trained = [each for step in steps for each in step.trained]
    generated = sum(step.generated_tokens for step in steps)
    useful = sum(turn.generated for each in trained for turn in each.turns)
    mean_tokens = fmean(each.response_tokens for each in trained)
    ages = [age for step in steps for age in step.ages]
    return SimulatedTraining(
        rollout_seconds=sum(step.seconds for step in steps) / len(trained),
        trained_tokens=mean_tokens,
        length_ratio=mean_tokens / fmean(step.group_tokens for step in steps),
        wasted_share=0.0 if rule.goes_on else 1.0 - useful / generated,
        recomputed_share=sum(step.recomputed_tokens for step in steps) / generated,
        mean_steps=fmean(ages),
        max_steps=max(ages),
    )


def _flat(groups: Sequence[Sequence[SimulatedConversation]]) -> list[SimulatedConversation]:
    return [each for group in groups for each in group]
