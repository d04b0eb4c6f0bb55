"""SynthesisJob -> SynthesisPlan: estimated cost of all items from a sample, whose answers the real run can reuse."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

from verl_pivot.all_at_once import all_at_once
from verl_pivot.synthesis.drafts import Draft, distinct_traces
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.recipes import items, num_items
from verl_pivot.synthesis.running import Runner, opened_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCost:
    """Cost of one item."""

    calls: int
    tokens: int
    seconds: float
    """Seconds from its first step to its last, while other items of the sample run concurrently."""
    num_kept: int
    """Number of drafts that the steps keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisPlan:
    """Costs of sampled items, from which the cost of all items is estimated."""

    num_items: int
    costs: tuple[ItemCost, ...]
    """[num_sampled] costs of the sampled items."""
    calls_before: int
    """Model calls before the first item, such as probes of the policy."""
    tokens_before: int
    """Tokens of these model calls."""
    concurrency: int

    def lines(self) -> list[str]:
        """The plan as text for the user: each total with its 95 % interval by the normal approximation."""
        costs, number = self.costs, self.num_items
        if not costs:
            return ["The input has no items."]
        seconds = [each.seconds / min(self.concurrency, number) for each in costs]
        return [
            f"From {len(costs)} of {number} items, for all of them:",
            f"  model calls  {_total([each.calls for each in costs], number, self.calls_before)}",
            f"  tokens       {_total([each.tokens for each in costs], number, self.tokens_before)}",
            f"  seconds      {_total(seconds, number)}, at {self.concurrency} items at a time",
            f"  drafts kept  {_total([each.num_kept for each in costs], number)}, before filters over all items",
        ]


def _total(values: Sequence[float], number: int, before: int = 0) -> str:
    """The estimated total over all items, as text, from the values of sampled items and a fixed cost `before` them."""
    mean = fmean(values)
    text = f"{before + mean * number:,.0f}"
    if len(values) == number or len(values) < 2:
        return text
    margin = 1.96 * stdev(values) / math.sqrt(len(values))
    low, high = (before + bound * number for bound in (max(0.0, mean - margin), mean + margin))
    return f"{text} ({low:,.0f} to {high:,.0f})"


def plan_synthesis(job: SynthesisJob, num_sampled: int, on_items: Callable[[int], object]) -> SynthesisPlan:
    """Make some of the items, drawn by the seed; only the models' answers are written.

    Args:
        job: Job of the real run.
        num_sampled: Number of items to make.
        on_items: Called with 1 for each item that is done.

    Raises:
        EngineError: If an endpoint cannot be reached or keeps failing.
        ConfigError: If a setting is wrong.
        DataError: If the input cannot be read.
    """
    number = num_items(job.recipe, job.inputs)
    if number is None:  # a compressed file
        number = sum(1 for _ in items(job.recipe, job.inputs))
    sampled = set(random.Random(job.seed).sample(range(number), min(num_sampled, number)))
    chosen = [item for position, item in enumerate(items(job.recipe, job.inputs)) if position in sampled]
    return asyncio.run(_planned(job, chosen, number, on_items))


async def _planned(
    job: SynthesisJob, chosen: Sequence[Draft], number: int, on_items: Callable[[int], object]
) -> SynthesisPlan:
    slots = asyncio.Semaphore(job.concurrency)

    async def cost(runner: Runner, item: Draft) -> ItemCost:
        async with slots:
            began = time.monotonic()
            drafts = await runner.run(item)
            seconds = time.monotonic() - began
        on_items(1)
        traces = distinct_traces(drafts)
        return ItemCost(
            calls=sum(each.num_calls for each in traces),
            tokens=sum(each.num_tokens for each in traces),
            seconds=seconds,
            num_kept=sum(draft.finding is None for draft in drafts),
        )

    with TemporaryDirectory() as folder:
        async with opened_runner(job, Path(folder)) as runner:
            costs = await all_at_once(cost(runner, item) for item in chosen)
            return SynthesisPlan(
                num_items=number,
                costs=tuple(costs),
                calls_before=sum(each.num_calls for each in runner.prepared),
                tokens_before=sum(each.num_tokens for each in runner.prepared),
                concurrency=job.concurrency,
            )
