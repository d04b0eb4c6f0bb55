"""Candidates with their profiles -> which of them are pivots, and why each of the others is not."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from verl_pivot.data.turns import Split
from verl_pivot.errors import ConfigError
from verl_pivot.profiling.summary import Outcome, outcome
from verl_pivot.types import TurnProfile, Verdict


class Decision(StrEnum):
    """What becomes of a candidate; the filters in their order, each sees what the ones before it let pass."""

    UNDECIDED = "undecided"
    """No sample has a score, or the expert's own action has none: the verifier could not compare."""
    EXPERT_REFUSED = "expert_refused"
    """The expert's own action does not get full score."""
    DUPLICATE = "duplicate"
    """Same state, tools and action as a candidate before it."""
    OVERLONG = "overlong"
    """The prompt has more tokens than training takes; it is never cut."""
    ALWAYS_RIGHT = "always_right"
    ALWAYS_WRONG = "always_wrong"
    TOO_EASY = "too_easy"
    """Mixed, but its mean reward reaches lambda_diff."""
    OVER_CAP = "over_cap"
    """Its trajectory has enough pivots of higher variance."""
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRule:
    """Which candidates are pivots: reward_var > 0 and reward_mean < lambda_diff (PivotRL, section 3.1).

    The paper gives no value for lambda_diff; at 1 every mixed turn is a pivot.
    """

    lambda_diff: float = 1.0
    keep: Literal["pivots", "all"] = "pivots"
    """"all" turns the three filters on rewards off."""
    max_per_trajectory: int | None = None
    max_prompt_tokens: int | None = 4096
    """None: not checked."""

    def __post_init__(self) -> None:
        if not 0.0 < self.lambda_diff <= 1.0:
            raise ConfigError(f"--lambda-diff must lie in (0, 1], got {self.lambda_diff}: no mean reward is below 0")
        if self.max_per_trajectory is not None and self.max_per_trajectory < 1:
            raise ConfigError(f"--max-per-trajectory must be at least 1, got {self.max_per_trajectory}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ConfigError(f"--max-prompt-tokens must be 1 or more, or 0 for no limit, got {self.max_prompt_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the selection has to know of one turn; the messages stay in their file."""

    trajectory_id: str
    index: int
    fingerprint: str
    split: Split
    num_prompt_tokens: int | None = None
    """None: not counted."""
    profile: TurnProfile | None = None
    """None: not profiled."""
    expert_verdict: Verdict | None = None
    """What the verifier says of the expert's own action; None: not asked."""

    @property
    def id(self) -> str:
        return f"{self.trajectory_id}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReport:
    """Counts: the decisions add up to all candidates, and so do the signals over the profiled ones."""

    num_candidates: int
    num_by_decision: dict[Decision, int]
    num_by_outcome: dict[Outcome, int]
    """Of their profiles, before any filter."""
    num_train: int
    num_validation: int
    num_refused_experts: dict[str, int]
    """[reason of the verifier] candidates whose expert it refused, or could not judge."""
    refused_expert_examples: dict[str, str]
    """[reason] the first such turn, with the verifier's detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    decisions: tuple[Decision, ...]
    """[num_candidates]"""
    report: SelectionReport


def select(candidates: Sequence[Candidate], rule: SelectionRule) -> Selection:
    """Put every candidate through the filters, in the order of `Decision`."""
    seen: set[str] = set()
    decisions = [_filter(candidate, rule, seen) for candidate in candidates]
    if rule.max_per_trajectory is not None:
        for position in _over_cap(candidates, decisions, rule.max_per_trajectory):
            decisions[position] = Decision.OVER_CAP
    return Selection(decisions=tuple(decisions), report=_report(candidates, decisions))


def _filter(candidate: Candidate, rule: SelectionRule, seen: set[str]) -> Decision:
    profile, verdict = candidate.profile, candidate.expert_verdict
    if profile is not None and profile.samples and not profile.scores:
        return Decision.UNDECIDED
    if verdict is not None and verdict.score != 1.0:
        return Decision.UNDECIDED if verdict.score is None else Decision.EXPERT_REFUSED
    if candidate.fingerprint in seen:
        return Decision.DUPLICATE
    seen.add(candidate.fingerprint)
    if rule.max_prompt_tokens is not None and (candidate.num_prompt_tokens or 0) > rule.max_prompt_tokens:
        return Decision.OVERLONG
    if rule.keep == "all":
        return Decision.KEPT
    return _filter_rewards(profile, rule.lambda_diff)


def _filter_rewards(profile: TurnProfile | None, lambda_diff: float) -> Decision:
    assert profile is not None, "candidates without a profile have no rewards to filter"
    match outcome(profile):
        case Outcome.ALWAYS_RIGHT:
            return Decision.ALWAYS_RIGHT
        case Outcome.ALWAYS_WRONG:
            return Decision.ALWAYS_WRONG
        case Outcome.UNDECIDED:
            return Decision.UNDECIDED
        case Outcome.OVERLONG:  # longer than the profile's own limit, so that nothing was sampled
            return Decision.OVERLONG
        case Outcome.MIXED:
            return Decision.KEPT if profile.reward_mean < lambda_diff else Decision.TOO_EASY


def _over_cap(candidates: Sequence[Candidate], decisions: Sequence[Decision], cap: int) -> list[int]:
    """[num_over] positions beyond each trajectory's `cap` kept turns of highest variance, ties by index."""
    of_trajectory: dict[str, list[int]] = {}
    for position, (candidate, decision) in enumerate(zip(candidates, decisions, strict=True)):
        if decision is Decision.KEPT:
            of_trajectory.setdefault(candidate.trajectory_id, []).append(position)

    def rank(position: int) -> tuple[float, int]:
        profile = candidates[position].profile
        variance = profile.reward_var if profile is not None and profile.scores else 0.0
        return -variance, candidates[position].index

    return [position for kept in of_trajectory.values() for position in sorted(kept, key=rank)[cap:]]


def _report(candidates: Sequence[Candidate], decisions: Sequence[Decision]) -> SelectionReport:
    by_decision = Counter(decisions)
    by_outcome = Counter(outcome(c.profile) for c in candidates if c.profile is not None)
    splits = Counter(c.split for c, o in zip(candidates, decisions, strict=True) if o is Decision.KEPT)
    refused = [
        (candidate, candidate.expert_verdict)
        for candidate, decision in zip(candidates, decisions, strict=True)
        if candidate.expert_verdict is not None
        and candidate.expert_verdict.score != 1.0
        and decision in (Decision.UNDECIDED, Decision.EXPERT_REFUSED)
    ]
    return SelectionReport(
        num_candidates=len(candidates),
        num_by_decision={decision: by_decision[decision] for decision in Decision},
        num_by_outcome={member: by_outcome[member] for member in Outcome},
        num_train=splits["train"],
        num_validation=splits["validation"],
        num_refused_experts=dict(Counter(verdict.reason for _, verdict in refused)),
        refused_expert_examples=_first_examples(refused),
    )


def _first_examples(refused: Iterable[tuple[Candidate, Verdict]]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for candidate, verdict in refused:
        examples.setdefault(verdict.reason, f"turn {candidate.id}: {verdict.detail or verdict.reason}")
    return examples
