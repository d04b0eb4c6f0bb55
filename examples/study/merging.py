"""Folders of one study that were run separately, each with other seeds -> their outcomes and measures as one."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.study.measures_file import MEASURES, StudyMeasures, read_measures
from examples.study.outcomes import OUTCOMES, StudyAbout, StudyResults, read_results
from verl_pivot.errors import DataError


class MergedStudy(NamedTuple):
    """Outcomes and measures of several folders."""

    results: StudyResults
    measures: StudyMeasures


def merged(folders: Sequence[Path], out: Path) -> MergedStudy:
    """Outcomes and measures of all folders.

    Args:
        folders: Folders that `python -m examples.study` wrote.
        out: Folder for the merged study.

    Raises:
        DataError: If two folders have the same seed, or differ in hash, policy or launch; if a file cannot be read; or
            if `out` is one of the folders, or already holds the outcomes of a study.
    """
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise DataError(f"--out {out} is one of the folders that are merged, and would be overwritten: name another")
    if (out / OUTCOMES).exists():
        raise DataError(f"--out {out} holds {OUTCOMES} of a study, which would be overwritten: name another folder")
    results = [read_results(folder / OUTCOMES) for folder in folders]
    measures = [read_measures(folder / MEASURES) for folder in folders]
    for number, folder in enumerate(folders):
        _check_design(folders[0], results[0], measures[0], folder, results[number], measures[number])
        for before in range(number):
            _check_seeds(folders[before], results[before], folder, results[number])
    evaluations = [each for several in results for each in several.evaluations]
    about = _joined([each.about for each in results])
    return MergedStudy(
        StudyResults(digest=results[0].digest, evaluations=evaluations, about=about),
        measures[0].with_results(measures[1:]),
    )


def _check_design(
    first: Path, results: StudyResults, measures: StudyMeasures, folder: Path, other: StudyResults, more: StudyMeasures
) -> None:
    """Refuse a folder whose hashes, policy or launches differ from those of the first folder."""
    pairs: dict[str, tuple[object, object]] = {
        "hash": (results.digest, other.digest),
        "hash of the measured outcomes": (measures.digest, more.digest),
        "hash of the measuring code": (measures.measured_by, more.measured_by),
        "policy": (results.about.policy, other.about.policy),
    }
    differing = [f"{name} {mine}, not {own}" for name, (own, mine) in pairs.items() if own != mine]
    if results.about.arms != other.about.arms:
        differing.append("launches or learning rates that differ")
    if differing:
        raise DataError(f"{folder} has another design than {first}: {'; '.join(differing)}")


def _check_seeds(before: Path, results: StudyResults, folder: Path, other: StudyResults) -> None:
    """Refuse a seed that an earlier folder has too."""
    both = sorted({each.seed for each in results.evaluations} & {each.seed for each in other.evaluations})
    if both:
        raise DataError(f"{before} and {folder} both have the seed {both[0]}: leave one of them out")


def _joined(about: Sequence[StudyAbout]) -> StudyAbout:
    """The description in the first folder, with the commits, notes and side-by-side arms of all folders."""
    return about[0].model_copy(
        update={
            "side_by_side": tuple(dict.fromkeys(arm for each in about for arm in each.side_by_side)),
            "commit": ", ".join(dict.fromkeys(each.commit for each in about if each.commit)),
            "notes": tuple(note for each in about for note in each.notes),
        }
    )
