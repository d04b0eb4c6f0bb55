"""Units of a study -> what is done, what each takes by those of its kind that are finished, and the hours left."""

from collections.abc import Sequence
from statistics import fmean

from examples.units import Unit


def plan_lines(units: Sequence[Unit]) -> list[str]:
    """A line for each unit, and one for the hours; a kind of which none is finished has no estimate."""
    measured = {arm: _mean_seconds(units, arm) for arm in {unit.arm for unit in units}}
    lines = [f"{unit.arm}, seed {unit.seed}: {_state(unit)}, {_shown(measured[unit.arm])}" for unit in units]
    left = [measured[unit.arm] for unit in units if not _is_done(unit)]
    known = [seconds for seconds in left if seconds is not None]
    hours = f"{len(left)} of {len(units)} units left: {sum(known) / 3600:.2f} hours"
    unknown = len(left) - len(known)
    return [*lines, f"{hours}, and {unknown} of a kind that was not measured yet" if unknown else hours]


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
