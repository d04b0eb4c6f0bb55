"""Per-task outcomes of the study <-> one parquet file, from which every table is rebuilt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow
import pyarrow.parquet

from verl_pivot.data.files import replacing
from verl_pivot.errors import DataError

_DESIGN = b"design"
"""Key of the file's metadata with the hash of the design."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEvaluation:
    """Outcomes of one arm with one seed after a training step, on all held-out tasks."""

    arm: str
    seed: int
    step: int
    turns: int
    """Turns that training sampled until then: one for each single turn, all of a whole task."""
    profile_turns: int
    """Turns that the profile sampled before."""
    seconds: float
    """Seconds of training until then, without evaluations and checkpoints."""
    solved: Solved


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResults:
    """All outcomes of a study."""

    digest: str
    """Hash of the design, as `examples.study.claims` makes it."""
    evaluations: Sequence[UnitEvaluation]

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
    table = pyarrow.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata({_DESIGN: results.digest.encode()}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(table, unfinished, compression="zstd")


def read_results(path: Path) -> StudyResults:
    """Read what `write_results` wrote.

    Raises:
        DataError: If the file is missing, or is not one of a study.
    """
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}): run `python -m examples.study` again") from error
    metadata = table.schema.metadata or {}
    if table.schema.remove_metadata() != _SCHEMA or _DESIGN not in metadata:
        raise DataError(f"{path} holds no outcomes of a study: name the outcomes.parquet that the study wrote")
    return StudyResults(digest=metadata[_DESIGN].decode(), evaluations=list(_evaluations(table)))


def _evaluations(table: pyarrow.Table) -> Iterable[UnitEvaluation]:
    found: dict[tuple[str, int, int], tuple[dict[str, object], dict[str, dict[str, bool | None]]]] = {}
    for row in table.to_pylist():
        facts, solved = found.setdefault((row["arm"], row["seed"], row["step"]), (row, {}))
        tasks = solved.setdefault(row["group"], {})
        if row["task"] in tasks:
            raise DataError(f"two outcomes of {row['arm']}, seed {row['seed']}, step {row['step']}: {row['task']}")
        tasks[row["task"]] = row["solved"]
        if any(facts[name] != row[name] for name in ("turns", "profile_turns", "seconds")):
            raise DataError(f"{row['arm']}, seed {row['seed']}, step {row['step']} has two costs")
    for (arm, seed, step), (row, solved) in found.items():
        costs = {name: row[name] for name in ("turns", "profile_turns", "seconds")}
        yield UnitEvaluation(arm=arm, seed=seed, step=step, solved=solved, **costs)  # type: ignore[arg-type]  # _SCHEMA
