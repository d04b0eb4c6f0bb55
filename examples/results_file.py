"""Results of a study's units <-> one parquet file, which outlives their folders and can be merged with others."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow
import pyarrow.parquet
from rich.console import Console

from examples.evaluation_results import EvaluatedResult
from examples.quickstart.training import PROJECT
from verl_pivot.data.files import replacing
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject

RESULTS = "results.parquet"
"""Name of the file in a study's folder."""
_ABOUT = b"units"
"""Key of the file's metadata that holds the units, their steps, and sentences about what is missing."""
_PLACE = ("unit", "is_evaluation", "step")
"""Columns in front of those of a trajectory."""

PlayedT = TypeVar("PlayedT")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUnit(Generic[PlayedT]):
    """Results of one unit, and the properties that it must share with units that it is compared with."""

    result: EvaluatedResult[PlayedT]
    policy: str
    """Digest of the base policy, which must be the same for all units of a seed."""
    design: JsonObject
    """Settings of its arm without the seed, which must be the same for all seeds of the arm."""
    varying: JsonObject = field(default_factory=dict)
    """Settings that may differ between seeds, such as the digest of a judge that was trained for one seed."""

    @property
    def name(self) -> str:
        return f"{self.result.arm} with seed {self.result.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport(Generic[PlayedT]):
    """How a study with results files is reported."""

    arms: Collection[str]
    """Names of all arms."""
    played: type[PlayedT]
    """Dataclass of a trajectory."""
    write: Callable[[Sequence[EvaluatedResult[PlayedT]], Sequence[str], Path], None]
    """Writes summary.json and the plot; called with results, gaps and folder."""
    show: Callable[[Sequence[EvaluatedResult[PlayedT]], Sequence[str], Console], None]
    """Prints the table; called with results, gaps and console."""

    def publish(self, kept: "Kept[PlayedT]", folder: Path) -> None:
        """Write the trajectories, summary.json and the plot into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_results(kept, folder / RESULTS)
        self.write(kept.results, kept.gaps, folder)

    def check(self, unit: "KeptUnit[PlayedT]", folder: Path) -> None:
        """Refuse, before hours of work, a unit that conflicts with the earlier results in the study's folder.

        Raises:
            SystemExit: As `add` does.
        """
        self._beside_earlier(Kept(units=[unit], gaps=[]), folder)

    def add(self, kept: "Kept[PlayedT]", folder: Path) -> "Kept[PlayedT]":
        """Publish the units of a run in the study's folder, together with earlier runs' units of other arms or seeds.

        Raises:
            SystemExit: If the file there cannot be read, or its units are those of another study.
        """
        every = self._beside_earlier(kept, folder)
        self.publish(every, folder)
        return every

    def _beside_earlier(self, kept: "Kept[PlayedT]", folder: Path) -> "Kept[PlayedT]":
        path = folder / RESULTS
        try:
            return _with_others(kept, read_results(path, self.played), path) if path.is_file() else kept
        except DataError as error:
            raise SystemExit(f"{error}; give another --out, or remove the file") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Generic[PlayedT]):
    """Contents of a results file."""

    units: Sequence[KeptUnit[PlayedT]]
    gaps: Sequence[str]
    """Sentences about what is missing."""

    @property
    def results(self) -> list[EvaluatedResult[PlayedT]]:
        return [each.result for each in self.units]


def unplayed(arm: str, seed: int) -> EvaluatedResult[Any]:
    """Empty results of a unit that is not yet trained."""
    return EvaluatedResult(arm=arm, seed=seed, evaluations={}, training={})


def policy_digest(folder: Path) -> str:
    """Digest of a policy's weights."""
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def sources_digest(folder: Path, names: Iterable[str]) -> str:
    """Digest of the texts of files that decide results although no setting of a unit shows their contents."""
    texts = ((folder / name).read_text(encoding="utf-8") for name in names)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def without_seeds(settings: JsonObject, out: Path) -> JsonObject:
    """Settings of a unit that are the same for all seeds of its arm, and in every folder.

    Args:
        settings: `Unit.settings`; those whose name ends in "seed" are left out.
        out: Folder of the study, which becomes "." in the result.
    """
    written = {f"{path}/" for path in (out, out.resolve())}
    folders = written | {each.removeprefix(f"{PROJECT}/") for each in written}

    def shared(value: Json) -> Json:
        if isinstance(value, dict):
            return without_seeds(value, out)
        found = [each for each in folders if isinstance(value, str) and value.startswith(each)]
        return f"./{str(value).removeprefix(max(found, key=len))}" if found else value

    return {name: shared(value) for name, value in settings.items() if not name.endswith("seed")}


def write_results(kept: Kept[PlayedT], path: Path) -> None:
    """Write all trajectories of the units; an earlier file stays until the new one is complete.

    Args:
        kept: What to write; its trajectories are dataclasses of plain values and tuples of them.
        path: The file.

    Raises:
        ConfigError: If the file cannot be written.
    """
    rows = [
        {**dict(zip(_PLACE, (number, is_evaluation, step), strict=True)), **asdict(played)}  # type: ignore[call-overload]
        for number, unit in enumerate(kept.units)
        for is_evaluation, part in ((True, unit.result.evaluations), (False, unit.result.training))
        for step, of_step in part.items()
        for played in of_step
    ]
    about = {"units": [_unit_as_dict(each) for each in kept.units], "gaps": [*kept.gaps]}
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata({_ABOUT: json.dumps(about)})
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(table, unfinished, compression="zstd")


