"""Pairs of arms -> the difference between them over the seeds that both have, with two intervals."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

from rich.table import Table

from examples.comparison import (
    AnsweredT,
    HeldOutUnit,
    difference_as_json,
    difference_of_means,
    means_by_question,
    shown_difference,
)
from verl_pivot.statistics import Interval, PairedDifference, t_interval
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(Generic[AnsweredT]):
    """Two arms to be compared by one value of a trajectory."""

    arm: str
    over: str
    """The other arm, whose value is subtracted from the arm's."""
    measure: str
    """Name of the value that is compared."""
    value: Callable[[AnsweredT], float]
    applies: Callable[[AnsweredT], bool] = lambda each: True
    """Whether a trajectory counts."""
    in_training: bool = False
    """Whether trajectories of all training steps count, which favours the faster arm; False: those on held-out rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrasted:
    """Result of a contrast."""

    measure: str
    """Name of the value that was compared."""
    arm: str
    over: str
    """The other arm, whose value was subtracted."""
    seeds: tuple[int, ...]
    """Seeds that both arms have, with questions in common."""
    difference: PairedDifference
    """Difference of the means per question over these seeds; its interval resamples questions, not trainings."""
    by_seed: tuple[float, ...]
    """[num_seeds] difference for each seed alone."""

    @property
    def name(self) -> str:
        return f"{self.measure}, {self.arm} over {self.over}"

    @property
    def over_trainings(self) -> Interval | None:
        """Student's t interval over the seeds; None with one seed."""
        return t_interval(self.by_seed) if len(self.by_seed) > 1 else None

    def as_dict(self) -> JsonObject:
        over_trainings = self.over_trainings
        return {
            "contrast": self.name,
            "seeds": [*self.seeds],
            "difference": difference_as_json(self.difference),
            "by seed": [*self.by_seed],
            "interval over trainings": None if over_trainings is None else [over_trainings.low, over_trainings.high],
        }


def contrasted(contrasts: Iterable[Contrast[AnsweredT]], results: Iterable[HeldOutUnit[AnsweredT]]) -> list[Contrasted]:
    """Results of those contrasts whose arms have a seed in common, and trajectories on the same questions."""
    units = {(each.arm, each.seed): each for each in results}
    found = []
    for each in contrasts:
        shared = sorted(seed for arm, seed in units if arm == each.arm and (each.over, seed) in units)
        pairs = [(_counted(units[each.over, seed], each), _counted(units[each.arm, seed], each)) for seed in shared]
        by_seed = {seed: _difference([pair], each) for seed, pair in zip(shared, pairs, strict=True)}
        whole = _difference(pairs, each)
        if whole is None:
            continue
        found.append(
            Contrasted(
                measure=each.measure,
                arm=each.arm,
                over=each.over,
                seeds=tuple(seed for seed, difference in by_seed.items() if difference is not None),
                difference=whole,
                by_seed=tuple(difference.value for difference in by_seed.values() if difference is not None),
            )
        )
    return found


def contrast_table(found: Iterable[Contrasted]) -> Table:
    """The contrasts for the console."""
    table = Table(title="Contrasts", title_justify="left")
    for column in ("contrast", "seeds", "difference", "by seed", "interval over trainings"):
        table.add_column(column, overflow="fold")
    for each in found:
        by_seed = ", ".join(f"{value:+.3f}" for value in each.by_seed)
        trainings = each.over_trainings
        shown = "" if trainings is None else f"[{trainings.low:+.3f}, {trainings.high:+.3f}]"
        seeds = ", ".join(map(str, each.seeds))
        table.add_row(each.name, seeds, shown_difference(each.difference), by_seed, shown)
    return table


def _counted(unit: HeldOutUnit[AnsweredT], contrast: Contrast[AnsweredT]) -> list[AnsweredT]:
    played = (each for step in unit.training.values() for each in step) if contrast.in_training else unit.held_out
    return [each for each in played if contrast.applies(each)]


def _difference(
    pairs: Sequence[tuple[Sequence[AnsweredT], Sequence[AnsweredT]]], contrast: Contrast[AnsweredT]
) -> PairedDifference | None:
    """Difference of the means per question over all pairs; None if no question is shared."""
    before, after = (
        means_by_question((each for pair in pairs for each in pair[side]), contrast.value) for side in (0, 1)
    )
    return difference_of_means(before, after) if before.keys() & after.keys() else None
