"""Profile of a seed's turns -> turns without signal, and how often strict match refuses what the verifier accepts."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from examples.study.measures import has_signal, last_third, variance_of_batch, variance_within
from examples.study.measures_file import SignalCount, StepVariance
from examples.study.rows import STRICT_OPTIONS, STRICT_VERIFIER
from verl_pivot.data.rollout_dumps import DumpedRollout, read_rollouts
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.profiling.profiles import iter_profiles, read_settings
from verl_pivot.types import Turn, TurnProfile
from verl_pivot.verifiers.scoring import score_completion


@dataclass
class _Counts:
    turns: int = 0
    without_signal: int = 0
    accepted: int = 0
    missed: int = 0


def count_signals(profile: Path, trajectories: Path, seed: int) -> list[SignalCount]:
    """Counts of each domain, in the order of the profile.

    Raises:
        DataError: If a profiled turn belongs to no trajectory.
    """
    known = {(turn.trajectory_id, turn.index): turn for each in read_trajectories(trajectories) for turn in turns(each)}
    counts = asyncio.run(_counted(iter_profiles(profile), known, profile))
    return [
        SignalCount(
            seed=seed,
            domain=domain,
            num_samples=read_settings(profile).num_samples,
            num_turns=found.turns,
            num_without_signal=found.without_signal,
            num_accepted=found.accepted,
            num_missed=found.missed,
        )
        for domain, found in counts.items()
    ]


async def _counted(
    profiles: Iterable[TurnProfile], known: dict[tuple[str, int], Turn], place: Path
) -> dict[str, _Counts]:
    counts: dict[str, _Counts] = {}
    for profile in profiles:
        turn = known.get((profile.trajectory_id, profile.index))
        if turn is None:
            raise DataError(
                f"{place}: turn {profile.trajectory_id}:{profile.index} is of no trajectory of the seed; remove the "
                "folder of the seed, and run the study again"
            )
        found = counts.setdefault(str(turn.metadata.get("domain")), _Counts())
        if profile.scores:
            found.turns += 1
            found.without_signal += not has_signal(profile.scores)
        accepted = [sample.text for sample in profile.samples if sample.verdict.score == 1.0]
        found.accepted += len(accepted)
        found.missed += sum([await _is_missed(text, turn) for text in accepted])
    return counts


async def _is_missed(text: str, turn: Turn) -> bool:
    """Whether strict match refuses an action that the verifier accepted, and that therefore ended by itself."""
    strict = replace(turn, verifier=STRICT_VERIFIER, verifier_options=STRICT_OPTIONS)
    verdict = await score_completion(text, True, strict)
    return verdict.score == 0.0


def step_variances(dumps: Path, arm: str, seed: int, num_steps: int) -> list[StepVariance]:
    """Variances of the rewards in each step of the last third of a training, including the rollouts of dropped groups.

    Args:
        dumps: Folder with a dump of each step.
        arm: Name of the arm.
        seed: Seed of the arm.
        num_steps: Number of steps of the training.

    Raises:
        DataError: If the dump of a step is missing, or has no known reward.
    """
    found = []
    for step in last_third(range(1, num_steps + 1), num_steps):
        groups = _groups(read_rollouts(dumps / f"{step}.jsonl"))
        if not groups:
            raise DataError(
                f"{dumps / f'{step}.jsonl'} knows no reward: remove the folder of the unit, and run it again"
            )
        within, of_batch = variance_within(groups), variance_of_batch(groups)
        found.append(StepVariance(arm=arm, seed=seed, step=step, within_groups=within, of_batch=of_batch))
    return found


def _groups(rollouts: Iterable[DumpedRollout]) -> list[list[float]]:
    """[num_groups] rewards of the rollouts of each prompt; unknown rewards are left out."""
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.score is not None:
            groups.setdefault(rollout.group, []).append(rollout.score)
    return list(groups.values())
