"""claims.yaml and arms.yaml -> the checked claims about the arms, and the hashes that results carry."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from examples.quickstart.training import PROJECT
from examples.study.arms import ArmKind, StudyOptions
from examples.study.digests import file_text, measurements_digest, outcomes_digest
from examples.study.tuned import TunedRates, read_tuned
from verl_pivot.errors import ConfigError
from verl_pivot.statistics import Region
from verl_pivot.validation import Options, validated

FOLDER = Path(__file__).parent
TUNED = "tuned.yaml"
"""File beside arms.yaml with the result of tuning, if tuning has been run."""


class Measure(StrEnum):
    """Quantity by which a claim compares two arms."""

    SOLVED = "solved"
    """Share of solved tasks: that of the arm minus that of the baseline."""
    TURNS = "turns"
    """Turns sampled until the arm's highest accuracy is reached: those of the baseline divided by the arm's."""
    TURNS_WITH_PROFILE = "turns_with_profile"
    """The same ratio, with the turns that an arm's profile sampled counted too."""
    SECONDS = "seconds"
    """Training seconds until the arm's highest accuracy is reached: those of the baseline divided by the arm's."""

    @property
    def is_ratio(self) -> bool:
        return self is not Measure.SOLVED


class Tasks(StrEnum):
    """Held-out tasks that a claim is about."""

    DOMAINS = "domains"
    OUTSIDE = "outside"


class ClaimPart(Options):
    """A measure of two arms, and the region in which it must lie."""

    measure: Measure
    tasks: Tasks
    arm: str
    baseline: str
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("a part needs above, below, or both")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"above {self.above:g} and below {self.below:g} leave no region")
        if self.measure.is_ratio and min(self.bounds) <= 0.0:
            raise ValueError(f"bounds of {self.measure} are factors above 0, got {min(self.bounds):g}")
        if self.arm == self.baseline:
            raise ValueError(f"{self.arm} cannot be compared with itself")
        return self

    @property
    def bounds(self) -> list[float]:
        return [bound for bound in (self.above, self.below) if bound is not None]

    @property
    def region(self) -> Region:
        """Region of the measure's values, or of their logarithms if the measure is a ratio."""
        low = -math.inf if self.above is None else self.above
        high = math.inf if self.below is None else self.below
        if not self.measure.is_ratio:
            return Region(low, high)
        return Region(-math.inf if self.above is None else math.log(low), math.log(high))


class Claim(Options):
    """One claim of the paper."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    text: str
    paper: str
    """The paper's figure, as text."""
    parts: Annotated[tuple[ClaimPart, ...], Field(min_length=1)]
    shown: tuple[ClaimPart, ...] = ()
    """Estimates that are shown beside the claim and do not affect its verdict."""


class ToldName(StrEnum):
    """Name of a measure that has no verdict."""

    NO_SIGNAL = "no_signal"
    REWARD_VARIANCE = "reward_variance"
    GAIN_AND_DEVIATION = "gain_and_deviation"
    OUTSIDE_KL = "outside_kl"
    MISS_RATE = "miss_rate"


class ToldMeasure(Options):
    """A statement of the paper that the study measures without a verdict."""

    name: ToldName
    text: str
    paper: str
    """The paper's statement, as text."""
    arms: tuple[str, ...] = ()
    """Arms that are measured; empty if the base policy is measured."""


