"""Facts about turns from files written before training -> outcomes, and the decisions of `select` and `filter`."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from verl_pivot.profiling.summary import TurnOutcome
from verl_pivot.selection.decisions import Decision, SelectionRule

NUM_BINS = 10
"""Number of bins of the pass rates between 0 and 1; turns at exactly 0 and 1 are counted apart."""


class FilterDrop(msgspec.Struct, frozen=True):
    """Why `verl-pivot filter` left a trajectory out."""

    id: str
    filter: str
    reason: str
    detail: str


@dataclass(slots=True)
class CandidateTurn:
    """Facts about one turn; a field is None if no file has it."""

    index: int
    outcome: str | None = None
    """Value of `profiling.summary.TurnOutcome`."""
    pass_rate: float | None = None
    reward_mean: float | None = None
    num_scores: int | None = None
    num_prompt_tokens: int | None = None
    split: str | None = None
    """`train` or `validation` of a turn that was selected."""


@dataclass(slots=True)
class ListedTrajectory:
    """Facts about one trajectory."""

    id: str
    passed: bool | None = None
    num_turns: int | None = None
    """Turns of the assistant; None where no file has the trajectory itself."""
    dropped: FilterDrop | None = None
    turns: dict[int, CandidateTurn] = field(default_factory=dict)
    """{turn index: facts about the turn}, in the order of the files"""


class SelectionFound(msgspec.Struct, frozen=True, kw_only=True):
    """Rule and counts of the report beside a file of pivots."""

    rule: SelectionRule | None = None
    num_by_decision: dict[str, int] = {}
    num_missing: int = 0
    """Number of turns that were kept, but are in none of the files of pivots that were given."""


class SelectionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Decision of `select` on a turn."""

    decision: str
    """`kept`, `not kept`, or `unknown` where no file of pivots was given."""
    reason: str


_UNSOLVED = (TurnOutcome.ALWAYS_RIGHT, TurnOutcome.UNDECIDED, TurnOutcome.OVERLONG)
_DROPPED_OUTCOMES = {"pivots": (*_UNSOLVED, TurnOutcome.ALWAYS_WRONG), "unsolved": _UNSOLVED, "all": ()}
"""{`SelectionRule.keep`: outcomes that `select` drops}"""
_BY_OTHERS = (Decision.EXPERT_REFUSED, Decision.DUPLICATE, Decision.OVERLONG, Decision.OVER_CAP)
"""Decisions that depend on more than the turn's own profile."""


def selection_verdict(turn: CandidateTurn, selection: SelectionFound | None) -> SelectionVerdict:
    """Decision of `select` on a turn, as far as its profile and the report show it.

    Args:
        turn: The turn.
        selection: Rule and counts of the selection; None if no pivots were given.
    """
    if turn.split is not None:
        return SelectionVerdict(decision="kept", reason=f"in the split {turn.split}")
    if selection is None:
        return SelectionVerdict(decision="unknown", reason="give the file of pivots too")
    return SelectionVerdict(decision="not kept", reason=_why_not(turn, selection))


def _why_not(turn: CandidateTurn, selection: SelectionFound) -> str:
    if turn.outcome is None:
        return "no given file has a profile of this turn"
    if (rule := selection.rule) is not None:
        tokens = turn.num_prompt_tokens
        if rule.max_prompt_tokens is not None and tokens is not None and tokens > rule.max_prompt_tokens:
            return f"overlong: its prompt has {tokens:,} tokens, more than {rule.max_prompt_tokens:,}"
        if (
            rule.keep == "pivots"
            and turn.outcome == TurnOutcome.MIXED
            and (turn.reward_mean or 0.0) >= rule.lambda_diff
        ):
            return f"too easy: its mean reward {turn.reward_mean:.3g} is not below lambda_diff {rule.lambda_diff:g}"
    if turn.outcome in _DROPPED_OUTCOMES["pivots" if rule is None else rule.keep]:
        return turn.outcome
    possible = [
        f"{name.value.replace('_', ' ')} ({count:,} turns)"
        for name in _BY_OTHERS
        if (count := selection.num_by_decision.get(name, 0))
    ]
    if selection.num_missing:
        possible.insert(0, f"kept in a split that was not given ({selection.num_missing:,} turns)")
    return f"one of: {', '.join(possible)}" if possible else "the files do not say why"


def outcome_counts(trajectories: Iterable[ListedTrajectory]) -> dict[str, int]:
    """{outcome: number of turns}, in the order of `TurnOutcome`."""
    counts = Counter(turn.outcome for each in trajectories for turn in each.turns.values())
    return {outcome.value: counts[outcome.value] for outcome in TurnOutcome}


def pass_rate_bins(trajectories: Iterable[ListedTrajectory]) -> list[int]:
    """[12] numbers of turns with pass rate 0, in each tenth between 0 and 1, and with pass rate 1.

    A tenth includes its upper end, so that 0.1 is in the first one. Turns without a pass rate are not counted.
    """
    bins = [0] * (NUM_BINS + 2)
    for each in trajectories:
        for turn in each.turns.values():
            if turn.pass_rate is not None:
                bins[_bin(turn.pass_rate)] += 1
    return bins


def _bin(pass_rate: float) -> int:
    if pass_rate == 1.0:
        return NUM_BINS + 1
    return min(NUM_BINS, math.ceil(pass_rate * NUM_BINS - 1e-9))


class CandidateFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of the listed trajectories; what it says about turns must hold for one and the same turn."""

    outcome: str | None = None
    decision: str | None = None
    """`kept` or `not kept` by `select`, or `dropped` by `filter`."""
    bin: int | None = None
    """Bin of the pass rate, as `pass_rate_bins` counts."""
    id: str | None = None
    """A part of the trajectory's id."""

    def takes(self, listed: ListedTrajectory) -> bool:
        if self.id is not None and self.id not in listed.id:
            return False
        if self.decision == "dropped" and listed.dropped is None:
            return False
        if self.outcome is None and self.bin is None and self.decision in (None, "dropped"):
            return True
        return any(map(self._takes_turn, listed.turns.values()))

    def _takes_turn(self, turn: CandidateTurn) -> bool:
        if self.outcome is not None and turn.outcome != self.outcome:
            return False
        if self.decision in ("kept", "not kept") and (turn.split is not None) != (self.decision == "kept"):
            return False
        return self.bin is None or (turn.pass_rate is not None and _bin(turn.pass_rate) == self.bin)
