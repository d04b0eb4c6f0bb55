"""Filter `difficulty`: keeps as many trajectories as possible with given shares of easy, medium and hard ones."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Literal, Self

from pydantic import Field, model_validator

from verl_pivot.errors import DataError
from verl_pivot.quality.contract import Chart, DatasetFilter, FilterOptions, Finding, Ruling, require_profile
from verl_pivot.quality.profile_totals import ProfileTotals, totals_for
from verl_pivot.quality.registry import register_filter
from verl_pivot.quality.sampling import shuffled
from verl_pivot.types import JsonObject, Role, Trajectory


class Difficulty(StrEnum):
    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class Shares(FilterOptions):
    """Share of the trajectories in each class; the shares add up to 1."""

    easy: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of the trajectories that are easy."""
    medium: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the trajectories that are in neither of the other classes."""
    hard: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the trajectories that are hard."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = sum(self.exact().values())
        if total != 1:
            raise ValueError(f"easy, medium and hard must add up to 1, their sum is {float(total)}")
        return self

    def exact(self) -> dict[Difficulty, Fraction]:
        """The shares as the decimals that were written: 1/10 for 0.1, not the nearest binary number."""
        written = {Difficulty.EASY: self.easy, Difficulty.MEDIUM: self.medium, Difficulty.HARD: self.hard}
        return {member: Fraction(str(share)) for member, share in written.items()}


class DifficultyOptions(FilterOptions):
    measure: Literal["auto", "reward_mean", "pass_rate", "num_turns"] = "auto"
    """Measure of difficulty; auto: reward_mean with a profile, num_turns without."""
    easy_from: float = Field(default=0.7, ge=0.0, le=1.0)
    """Smallest mean reward or pass rate, of the reference policy over a trajectory's turns, of an easy trajectory."""
    hard_below: float = Field(default=0.3, ge=0.0, le=1.0)
    """Mean reward or pass rate below which a trajectory is hard."""
    easy_up_to_turns: int = Field(default=4, ge=0)
    """Largest number of assistant turns of an easy trajectory, by the measure num_turns."""
    hard_from_turns: int = Field(default=12, ge=1)
    """Smallest number of assistant turns of a hard trajectory, by the measure num_turns."""
    shares: Shares = Shares()
    """Shares of easy, medium and hard trajectories that are wanted; they add up to 1."""
    drop: bool = True
    """Whether to drop trajectories; False only reports the shares."""
    seed: int = 0
    """Seed of the random choice of the trajectories that stay."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hard_below > self.easy_from:
            raise ValueError(f"hard_below must not exceed easy_from, got {self.hard_below} and {self.easy_from}")
        if self.hard_from_turns <= self.easy_up_to_turns:
            raise ValueError(
                f"hard_from_turns must exceed easy_up_to_turns, got {self.hard_from_turns} and {self.easy_up_to_turns}"
            )
        return self


@register_filter("difficulty", options=DifficultyOptions)
class DifficultyMix(DatasetFilter[int]):
    def __init__(self, options: DifficultyOptions) -> None:
        self._options = options
        self.needs_profile = options.measure in ("reward_mean", "pass_rate")

    def feature(self, trajectory: Trajectory) -> int:
        """Number of assistant turns."""
        return sum(message.role is Role.ASSISTANT for message in trajectory.messages)

    def decide(self, ids: Sequence[str], features: Sequence[int], profile: ProfileTotals | None) -> Ruling:
        options = self._options
        measure = options.measure
        if measure == "auto":
            measure = "num_turns" if profile is None else "reward_mean"
        if measure == "num_turns":
            classes = [self._by_turns(num_turns) for num_turns in features]
        else:
            totals = totals_for(require_profile(profile, "difficulty"), ids)
            values = [total.pass_rate if measure == "pass_rate" else total.reward_mean for total in totals]
            classes = [self._by_success(value) for value in values]
        dropped: dict[int, Finding] = {
            position: Finding(reason="undecided", detail="no sample in the profile has a score")
            for position, member in enumerate(classes)
            if member is None and options.drop
        }
        counts = {member: classes.count(member) for member in Difficulty}
        sizes = self._sizes(counts) if options.drop else counts
        for member in Difficulty:
            positions = [position for position, own in enumerate(classes) if own is member]
            why = Finding(reason="over_share", detail=f"{member}: {sizes[member]} of {counts[member]} fit the shares")
            dropped.update(dict.fromkeys(shuffled(positions, ids, options.seed)[sizes[member] :], why))
        return self._ruling(dropped, measure, counts, sizes)

    def _by_turns(self, num_turns: int) -> Difficulty | None:
        if num_turns <= self._options.easy_up_to_turns:
            return Difficulty.EASY
        return Difficulty.HARD if num_turns >= self._options.hard_from_turns else Difficulty.MEDIUM

    def _by_success(self, value: float) -> Difficulty | None:
        if math.isnan(value):
            return None
        if value >= self._options.easy_from:
            return Difficulty.EASY
        return Difficulty.HARD if value < self._options.hard_below else Difficulty.MEDIUM

    def _sizes(self, counts: Mapping[Difficulty, int]) -> dict[Difficulty, int]:
        shares = self._options.shares.exact()
        lacking = [member for member in Difficulty if shares[member] and not counts[member]]
        if lacking and any(counts.values()):
            raise DataError(
                f"difficulty: no trajectory is {lacking[0]}, so no selection can have the wanted shares; change the "
                "shares or the bounds of the classes in the rules, or set drop: false"
            )
        return largest_mix(counts, shares)

    def _ruling(
        self,
        dropped: dict[int, Finding],
        measure: str,
        before: Mapping[Difficulty, int],
        after: Mapping[Difficulty, int],
    ) -> Ruling:
        target = {member: float(share) for member, share in self._options.shares.exact().items()}
        series = {"before": _shares(before), "after": _shares(after), "target": tuple(target.values())}
        facts: JsonObject = {"measure": measure, "before": _named(before), "after": _named(after)}
        facts["target_shares"] = _named(target)
        chart = Chart(title="difficulty", labels=tuple(member.value for member in Difficulty), series=series)
        note = f"by {measure}: {_readable(before)}; after: {_readable(after)}"
        return Ruling(dropped=dropped, note=note, facts=facts, charts=(chart,))


def largest_mix(counts: Mapping[Difficulty, int], shares: Mapping[Difficulty, Fraction]) -> dict[Difficulty, int]:
    """Number of trajectories to keep of each class: as many as the shares allow, each within one of its exact share.

    The total is the largest for which no class lacks trajectories. Shares are rounded down, and the rest of the total
    goes to the classes with the largest remainders (Hamilton's method).
    """
    total = min(int(Fraction(counts[member]) / share) for member, share in shares.items() if share)
    exact = {member: share * total for member, share in shares.items()}
    sizes = {member: int(value) for member, value in exact.items()}
    by_remainder = sorted(sizes, key=lambda member: sizes[member] - exact[member])
    for member in by_remainder[: total - sum(sizes.values())]:
        sizes[member] += 1
    return sizes


def _shares(counts: Mapping[Difficulty, int]) -> tuple[float, ...]:
    total = Counter(counts).total()
    return tuple(counts[member] / total if total else 0.0 for member in Difficulty)


def _readable(counts: Mapping[Difficulty, int]) -> str:
    return ", ".join(f"{member} {share:.0%}" for member, share in zip(Difficulty, _shares(counts), strict=True))


def _named(values: Mapping[Difficulty, float]) -> JsonObject:
    return {member.value: value for member, value in values.items()}
