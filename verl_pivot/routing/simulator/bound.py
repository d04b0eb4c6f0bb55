"""Drawn conversations and engines -> seconds that no schedule can beat."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verl_pivot.routing.simulator.engine import EngineRates
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanBound:
    """Three lower bounds of a step's makespan, in seconds."""

    work: float
    """Everything that has to be computed, spread evenly over engines whose KV cache is always full."""
    critical_path: float
    """The slowest rollout on an engine of its own, its tools' waits included."""
    pack: float
    """Work and tail together: an engine that hosts a rollout of L tokens makes L steps at least.

    Holds where rollouts stay on their engine; tool waits and the KV cache are left out.
    """

    @property
    def seconds(self) -> float:
        return max(self.work, self.critical_path, self.pack)


@dataclass(frozen=True, slots=True)
class _Costs:
    """[num_conversations] each."""

    steps: Floats
    """Tokens that are generated."""
    reads: Floats
    """Sum over these steps of the tokens in context."""
    held: Floats
    """The same, with the prompt's share of one rollout in its group."""
    prefilled: Floats
    """Tokens that somebody has to prefill: observations, and the prompt's share."""
    alone: Floats
    """Seconds on an engine of its own."""


def bound(scenario: Scenario, conversations: Sequence[SimulatedConversation], rates: EngineRates) -> MakespanBound:
    """The bounds of one drawn step."""
    costs = _costs(scenario, conversations, rates)
    num_steps = costs.held.sum() / scenario.capacity
    work = (
        rates.step * num_steps
        + rates.row * costs.steps.sum()
        + rates.context * costs.reads.sum()
        + rates.prefill_token * costs.prefilled.sum()
    )
    return MakespanBound(
        work=float(work) / scenario.num_engines,
        critical_path=float(costs.alone.max()),
        pack=_pack(costs, scenario.num_engines, rates),
    )


def _costs(scenario: Scenario, conversations: Sequence[SimulatedConversation], rates: EngineRates) -> _Costs:
    rows = [_cost(each, scenario.group_size, rates) for each in conversations]
    return _Costs(*np.array(rows, dtype=np.float64).T)


def _cost(
    conversation: SimulatedConversation, group_size: int, rates: EngineRates
) -> tuple[float, float, float, float, float]:
    context = steps = observed = 0
    own = waits = 0.0
    for turn in conversation.turns:
        own += turn.generated * context + turn.generated * (turn.generated - 1) / 2
        steps += turn.generated
        observed += turn.observed
        context += turn.generated + turn.observed
        waits += turn.wait_seconds
    prompt = conversation.prompt_tokens
    reads = own + steps * prompt
    alone = (
        steps * (rates.step + rates.row)
        + rates.context * reads
        + rates.prefill_token * (prompt + observed)
        + rates.prefill_batch * len(conversation.turns)
        + waits
    )
    return steps, reads, own + steps * prompt / group_size, observed + prompt / group_size, alone


def _pack(costs: _Costs, num_engines: int, rates: EngineRates) -> float:
    """The least T for which engines, filled with the longest rollouts first, suffice; by bisection."""
    order = np.argsort(-costs.steps)
    steps = costs.steps[order]
    seconds = rates.row * steps + rates.context * costs.reads[order] + rates.prefill_token * costs.prefilled[order]
    filled = np.concatenate([[0.0], np.cumsum(seconds)])
    low = 0.0
    high = float(rates.step * steps[0] + filled[-1])
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if _fits(middle, steps, filled, num_engines, rates):
            high = middle
        else:
            low = middle
    return low


def _fits(limit: float, steps: Floats, filled: Floats, num_engines: int, rates: EngineRates) -> bool:
    """Whether fractions of rollouts, in descending order, fit on the engines within the limit."""
    done = 0.0
    for _ in range(num_engines):
        first = int(np.searchsorted(filled, done, side="right")) - 1
        if first >= len(steps):
            return True
        room = limit - rates.step * steps[first]
        if room <= 0:
            return False
        done = min(done + room, float(filled[-1]))
    return done >= float(filled[-1])
