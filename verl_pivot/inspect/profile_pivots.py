"""Samples of a profile, and a RunIndex -> the hardest mixed turns, and their scores in training."""

import heapq
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.report_numbers import ProfiledPivot, ReportedProfile
from verl_pivot.profiling.early_stopping import turn_statistics
from verl_pivot.profiling.profiles import TurnKey, profiled_sha256
from verl_pivot.profiling.stored_samples import StoredTurn, open_samples
from verl_pivot.profiling.summary import TurnOutcome, outcome
from verl_pivot.runs.run import RunPart
from verl_pivot.types import TurnProfile


class ProfiledTurns(NamedTuple):
    """Numbers of a profile, and the turns of its pivots with their samples."""

    reported: ReportedProfile
    turns: list[StoredTurn]
    """[num_pivots]"""


class _Mixed(NamedTuple):
    """A mixed turn; turns are chosen in the order of the first three fields."""

    is_unseen: bool
    """Whether training has no rollout of it."""
    mean_score: float
    turn_id: str
    stored: StoredTurn


def read_pivots(index: RunIndex, profile: Path, trajectories: Path | None, num_pivots: int) -> ProfiledTurns:
    """Count the turns of a profile by their outcome, and choose mixed ones: those that training saw, hard ones first.

    Args:
        index: The runs, read.
        profile: profile.jsonl of `verl-pivot profile`.
        trajectories: File that it was measured on; None looks for this file beside the profile.
        num_pivots: Maximum number of turns that are chosen.

    Raises:
        DataError: If a file cannot be read, or the profile was measured on other trajectories.
        ConfigError: If the trajectories are not found.
    """
    profiled_sha256(profile)  # refuses a file that is no profile
    store = open_samples(profile, trajectories)
    scores = _training_scores(index)
    outcomes: Counter[str] = Counter()
    chosen: list[_Mixed] = []
    for stored in store.stored_turns():
        measured = _profile_of(stored)
        outcomes[found := outcome(measured)] += 1
        if found is TurnOutcome.MIXED and num_pivots:
            mean = turn_statistics(measured, store.early_stop).reward_mean
            key = TurnKey(stored.turn.trajectory_id, stored.turn.index)
            chosen.append(_Mixed(key not in scores, mean, stored.turn.id, stored))
            if len(chosen) > 2 * num_pivots:
                chosen = heapq.nsmallest(num_pivots, chosen, key=lambda each: each[:3])
    chosen = heapq.nsmallest(num_pivots, chosen, key=lambda each: each[:3])
    return ProfiledTurns(
        reported=ReportedProfile(
            path=str(profile),
            outcomes={member.value: outcomes[member] for member in TurnOutcome},
            pivots=[_pivot(each, scores, len(index.runs)) for each in chosen],
        ),
        turns=[each.stored for each in chosen],
    )


def _profile_of(stored: StoredTurn) -> TurnProfile:
    return TurnProfile(
        trajectory_id=stored.turn.trajectory_id,
        index=stored.turn.index,
        samples=tuple(each.sample for each in stored.samples),
        num_prompt_tokens=None,
    )


def _training_scores(index: RunIndex) -> dict[TurnKey, dict[int, dict[int, float]]]:
    """{turn: {run: {step: mean score}}} of the turns that training sampled and whose rollouts were decided."""
    found: dict[TurnKey, dict[int, dict[int, float]]] = {}
    for trajectory, turn, run, step, score in index.count(
        "SELECT trajectory_id, turn_index, run, step, avg(score) FROM rollouts WHERE trajectory_id IS NOT NULL "
        "AND turn_index IS NOT NULL AND step IS NOT NULL AND isfinite(score) AND part = ? GROUP BY ALL ORDER BY ALL",
        RunPart.TRAINING.value,
    ):
        found.setdefault(TurnKey(trajectory, turn), {}).setdefault(run, {})[step] = score
    return found


def _pivot(mixed: _Mixed, scores: dict[TurnKey, dict[int, dict[int, float]]], num_runs: int) -> ProfiledPivot:
    turn = mixed.stored.turn
    of_turn = scores.get(TurnKey(turn.trajectory_id, turn.index), {})
    return ProfiledPivot(
        turn=turn.id,
        verifier=turn.verifier,
        mean_score=mixed.mean_score,
        num_samples=len(mixed.stored.samples),
        reasons=dict(Counter(each.sample.verdict.reason for each in mixed.stored.samples).most_common()),
        scores=[of_turn.get(run, {}) for run in range(num_runs)],
    )
