"""Two runs -> the prompts that both have: by how much their scores differ, and which became better and which worse."""

import math
from functools import lru_cache
from typing import NamedTuple

import msgspec

from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.report_numbers import PromptDifference
from verl_pivot.runs.run import RunPart
from verl_pivot.statistics import PairedDifference, paired_difference

MIN_PAIRED = 10
"""Minimum number of prompts for an interval; a bootstrap over fewer prompts gives one that is too narrow."""
MAX_PAIRED = 10_000
"""Maximum number of prompts that are compared; the bootstrap draws 10,000 numbers for each."""
MAX_CHANGED = 50
"""Maximum number of prompts that are listed in each direction, those with the largest change first."""
IS_DECIDED = "isfinite(score) AND coalesce(stop_reason, '') NOT IN ('tool_failure', 'engine_failure')"
"""SQL condition for the rollouts that say something about the policy."""


class ChangedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt on which two runs score differently."""

    prompt_id: str
    first: float
    """Mean score of the first run."""
    own: float


class PromptChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How a run compares with the first one."""

    difference: PromptDifference
    higher: list[ChangedPrompt]
    """Prompts on which the run scores higher, at most MAX_CHANGED."""
    lower: list[ChangedPrompt]


class _Paired(NamedTuple):
    steps: list[int]
    """Steps that both runs have, whose rollouts are compared; in validation only the last of them."""
    prompts: list[tuple[str, float, float]]
    """(prompt_id, score of the first run, score of the other) of prompts that both have, by prompt_id."""


def prompt_difference(index: RunIndex, part: RunPart, run: int) -> PromptDifference:
    """The difference of a run from the first one."""
    return _difference(_paired(index, part, run), part, run)


def prompt_changes(index: RunIndex) -> list[PromptChanges]:
    """The difference of every run from the first one, in each part whose prompts both have."""
    found: list[PromptChanges] = []
    for run in range(1, len(index.runs)):
        for part in RunPart:
            paired = _paired(index, part, run)
            if not paired.prompts:
                continue
            changed = [ChangedPrompt(prompt_id=each, first=first, own=own) for each, first, own in paired.prompts]
            changed.sort(key=lambda each: each.own - each.first)
            found.append(
                PromptChanges(
                    difference=_difference(paired, part, run),
                    higher=[each for each in reversed(changed) if each.own > each.first][:MAX_CHANGED],
                    lower=[each for each in changed if each.own < each.first][:MAX_CHANGED],
                )
            )
    return found


def _paired(index: RunIndex, part: RunPart, run: int) -> _Paired:
    steps = [
        step
        for (step,) in index.count(
            "SELECT step FROM rollouts WHERE part = ? AND run = 0 AND step IS NOT NULL INTERSECT "
            "SELECT step FROM rollouts WHERE part = ? AND run = ? ORDER BY 1",
            part.value, part.value, run,
        )
    ]  # fmt: skip
    if part is RunPart.VALIDATION:
        steps = steps[-1:]
    prompts = index.count(
        "WITH scores AS (SELECT run, prompt_id, avg(score) AS score FROM rollouts WHERE part = ? AND run IN (0, ?) "
        f"AND step IN (SELECT unnest(?::BIGINT[])) AND prompt_id IS NOT NULL AND {IS_DECIDED} GROUP BY ALL) "
        "SELECT one.prompt_id, one.score, other.score FROM scores one JOIN scores other "
        "ON one.prompt_id = other.prompt_id WHERE one.run = 0 AND other.run = ? AND isfinite(one.score) "
        "AND isfinite(other.score) ORDER BY one.prompt_id",
        part.value, run, steps, run,
    )  # fmt: skip
    return _Paired(steps, list(prompts))


def _difference(paired: _Paired, part: RunPart, run: int) -> PromptDifference:
    if not paired.prompts:
        return PromptDifference(run=run, part=part, steps=paired.steps, num_shared=0)
    _, first, own = zip(*paired.prompts[:MAX_PAIRED], strict=True)
    value, interval = _paired_difference(first, own)
    return PromptDifference(
        run=run,
        part=part,
        steps=paired.steps,
        num_shared=len(paired.prompts),
        num_paired=len(own),
        num_higher=sum(mine > theirs for theirs, mine in zip(first, own, strict=True)),
        num_lower=sum(mine < theirs for theirs, mine in zip(first, own, strict=True)),
        first_mean=_finite(sum(first) / len(first)),
        mean=_finite(sum(own) / len(own)),
        difference=_finite(value),
        low=_finite(interval.low) if len(own) >= MIN_PAIRED else None,
        high=_finite(interval.high) if len(own) >= MIN_PAIRED else None,
    )


@lru_cache(maxsize=32)
def _paired_difference(first: tuple[float, ...], own: tuple[float, ...]) -> PairedDifference:
    """The mean difference and its bootstrap interval, which each refresh of a page asks for anew."""
    return paired_difference(first, own)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