def _unit_as_dict(unit: KeptUnit[PlayedT]) -> JsonObject:
    result = unit.result
    return {
        "arm": result.arm,
        "seed": result.seed,
        "evaluations": [*result.evaluations],
        "training": [*result.training],
        "policy": unit.policy,
        "design": unit.design,
        "varying": unit.varying,
    }


def read_results(path: Path, played: type[PlayedT]) -> Kept[PlayedT]:
    """Read what `write_results` wrote.

    Args:
        path: The file.
        played: Dataclass of a trajectory.

    Raises:
        DataError: If the file is missing, holds no results, or has trajectories with other fields.
    """
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as the results of a study: {error}") from error
    about = json.loads((table.schema.metadata or {}).get(_ABOUT, b"null"))
    if about is None:
        raise DataError(f"{path} holds no results of a study; they are in the file {RESULTS} of its folder")
    parts: dict[tuple[int, bool, int], list[PlayedT]] = {}
    for row in table.to_pylist():
        place = tuple(row.pop(each) for each in _PLACE)
        parts.setdefault(place, []).append(_made(played, row, path))
    try:
        units = [_unit(number, each, parts) for number, each in enumerate(about["units"])]
    except KeyError as error:
        raise DataError(f"{path} was written by another version: its units have no {error}") from error
    return Kept(units=units, gaps=about["gaps"])


def _made(played: type[PlayedT], row: dict[str, Any], path: Path) -> PlayedT:
    try:
        return played(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
    except TypeError as error:
        raise DataError(f"{path} was written by another version, or for another study: {error}") from error


def _unit(number: int, about: dict[str, Any], parts: dict[tuple[int, bool, int], list[PlayedT]]) -> KeptUnit[PlayedT]:
    result = EvaluatedResult(
        arm=about["arm"],
        seed=about["seed"],
        evaluations={step: parts.get((number, True, step), []) for step in about["evaluations"]},
        training={step: parts.get((number, False, step), []) for step in about["training"]},
    )
    return KeptUnit(result=result, policy=about["policy"], design=about["design"], varying=about["varying"])


def merged(files: Iterable[Path], study: StudyReport[PlayedT]) -> Kept[PlayedT]:
    """The units of several files as those of one study, in order of the seeds.

    Args:
        files: Files that `write_results` wrote, on one machine or on several.
        study: The study that they belong to.

    Raises:
        DataError: If two files hold the same unit, an arm has other settings in one of them, or units of a seed
            started from different policies; if an arm is unknown; or if a file cannot be read.
    """
    units: list[KeptUnit[PlayedT]] = []
    gaps: dict[str, None] = {}
    for path in files:
        kept = read_results(path, study.played)
        for unit in kept.units:
            if unit.result.arm not in study.arms:
                known = ", ".join(study.arms)
                raise DataError(f"{path} holds {unit.name}, but the study has no such arm: {known}")
            for other in units:
                _check_goes_with(unit, other, path)
        units += kept.units
        gaps.update(dict.fromkeys(kept.gaps))
    return Kept(units=sorted(units, key=lambda each: each.result.seed), gaps=[*gaps])


def _with_others(kept: Kept[PlayedT], earlier: Kept[PlayedT], path: Path) -> Kept[PlayedT]:
    """The units of a run, and those of an earlier file that the run does not have."""
    names = {each.name for each in kept.units}
    others = [each for each in earlier.units if each.name not in names]
    for other in others:
        for unit in kept.units:
            _check_goes_with(other, unit, path)
    about = tuple(f"{each.result.arm}, seed {each.result.seed}:" for each in others)
    gaps = [*kept.gaps, *(text for text in earlier.gaps if text.startswith(about))]
    return Kept(units=sorted([*kept.units, *others], key=lambda each: each.result.seed), gaps=gaps)


def _check_goes_with(unit: KeptUnit[PlayedT], other: KeptUnit[PlayedT], path: Path) -> None:
    """Refuse a unit of a file that conflicts with a unit of an earlier file."""
    is_same_arm, is_same_seed = unit.result.arm == other.result.arm, unit.result.seed == other.result.seed
    if is_same_arm and is_same_seed:
        raise DataError(f"{path} holds {unit.name}, as an earlier file does: leave one of them out")
    if is_same_arm and unit.design != other.design:
        names = sorted(name for name in unit.design | other.design if unit.design.get(name) != other.design.get(name))
        raise DataError(f"{path} holds {unit.name}, but {other.name} had other settings: {', '.join(names)}")
    if is_same_seed and unit.policy != other.policy:
        raise DataError(
            f"{path} holds {unit.name}, whose base policy is not that of {other.name}: "
            "all arms of a seed start from one policy, so train them in one folder"
        )
