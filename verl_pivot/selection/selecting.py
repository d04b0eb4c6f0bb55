"""trajectories.jsonl and profile.jsonl -> pivots.parquet, its validation split, its report and its picture."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import pyarrow

from verl_pivot.data.files import in_chunks, num_rows, read_rows
from verl_pivot.data.journal import Journal, input_identity, open_journal
from verl_pivot.data.parallel import map_in_order
from verl_pivot.errors import DataError
from verl_pivot.extras import extra
from verl_pivot.profiling.input_check import shared_ids
from verl_pivot.profiling.profiles import file_sha256, is_published, profiled_sha256, read_settings
from verl_pivot.selection.candidates import CandidateSettings, NumberedRows, candidates_of, close_verifiers
from verl_pivot.selection.decisions import Decision, SelectionReport, SelectionRule, decide
from verl_pivot.selection.plots import draw_pass_rates, pass_rate_counts
from verl_pivot.selection.profile_table import profile_rows, profiles_of
from verl_pivot.selection.tables import fill_table, open_tables
from verl_pivot.selection.writing import write_pivots
from verl_pivot.user_modules import module_path
from verl_pivot.verifiers.judge_usage import usage

with extra("data"):
    import duckdb


Progress: TypeAlias = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Progress bar: (name of the items, total or None) -> function to call with the number of newly finished items."""

_LINES_PER_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOutputs:
    """Paths of one selection's files, named after the file of the training split."""

    train: Path

    @property
    def validation(self) -> Path:
        return self.train.with_suffix(".validation.parquet")

    @property
    def report(self) -> Path:
        return self.train.with_suffix(".report.json")

    @property
    def picture(self) -> Path:
        return self.train.with_suffix(".png")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionJob:
    """Inputs, outputs and settings of one selection."""

    trajectories: Path
    profile: Path | None
    """Profile of the trajectories; None where nothing was profiled."""
    paths: SelectionOutputs
    rule: SelectionRule
    settings: CandidateSettings
    workers: int = 1
    with_recordings: bool = False
    """Whether rows hold the recorded calls and results of their trajectory, for rollouts that go on from a pivot."""


def select_pivots(job: SelectionJob, progress: Progress) -> SelectionReport:
    """Write the kept turns, the report and, with a profile, the picture; no file changes before all are written.

    An interrupted selection goes on where it stopped and ends with the same bytes.

    Raises:
        DataError: If a line of an input is broken, two trajectories of one id hold the same turn, the profile is of
            other trajectories or lacks turns, no turn is left, or a split that was asked for has no turn.
        ConfigError: If an output cannot be written.
    """
    if job.profile is not None:
        _check_profile(job.profile, job.trajectories)
    profile = [] if job.profile is None else [job.profile]
    modules = map(module_path, job.settings.verifier_modules)
    inputs = [input_identity(path) for path in (job.trajectories, *profile, *modules)]
    with open_journal(job.paths.train, {"inputs": inputs, "settings": asdict(job.settings)}) as journal:
        try:
            with open_tables(journal.folder, threads=job.workers) as database:
                _fill(job, database, progress)
                report = decide(database, job.rule)
                _require_some(report, job)
                _write(job, database, report, journal, progress)
        except DataError:
            journal.discard()
            raise
        journal.finish(_outputs(job.paths))
    return report


def _check_profile(profile: Path, trajectories: Path) -> None:
    if profiled_sha256(profile) != file_sha256(trajectories):
        raise DataError(
            f"{profile} was not measured on the present content of {trajectories}; profile these trajectories again, "
            "to another --out"
        )


def _fill(job: SelectionJob, database: duckdb.DuckDBPyConnection, progress: Progress) -> None:
    with progress("candidates", None) as on_rows:
        fill_table(database, "candidates", partial(_candidate_tables, job), on_rows)
    _check_candidates(job.trajectories, database)
    if job.profile is None:
        return
    with progress("profiled turns", num_rows(job.profile)) as on_rows:
        fill_table(database, "profiles", partial(_profile_tables, job), on_rows)
    _check_profiles(job.profile, database)


def _candidate_tables(job: SelectionJob, num_done: int) -> Iterator[pyarrow.Table]:
    chunks = islice(_numbered_chunks(job.trajectories), num_done, None)
    made = map_in_order(partial(candidates_of, job.settings), chunks, workers=job.workers, prepare=job.settings.prepare)
    total: Counter[tuple[str, str]] = Counter()
    try:
        for chunk in made:
            total.update(chunk.judge_usage)
            yield chunk.table
    finally:
        close_verifiers()
        usage.clear()
        usage.update(total)


def _profile_tables(job: SelectionJob, num_done: int) -> Iterator[pyarrow.Table]:
    assert job.profile is not None
    chunks = islice(in_chunks(profile_rows(job.profile), _LINES_PER_CHUNK), num_done, None)
    return map_in_order(profiles_of, chunks, workers=job.workers)