class Claims(Options):
    """Contents of claims.yaml."""

    alpha: Annotated[float, Field(gt=0.0, lt=1.0)]
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]
    measures: tuple[ToldMeasure, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise ValueError(f"two claims have one name: {', '.join(names)}")
        told = [measure.name for measure in self.measures]
        if len(set(told)) < len(told):
            raise ValueError(f"two measures have one name: {', '.join(told)}")
        return self

    def arms_of(self, name: ToldName) -> tuple[str, ...]:
        """Arms of a measure without a verdict; empty if claims.yaml lacks the measure."""
        return next((measure.arms for measure in self.measures if measure.name is name), ())

    @property
    def all_parts(self) -> list[ClaimPart]:
        return [part for claim in self.claims for part in (*claim.parts, *claim.shown)]


TUNED_OTHERWISE = "The learning rates were tuned with other tasks, options or code than the present ones."


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Claims, options and hashes of a study, as they are fixed before it runs."""

    claims: Claims
    study: StudyOptions
    """Options of arms.yaml, without the result of tuning."""
    tuned: TunedRates | None
    """Result of tuning; None if there is none."""
    digest: str
    """Hash of the options and files that decide outcomes, made by `examples.study.digests`."""
    measured_by: str
    """Hash of the options and files that decide measures without a verdict."""
    tuned_by: str
    """Hash of the options and files that decide the outcomes of tries."""

    @property
    def is_tuned_otherwise(self) -> bool:
        """Whether the tuned rates come from other tasks, options or code than tuning would use now."""
        return self.tuned is not None and self.tuned.design.split()[:1] != [self.tuned_by]

    @property
    def untuned(self) -> "Design":
        """The design of a policy for which nothing was tuned."""
        return replace(self, tuned=None, digest=outcomes_digest(self.study, None))


def read_design(
    folder: Path = FOLDER, project: Path = PROJECT, *, tuned: Path | None = None, is_tuning: bool = False
) -> Design:
    """Read claims.yaml and arms.yaml of a folder, and tuned.yaml.

    Args:
        folder: Folder of the files.
        project: Folder of the project, whose sources the hashes cover.
        tuned: File with the result of tuning; None for tuned.yaml in the folder, if it is there.
        is_tuning: Whether to ignore such a file, since tuning does not depend on the result of an earlier tuning.

    Raises:
        ConfigError: If a file is missing or wrong, or a claim is about an arm that does not exist.
    """
    paths = [folder / name for name in ("claims.yaml", "arms.yaml")]
    contents = [_parsed(file_text(path), path) for path in paths]
    claims = validated(Claims, contents[0], paths[0].name)
    study = validated(StudyOptions, contents[1], paths[1].name)
    beside = folder / TUNED if (folder / TUNED).is_file() else None
    found = None if is_tuning else tuned or beside
    rates = None if found is None else read_tuned(found)
    _check_arms(claims, study, paths)
    _check_measures(claims, study, paths)
    return Design(
        claims=claims,
        study=study,
        tuned=rates,
        digest=outcomes_digest(study, rates, is_tuning=is_tuning, project=project),
        measured_by=measurements_digest(study, project=project),
        tuned_by=outcomes_digest(study, None, is_tuning=True, project=project),
    )


def _check_measures(claims: Claims, study: StudyOptions, paths: Sequence[Path]) -> None:
    kinds = {arm.name: arm.kind for arm in study.all_arms}
    for measure in claims.measures:
        for name in measure.arms:
            if name not in kinds:
                raise ConfigError(f"{paths[0]}: a measure names the arm {name}, which {paths[1]} does not have")
            if measure.name is ToldName.REWARD_VARIANCE and kinds[name] not in (ArmKind.TURNS, ArmKind.TASKS):
                raise ConfigError(
                    f"{paths[0]}: {measure.name} cannot be measured for the arm {name}, which has no rewards: name an "
                    "arm of the kind turns or tasks"
                )


def _check_arms(claims: Claims, study: StudyOptions, paths: Sequence[Path]) -> None:
    kinds = {arm.name: arm.kind for arm in study.all_arms}
    for part in claims.all_parts:
        for name in (part.arm, part.baseline):
            if name not in kinds:
                raise ConfigError(f"{paths[0]}: a claim names the arm {name}, which {paths[1]} does not have")
            if part.measure.is_ratio and kinds[name] not in (ArmKind.TURNS, ArmKind.TASKS):
                raise ConfigError(
                    f"{paths[0]}: {part.measure} cannot be measured for the arm {name}, which samples no turns: name "
                    "an arm of the kind turns or tasks"
                )


def _parsed(text: str, path: Path) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
