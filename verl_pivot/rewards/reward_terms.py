"""ComposedReward <-> the text in verl's rows and dumps, and the metrics `rewards/...` of one step."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, pstdev
from typing import Any

import msgspec

from verl_pivot.rewards.compose import ComposedReward

TERMS_FIELD = "reward_terms"
"""Key of `reward_extra_info` that holds the terms as JSON; "" for a rollout whose reward is not composed."""
PAID = "paid/"
"""Prefix of the keys of `reward_extra_info` that hold what each outermost term was paid."""


class DumpedTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One term of a rollout's reward in a dump."""

    name: str
    depth: int
    value: float | None
    paid: float
    share: float
    why: str


class DumpedSum(msgspec.Struct, frozen=True, kw_only=True):
    """Reward of a rollout in a dump, and the terms that it comes from."""

    total: float | None
    reason: str
    detail: str = ""
    terms: tuple[DumpedTerm, ...] = ()


def terms_text(reward: ComposedReward) -> str:
    """The text of a reward, from which `dumped_terms` reads it again."""
    return msgspec.json.encode(asdict(reward)).decode()


def dumped_terms(reward_info: Mapping[str, Any]) -> DumpedSum | None:
    """The terms in a row's `reward_extra_info`; None for a reward that is not composed.

    Raises:
        msgspec.DecodeError: If the text is something else.
    """
    text = reward_info.get(TERMS_FIELD)
    return msgspec.json.decode(text, type=DumpedSum) if text else None


def paid_keys(reward: ComposedReward, names: Iterable[str]) -> dict[str, float]:
    """{key: what an outermost term was paid}, NaN where the reward is undecided, so that all rows have the keys."""
    paid = {term.name: term.paid for term in reward.terms if term.depth == 1}
    return {f"{PAID}{name}": paid.get(name, math.nan) for name in names}


def term_metrics(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Metrics of one step, as {name: value}; empty without `pivot.rewards`.

    Args:
        groups: {group: [num_rollouts] `reward_extra_info` of its rollouts}.
    """
    found = {name: [terms for each in rewards if (terms := dumped_terms(each))] for name, rewards in groups.items()}
    every = [terms for rewards in found.values() for terms in rewards]
    if not every:
        return {}
    decided = [terms for terms in every if terms.total is not None]
    metrics = {"rewards/undecided_rate": 1.0 - len(decided) / len(every)}
    for name in dict.fromkeys(term.name for terms in decided for term in terms.terms):
        metrics |= {f"rewards/{name}/{what}": value for what, value in _of_term(name, decided).items()}
        if spreads := _spreads(name, found.values()):
            metrics[f"rewards/{name}/spread"] = fmean(spreads)
    return metrics


def _of_term(name: str, decided: Sequence[DumpedSum]) -> dict[str, float]:
    """Means over the rollouts that have the term; a term within a term that is not paid is missing."""
    terms = [term for each in decided for term in each.terms if term.name == name]
    values = [term.value for term in terms if term.value is not None]
    return {
        "paid": fmean(term.paid for term in terms),
        "share": fmean(term.share for term in terms),
        **({"value": fmean(values)} if values else {}),
    }


def _spreads(name: str, groups: Iterable[Sequence[DumpedSum]]) -> list[float]:
    """Standard deviation of what the term was paid, within each group of at least two decided rollouts."""
    spreads = []
    for rewards in groups:
        paid: defaultdict[int, float] = defaultdict(float)
        for number, each in enumerate(rewards):
            if each.total is not None:
                paid[number] = sum(term.paid for term in each.terms if term.name == name)
        if len(paid) >= 2:
            spreads.append(pstdev(paid.values()))
    return spreads