def _numbered_chunks(trajectories: Path) -> Iterator[NumberedRows]:
    first = 0
    for rows in in_chunks(read_rows(trajectories)):
        yield NumberedRows(first, rows)
        first += len(rows)


def _check_candidates(trajectories: Path, database: duckdb.DuckDBPyConnection) -> None:
    repeated = database.execute(
        "select count(distinct trajectory_id), arg_min(trajectory_id, repeat) from (select trajectory_id, max(row) as "
        "repeat from candidates group by trajectory_id, turn_index having count(*) > 1)"
    ).fetchone()
    assert repeated is not None
    number, example = repeated
    if number:
        raise shared_ids(trajectories, number, example)


def _check_profiles(profile: Path, database: duckdb.DuckDBPyConnection) -> None:
    repeated = database.execute(
        "select trajectory_id, turn_index, max(line) from profiles group by all having count(*) > 1 order by 3 limit 1"
    ).fetchone()
    if repeated is not None:
        trajectory_id, turn_index, line = repeated
        raise DataError(f"{profile}, line {line} repeats turn {trajectory_id}:{turn_index}; delete that line")
    (num_missing,) = _row(
        database, "select count(*) from candidates anti join profiles using (trajectory_id, turn_index)"
    )
    if num_missing:
        (num_candidates,) = _row(database, "select count(*) from candidates")
        remedy = (
            "some imported rows had no scores: import only rows with scores, or measure a profile of your own"
            if is_published(profile)
            else "run the same `verl-pivot profile` command again, without --limit and --draw: it profiles the missing "
            "turns"
        )
        raise DataError(f"the profile lacks {num_missing} of {num_candidates} turns; {remedy}")


def _row(database: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    row = database.execute(query).fetchone()
    assert row is not None, query
    return row


def _outputs(paths: SelectionOutputs) -> dict[str, Path]:
    return {path.name: path for path in (paths.report, paths.picture, paths.validation, paths.train)}


def _write(
    job: SelectionJob,
    database: duckdb.DuckDBPyConnection,
    report: SelectionReport,
    journal: Journal,
    progress: Progress,
) -> None:
    unfinished = SelectionOutputs(train=journal.folder / job.paths.train.name)
    with progress("pivots", report.num_train + report.num_validation) as on_rows:
        write_pivots(
            database,
            _numbered_chunks(job.trajectories),
            unfinished.train,
            unfinished.validation,
            workers=job.workers,
            with_recordings=job.with_recordings,
            sampling=_sampling(job.profile),
            on_rows=on_rows,
        )
    unfinished.report.write_text(json.dumps(_as_json(report, job), indent=2) + "\n", encoding="utf-8")
    if job.profile is not None:
        draw_pass_rates(pass_rate_counts(database), unfinished.picture)
    else:
        unfinished.picture.touch()  # an empty file removes the picture of an earlier profile


def _sampling(profile: Path | None) -> str | None:
    """How the profile was sampled, for the rows; None if nothing was profiled, or others published the profile."""
    if profile is None or is_published(profile):
        return None
    return read_settings(profile).sampling_record().encoded()


def _require_some(report: SelectionReport, job: SelectionJob) -> None:
    """Refuse a selection without a training row, or without a validation row where some were asked for."""
    if report.num_train and (report.num_validation or not job.settings.validation_share):
        return
    if report.num_train:
        raise DataError(
            f"all {report.num_train} kept turns fall into the training split and none is left for validation; raise "
            "--validation-share, or set it to 0 and train with data.val_files of your own"
        )
    if report.num_validation:
        raise DataError(
            f"all {report.num_validation} kept turns fall into the validation split and none is left for "
            "training; lower --validation-share, or give more trajectories"
        )
    raise DataError(f"no pivot is left of {report.num_candidates} candidates {_dropped_and_remedy(report)}")


def _dropped_and_remedy(report: SelectionReport) -> str:
    dropped = {decision: count for decision, count in report.num_by_decision.items() if decision is not Decision.KEPT}
    counts = ", ".join(f"{count} {decision.value}" for decision, count in dropped.items() if count) or "there were none"
    remedy = _REMEDIES.get(max(dropped, key=dropped.__getitem__), "--keep all keeps turns with any rewards")
    example = next(iter(report.refused_expert_examples.values()), None)
    return f"({counts}); {remedy}" + (f"; the verifier's verdict on the expert at {example}" if example else "")


_REMEDIES = {
    Decision.UNDECIDED: "see the samples in the profile for why the verifier could not decide",
    Decision.EXPERT_REFUSED: "import with the --verifier that fits these actions, or use --no-check-verifier",
    Decision.OVERLONG: "raise --max-prompt-tokens, and data.max_prompt_length of the training to the same value",
    Decision.TOO_EASY: "raise --lambda-diff",
}


def _as_json(report: SelectionReport, job: SelectionJob) -> dict[str, object]:
    """The content of the report file."""
    return {
        **asdict(report),
        "rule": asdict(job.rule),
        "settings": {
            "trajectories": str(job.trajectories),
            "profile": None if job.profile is None else str(job.profile),
            **asdict(job.settings),
        },
    }
