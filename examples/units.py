"""Units of a study: one arm with one seed each, in a folder from which a later run of the study continues."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from verl_pivot.data.files import replacing
from verl_pivot.types import JsonObject

_STAMP = "unit.json"


class SpoiledError(SystemExit):
    """Raised if work on a unit failed so that nothing in its folder counts, for example because its judge ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One arm with one seed."""

    arm: str
    seed: int
    folder: Path
    """Folder of this unit, which no other unit uses."""
    settings: JsonObject
    """Everything that decides its result; work in a folder is continued only with equal settings."""

    @property
    def progress(self) -> "Progress | None":
        """How far earlier runs came; None if no run has begun the unit."""
        path = self.folder / _STAMP
        return Progress(**json.loads(path.read_text())) if path.is_file() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a unit has come, as its folder says."""

    settings: JsonObject
    num_runs: int
    """Number of runs that worked on it; each but the first continued after an interruption."""
    seconds: float | None = None
    """Duration of the run that finished it; None if no run did."""
    spoiled: str | None = None
    """Why nothing in its folder counts; None if a run may continue it."""


def finish(unit: Unit, work: Callable[[], None]) -> None:
    """Do the work of a unit, unless an earlier run finished it.

    Args:
        unit: The unit.
        work: Does the work; it continues from what is in the folder, such as the last checkpoint of a training.

    Raises:
        SystemExit: If the folder holds a unit with other settings, or one that was spoiled.
    """
    before = unit.progress
    if before and differing_settings(unit):
        raise SystemExit(f"{unit.folder} holds {_differences(before, unit)}; give another --out, or remove the folder")
    if before and before.spoiled:
        raise SystemExit(before.spoiled)
    if before and before.seconds is not None:
        return
    now = Progress(settings=unit.settings, num_runs=before.num_runs + 1 if before else 1)
    _write(unit, now)
    start = time.monotonic()
    try:
        work()
    except SpoiledError as error:
        _write(unit, replace(now, spoiled=str(error)))
        raise
    _write(unit, replace(now, seconds=time.monotonic() - start))


def gaps(units: Iterable[Unit]) -> list[str]:
    """One sentence for each unit that is missing, unfinished, or was not finished in one run."""
    return [f"{unit.arm}, seed {unit.seed}: {text}." for unit in units if (text := _gap(unit.progress))]


def _gap(progress: Progress | None) -> str:
    if progress is None:
        return "not run"
    if progress.seconds is None:
        return f"begun in {progress.num_runs} run(s), not finished"
    if progress.num_runs > 1:
        return f"finished in {progress.num_runs} runs, each from what the one before had left"
    return ""


def differing_settings(unit: Unit) -> set[str]:
    """Names of the settings in which the unit differs from the unit in its folder; none if the folder has no unit."""
    if (before := unit.progress) is None:
        return set()
    names = before.settings | unit.settings
    return {name for name in names if before.settings.get(name) != unit.settings.get(name)}


def _differences(before: Progress, unit: Unit) -> str:
    names = sorted(differing_settings(unit))
    changes = (f"{name} {before.settings.get(name)}, not {unit.settings.get(name)}" for name in names)
    return f"{unit.arm} of seed {unit.seed} with other settings: {', '.join(changes)}"


def _write(unit: Unit, progress: Progress) -> None:
    content = {"settings": progress.settings, "num_runs": progress.num_runs, "seconds": progress.seconds}
    content |= {"spoiled": progress.spoiled} if progress.spoiled else {}
    with replacing(unit.folder / _STAMP) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
