"""Units of a study -> the state and the expected seconds of each, and the hours left.

The expected seconds are the mean of finished units of the same kind.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from examples.study.study import is_finished
from examples.study.units import MEASURED_BY
from examples.units import Unit, differing_settings


def plan_lines(stages: Sequence[Sequence[Unit]], kinds: Mapping[str, str], num_jobs: int = 1) -> list[str]:
    """A line for each unit, and one for the hours left; a kind without a finished unit has no estimate.

    Args:
        stages: Lists of units that may run side by side; a stage begins when the stage before has ended.
        kinds: {name of a unit: its kind}; units of one kind take about as long as each other.
        num_jobs: Number of units that run at once.
    """
    units = [unit for stage in stages for unit in stage]
    by_kind = {kind: _mean_seconds([unit for unit in units if kinds[unit.arm] == kind]) for kind in kinds.values()}
    measured = {name: by_kind[kind] for name, kind in kinds.items()}
    lines = [f"{unit.arm}, seed {unit.seed}: {_state(unit)}, {_shown(measured[unit.arm])}" for unit in units]
    left = [[measured[unit.arm] for unit in stage if not is_finished(unit)] for stage in stages]
    seconds = sum(seconds_of([each for each in stage if each is not None], num_jobs) for stage in left)
    num_left = sum(map(len, left))
    beside = "" if num_jobs == 1 else f", with {num_jobs} at once"
    hours = f"{num_left} of {len(units)} units left: {seconds / 3600:.2f} hours{beside}"
    unknown = sum(each is None for stage in left for each in stage)
    return [*lines, f"{hours}, without {unknown} whose duration is not known yet" if unknown else hours]


def seconds_of(units: Sequence[float], num_jobs: int) -> float:
    """Seconds until the last unit ends, if each begins as soon as one of `num_jobs` places is free."""
    places = [0.0] * num_jobs
    for seconds in units:
        places[places.index(min(places))] += seconds
    return max(places)


def _state(unit: Unit) -> str:
    progress = unit.progress
    if progress is None:
        return "not begun"
    if differing_settings(unit) == {MEASURED_BY}:
        return "measured by other code, and measured again"
    if progress.settings != unit.settings:
        return f"{unit.folder} has other settings and must be removed"
    return f"begun in {progress.num_runs} run(s)" if progress.seconds is None else f"done in {progress.seconds:.0f} s"


def _mean_seconds(units: Sequence[Unit]) -> float | None:
    """Mean duration of the units that were finished in a single run; None if there is none."""
    done = [unit.progress for unit in units if is_finished(unit)]
    seconds = [each.seconds for each in done if each is not None and each.seconds is not None and each.num_runs == 1]
    return fmean(seconds) if seconds else None


def _shown(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds:.0f} s expected"
