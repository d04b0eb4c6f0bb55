"""Units of a study -> what is done, what each takes by those of its kind that are finished, and the hours left."""

from collections.abc import Sequence
from statistics import fmean

from examples.units import Unit


def plan_lines(stages: Sequence[Sequence[Unit]], num_jobs: int = 1) -> list[str]:
    """A line for each unit, and one for the hours; a kind of which none is finished has no estimate.

    Args:
        stages: Units that may run side by side; a stage begins when the one before has ended.
        num_jobs: Units that run at once.
    """
    units = [unit for stage in stages for unit in stage]
    measured = {arm: _mean_seconds(units, arm) for arm in {unit.arm for unit in units}}
    lines = [f"{unit.arm}, seed {unit.seed}: {_state(unit)}, {_shown(measured[unit.arm])}" for unit in units]
    left = [[measured[unit.arm] for unit in stage if not _is_done(unit)] for stage in stages]
    seconds = sum(seconds_of([each for each in stage if each is not None], num_jobs) for stage in left)
    num_left = sum(map(len, left))
    beside = "" if num_jobs == 1 else f", with {num_jobs} at once"
    hours = f"{num_left} of {len(units)} units left: {seconds / 3600:.2f} hours{beside}"
    unknown = sum(each is None for stage in left for each in stage)
    return [*lines, f"{hours}, and {unknown} of a kind that was not measured yet" if unknown else hours]


def seconds_of(units: Sequence[float], num_jobs: int) -> float:
    """Seconds until the last unit ends, if each begins as soon as one of `num_jobs` places is free."""
    places = [0.0] * num_jobs
    for seconds in units:
        places[places.index(min(places))] += seconds
    return max(places)


def _is_done(unit: Unit) -> bool:
    progress = unit.progress
    return progress is not None and progress.seconds is not None


def _state(unit: Unit) -> str:
    progress = unit.progress
    if progress is None:
        return "not begun"
    return f"begun in {progress.num_runs} run(s)" if progress.seconds is None else f"done in {progress.seconds:.0f} s"


def _mean_seconds(units: Sequence[Unit], arm: str) -> float | None:
    """Mean over the units of an arm that one run finished alone."""
    done = [unit.progress for unit in units if unit.arm == arm]
    seconds = [each.seconds for each in done if each is not None and each.seconds is not None and each.num_runs == 1]
    return fmean(seconds) if seconds else None


def _shown(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds:.0f} s expected"
