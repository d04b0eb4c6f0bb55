"""Per-task outcomes of the study <-> one parquet file, from which every table is rebuilt."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import pyarrow
import pyarrow.parquet
from pydantic import Field

from verl_pivot.data.files import replacing
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.validation import Options, validated

OUTCOMES = "outcomes.parquet"
"""Name of the file in a study's folder."""
_DESIGN = b"design"
"""Key in the metadata of the file, for the hash of the design."""
_ABOUT = b"about"
"""Key in the metadata of the file, for a `StudyAbout`."""
_WRITE_AGAIN = "run `python -m examples.study` again"
_FIELDS = (
    ("arm", pyarrow.string()),
    ("seed", pyarrow.int64()),
    ("step", pyarrow.int64()),
    ("group", pyarrow.string()),
    ("task", pyarrow.string()),
    ("solved", pyarrow.bool_()),
    ("turns", pyarrow.int64()),
    ("profile_turns", pyarrow.int64()),
    ("seconds", pyarrow.float64()),
)
_SCHEMA = pyarrow.schema(_FIELDS)
Solved: TypeAlias = Mapping[str, Mapping[str, bool | None]]
"""{group of tasks: {task: whether it was solved; None if the system failed}}"""


class ArmSettings(Options):
    """How one arm was trained."""

    learning_rate: float | None = None
    num_epochs: int | None = None
    command: tuple[str, ...] = ()
    """Arguments of the arm's launch, with short names for folders, and SEED for the seed."""


class StudyAbout(Options):
    """How the outcomes of a study were made."""

    policy: str = ""
    """Name of the policy before any arm."""
    is_taught_at_random: bool = False
    """Whether the policy began as a random model of a real one's shape; such a study only shows that launches work."""
    side_by_side: tuple[str, ...] = ()
    """Arms that were trained side by side with others, so that their seconds are not those of a training alone."""
    is_tuned: bool = False
    """Whether learning rates and epochs are those that tuning found."""
    commit: str = ""
    """Commit of the project, followed by `-dirty` if files were changed; empty outside of a repository."""
    options: tuple[str, ...] = ()
    """Options of the command that decide results."""
    arms: dict[str, ArmSettings] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Sentences about units that are not finished, or were not finished in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEvaluation:
    """Outcomes of one arm with one seed after a training step, on all held-out tasks."""

    arm: str
    seed: int
    step: int
    turns: int
    """Turns that training sampled until this step: one for a rollout of a single turn, all turns of a whole task."""
    profile_turns: int
    """Turns that the profile sampled before training."""
    seconds: float
    """Seconds of training until this step, without evaluations and checkpoints."""
    solved: Solved


def accuracy(evaluation: UnitEvaluation, groups: Sequence[str]) -> float | None:
    """Mean over groups of the share of tasks solved; None if a group has no task whose outcome is known."""
    known = [[each for each in evaluation.solved.get(group, {}).values() if each is not None] for group in groups]
    return fmean(fmean(outcomes) for outcomes in known) if groups and all(known) else None


def known_outcomes(evaluations: Sequence[UnitEvaluation], group: str) -> list[list[bool]]:
    """[num_tasks, num_evaluations] outcomes of those tasks of a group whose outcome is known in all evaluations."""
    columns = [each.solved.get(group, {}) for each in evaluations]
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    rows = [[column[task] for column in columns] for task in shared]
    return [[solved for solved in row if solved is not None] for row in rows if None not in row]


def share_known(evaluations: Sequence[UnitEvaluation], groups: Sequence[str]) -> float:
    """Share of a group's tasks whose outcome is known in all evaluations, for the group with the smallest share.

    The share is of the tasks that any of the evaluations has.
    """
    shares = []
    for group in groups:
        every = set[str]().union(*(each.solved.get(group, {}) for each in evaluations))
        shares.append(len(known_outcomes(evaluations, group)) / len(every) if every else 0.0)
    return min(shares, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResults:
    """All outcomes of a study."""

    digest: str
    """Hash of the design (`examples.study.digests`), followed by what the command changed in it."""
    evaluations: Sequence[UnitEvaluation]
    about: StudyAbout = field(default_factory=StudyAbout)

    def curve(self, arm: str, seed: int) -> list[UnitEvaluation]:
        """Evaluations of one unit in the order of their steps; empty if it was not run."""
        found = [each for each in self.evaluations if (each.arm, each.seed) == (arm, seed)]
        return sorted(found, key=lambda each: each.step)

    def final(self, arm: str, seed: int) -> UnitEvaluation | None:
        return next(reversed(self.curve(arm, seed)), None)


def write_results(results: StudyResults, path: Path) -> None:
    rows = [
        (each.arm, each.seed, each.step, group, task, solved, each.turns, each.profile_turns, each.seconds)
        for each in results.evaluations
        for group, tasks in each.solved.items()
        for task, solved in tasks.items()
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(_FIELDS)
    arrays = [pyarrow.array(column, kind) for column, (_, kind) in zip(columns, _FIELDS, strict=True)]
    metadata = {_DESIGN: results.digest.encode(), _ABOUT: results.about.model_dump_json().encode()}
    table = pyarrow.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(table, unfinished, compression="zstd")


def read_results(path: Path) -> StudyResults:
    """Read what `write_results` wrote.

    Raises:
        DataError: If the file is missing, or does not hold the outcomes of a study.
    """
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}): {_WRITE_AGAIN}") from error
    metadata = table.schema.metadata or {}
    remedy = "name the outcomes.parquet that the study wrote"
    if table.schema.remove_metadata() != _SCHEMA or not {_DESIGN, _ABOUT} <= metadata.keys():
        raise DataError(f"{path} holds no outcomes of a study: {remedy}")
    try:
        about = validated(StudyAbout, json.loads(metadata[_ABOUT]), "about")
    except (ValueError, ConfigError) as error:
        raise DataError(f"{path} does not say how its outcomes were made ({error}): {remedy}") from error
    return StudyResults(digest=metadata[_DESIGN].decode(), evaluations=list(_evaluations(table, path)), about=about)


def _place(row: Mapping[str, object]) -> str:
    return f"{row['arm']}, seed {row['seed']}, step {row['step']}"


def _evaluations(table: pyarrow.Table, path: Path) -> Iterable[UnitEvaluation]:
    found: dict[tuple[str, int, int], tuple[dict[str, object], dict[str, dict[str, bool | None]]]] = {}
    for row in table.to_pylist():
        facts, solved = found.setdefault((row["arm"], row["seed"], row["step"]), (row, {}))
        tasks = solved.setdefault(row["group"], {})
        if row["task"] in tasks:
            raise DataError(f"{path}: two outcomes of {_place(row)}, task {row['task']}: {_WRITE_AGAIN}")
        tasks[row["task"]] = row["solved"]
        if any(facts[name] != row[name] for name in ("turns", "profile_turns", "seconds")):
            raise DataError(f"{path}: rows of {_place(row)} differ in turns or seconds: {_WRITE_AGAIN}")
    for (arm, seed, step), (row, solved) in found.items():
        costs = {name: row[name] for name in ("turns", "profile_turns", "seconds")}
        yield UnitEvaluation(arm=arm, seed=seed, step=step, solved=solved, **costs)  # type: ignore[arg-type]  # _SCHEMA
