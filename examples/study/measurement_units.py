"""Units of a seed that train nothing: measures without a verdict, each kept in a file of its own."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from examples.arms import Lengths
from examples.study.arms import Arm
from examples.study.claims import Claims, ToldName
from examples.study.measures_file import StudyMeasures, read_measures, write_measures
from examples.study.rows import ProfiledTurns
from examples.study.signals import count_signals, step_variances
from examples.study.training import StudyTraining
from verl_pivot.data.rollout_dumps import FOLDER
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.profiling.profiles import iter_profiles
from verl_pivot.types import Turn

FILE = "measures.json"


class MeasuredSeed(Protocol):
    """The parts of a seed that a measurement needs."""

    @property
    def seed(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def policy(self) -> Path: ...

    @property
    def files(self) -> ProfiledTurns: ...

    @property
    def trajectories(self) -> Path: ...

    @property
    def lengths(self) -> Lengths: ...

    @property
    def on_gpu(self) -> bool: ...

    @property
    def num_measured_turns(self) -> int: ...

    def training_of(self, arm: str) -> StudyTraining: ...

    def trained_policy(self, arm: str) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One unit of a seed that only measures."""

    name: str
    title: str
    arms: tuple[str, ...]
    """Arms that must be finished first."""
    needs_profile: bool
    work: Callable[[MeasuredSeed, Path, tuple[str, ...]], StudyMeasures]
    """Function of the seed, a folder for intermediate files, and `arms`."""

    def run(self, seed: MeasuredSeed, folder: Path) -> None:
        write_measures(self.work(seed, folder, self.arms), folder / FILE)


def measurements(claims: Claims, arms: Sequence[Arm], *, has_profile: bool) -> list[Measurement]:
    """The measurements that these arms allow.

    Args:
        claims: Contents of claims.yaml.
        arms: Arms that the study runs.
        has_profile: Whether the study profiles the expert's turns.
    """
    variance, kl = claims.arms_of(ToldName.REWARD_VARIANCE), claims.arms_of(ToldName.OUTSIDE_KL)
    every = (
        Measurement(
            name="signals", title="turns without signal, and the miss rate", arms=(), needs_profile=True, work=_signals
        ),
        Measurement(name="gains", title="one update on each turn", arms=(), needs_profile=True, work=_gains),
        Measurement(name="variance", title="variance of rewards", arms=variance, needs_profile=False, work=_variances),
        Measurement(name="outside_kl", title="KL outside of the domains", arms=kl, needs_profile=False, work=_kls),
    )
    chosen = {arm.name for arm in arms}
    return [
        each
        for each in every
        if (has_profile if each.needs_profile else bool(each.arms) and chosen.issuperset(each.arms))
    ]


def measured(folder: Path) -> StudyMeasures:
    """Results of a finished unit."""
    return read_measures(folder / FILE)


def _signals(seed: MeasuredSeed, folder: Path, arms: Sequence[str]) -> StudyMeasures:
    found = count_signals(seed.files.profile, seed.trajectories, seed.seed)
    return StudyMeasures(digest=seed.digest, signals=tuple(found))


def _gains(seed: MeasuredSeed, folder: Path, arms: Sequence[str]) -> StudyMeasures:
    from examples.study.torch_policy import TorchPolicy
    from examples.study.turn_gains import measure_gains, read_gains

    path, chosen = folder / "gains.jsonl", measured_turns(seed)
    policy = TorchPolicy.read(seed.policy, on_gpu=seed.on_gpu)
    measure_gains(policy, chosen, seed.lengths.turn, path, seed.seed)
    return StudyMeasures(digest=seed.digest, gains=tuple(read_gains(path, seed.seed)))


def measured_turns(seed: MeasuredSeed) -> list[Turn]:
    """Random turns of a seed, drawn from all turns that its profile sampled.

    Raises:
        DataError: If the profile sampled none.
    """
    sampled = {(each.trajectory_id, each.index) for each in iter_profiles(seed.files.profile) if each.samples}
    every = [turn for each in read_trajectories(seed.trajectories) for turn in turns(each)]
    known = [turn for turn in every if (turn.trajectory_id, turn.index) in sampled]
    if not known:
        raise DataError(f"{seed.files.profile} sampled no turn, so none can be measured")
    return random.Random(f"gains-{seed.seed}").sample(known, min(seed.num_measured_turns, len(known)))


def _variances(seed: MeasuredSeed, folder: Path, arms: Sequence[str]) -> StudyMeasures:
    trainings = [seed.training_of(arm) for arm in arms]
    found = [
        row
        for each in trainings
        for row in step_variances(each.rollouts / FOLDER, each.name, seed.seed, each.num_steps)
    ]
    return StudyMeasures(digest=seed.digest, variances=tuple(found))


def _kls(seed: MeasuredSeed, folder: Path, arms: Sequence[str]) -> StudyMeasures:
    from examples.study.outside_kl import measure_outside_kl
    from examples.study.torch_policy import TorchPolicy

    base = TorchPolicy.read(seed.policy, on_gpu=seed.on_gpu)
    trained = ((arm, TorchPolicy.read(seed.trained_policy(arm), on_gpu=seed.on_gpu)) for arm in arms)
    found = [row for arm, each in trained for row in measure_outside_kl(each, base, arm, seed.seed, seed.lengths.turn)]
    return StudyMeasures(digest=seed.digest, kls=tuple(found))
