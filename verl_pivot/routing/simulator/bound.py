"""Conversations of a step and speeds of engines -> lower bounds of its duration, which no schedule can beat."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verl_pivot.routing.simulator.engine import EngineRates
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanBound:
    """Lower bounds of a step's makespan, the time until its last rollout ends. All are in seconds.

    Engines count as equal and none dies: with slow or dying engines the bounds hold, but are loose.
    """

    work: float
    """Time for all computation, spread evenly over engines whose KV cache is always full."""
    critical_path: float
    """Time of the slowest rollout on an engine of its own, with its waits for tools."""
    packing: float
    """Time to pack all rollouts onto the engines, where an engine with a rollout of L tokens makes L steps at least.

    It holds only where rollouts stay on their engine; waits for tools and the size of the KV cache are left out.
    """

    @property
    def seconds(self) -> float:
        """Lower bound for every schedule, also where rollouts move between turns."""
        return max(self.work, self.critical_path)

    @property
    def sticky_seconds(self) -> float:
        """Lower bound for schedules in which rollouts stay on their engine."""
        return max(self.seconds, self.packing)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Minimum costs of each conversation; every field is an array [num_conversations].

    The rollouts of a group share its prompt, so that each bears an equal share of the prompt's cost.
    """

    steps: Floats
    """Decode steps: the tokens that it generates."""
    reads: Floats
    """Sum over its decode steps of the tokens in its context."""
    held: Floats
    """Sum over its decode steps of the KV tokens that it holds: its response so far and its share of the prompt."""
    prefilled: Floats
    """Tokens that have to be prefilled: its observations and its share of the prompt."""
    alone: Floats
    """Seconds that it takes on an engine of its own."""


def bound(scenario: Scenario, conversations: Sequence[SimulatedConversation], rates: EngineRates) -> MakespanBound:
    """The lower bounds of a step's makespan.

    Args:
        scenario: The engines.
        conversations: Every rollout of the step.
        rates: Speeds of the engines.
    """
    costs = _costs(conversations, rates)
    num_steps = costs.held.sum() / scenario.capacity
    work = (
        rates.step_seconds * num_steps
        + rates.request_seconds * costs.steps.sum()
        + rates.context_token_seconds * costs.reads.sum()
        + rates.prefill_token_seconds * costs.prefilled.sum()
    )
    return MakespanBound(
        work=float(work) / scenario.num_engines,
        critical_path=float(costs.alone.max()),
        packing=_packing_bound(costs, scenario.num_engines, rates),
    )


def _costs(conversations: Sequence[SimulatedConversation], rates: EngineRates) -> _Costs:
    sizes = Counter(each.group for each in conversations)
    rows = [_cost(each, sizes[each.group], rates) for each in conversations]
    return _Costs(*np.array(rows, dtype=np.float64).T)


def _cost(
    conversation: SimulatedConversation, group_size: int, rates: EngineRates
) -> tuple[float, float, float, float, float]:
    """The fields of _Costs, in their order, for one conversation."""
    context = steps = observed = 0
    response_reads = waits = 0.0
    for turn in conversation.turns:
        response_reads += turn.generated * context + turn.generated * (turn.generated - 1) / 2
        steps += turn.generated
        observed += turn.observed
        context += turn.generated + turn.observed
        waits += turn.wait_seconds
    prompt = conversation.prompt_tokens
    reads = response_reads + steps * prompt
    alone = (
        steps * (rates.step_seconds + rates.request_seconds)
        + rates.context_token_seconds * reads
        + rates.prefill_token_seconds * (prompt + observed)
        + rates.prefill_batch_seconds * len(conversation.turns)
        + waits
    )
    held = response_reads + steps * prompt / group_size
    return steps, reads, held, observed + prompt / group_size, alone


def _packing_bound(costs: _Costs, num_engines: int, rates: EngineRates) -> float:
    """The shortest time in which the engines finish all rollouts, packed onto them longest first; by bisection."""
    order = np.argsort(-costs.steps)
    steps = costs.steps[order]
    seconds = (
        rates.request_seconds * steps
        + rates.context_token_seconds * costs.reads[order]
        + rates.prefill_token_seconds * costs.prefilled[order]
    )
    filled = np.concatenate([[0.0], np.cumsum(seconds)])
    low = 0.0
    high = float(rates.step_seconds * steps[0] + filled[-1])
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if _fits(middle, steps, filled, num_engines, rates):
            high = middle
        else:
            low = middle
    return low


def _fits(limit: float, steps: Floats, filled: Floats, num_engines: int, rates: EngineRates) -> bool:
    """Whether rollouts, longest first and divisible between engines, fit on the engines within `limit` seconds.

    Args:
        limit: Seconds.
        steps: [num_conversations] decode steps of each rollout, descending.
        filled: [num_conversations + 1] seconds of all rollouts before each one, without the fixed cost of steps.
        num_engines: Number of engines.
        rates: Speeds of the engines.
    """
    done = 0.0
    for _ in range(num_engines):
        first = int(np.searchsorted(filled, done, side="right")) - 1
        if first >= len(steps):
            return True
        room = limit - rates.step_seconds * steps[first]
        if room <= 0:
            return False
        done = min(done + room, float(filled[-1]))
    return done >= float(filled[-1])
