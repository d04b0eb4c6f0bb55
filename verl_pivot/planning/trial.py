"""Drawn trajectories and their profile -> Trial: what `select` keeps of their turns, and how long the samples were."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from verl_pivot.data.actions import TRUNCATED
from verl_pivot.data.files import RawRow
from verl_pivot.extras import extra
from verl_pivot.profiling.line_index import turn_of
from verl_pivot.profiling.profiles import parse_line
from verl_pivot.profiling.summary import TrajectoryCluster
from verl_pivot.selection.candidates import CandidateSettings, NumberedRows, candidates_of, close_verifiers
from verl_pivot.selection.decisions import SelectionReport, SelectionRule, decide
from verl_pivot.selection.profile_table import profile_rows, profiles_of
from verl_pivot.selection.tables import create_tables

with extra("data"):
    import duckdb


_CLUSTERS = """
select count(*) filter (decision = 'kept'), count(*) from decisions group by trajectory_id order by trajectory_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSamples:
    """Sums over the samples of the drawn trajectories."""

    num_samples: int
    num_tokens: int
    num_truncated: int
    """Samples that reached --max-new-tokens before their turn ended."""
    reasons: Counter[str]
    """{reason: number of samples without full score}."""
    mean_prompt_tokens: float
    """Mean length of the prompts of sampled turns, in tokens; 0 if no turn was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of the drawn trajectories."""

    report: SelectionReport
    clusters: tuple[TrajectoryCluster, ...]
    """[num_drawn] kept turns (`total`) and turns (`num_values`) of each trajectory."""
    samples: TrialSamples


def read_trial(rows: Iterable[RawRow], profile: Path, rule: SelectionRule, settings: CandidateSettings) -> Trial:
    """Select from the drawn trajectories only.

    Args:
        rows: Rows of the drawn trajectories.
        profile: Profile that holds their turns, perhaps beside others.
        rule: Rule of the selection.
        settings: Settings of the selection.

    Raises:
        DataError: If a row or a line of the profile is broken.
    """
    try:
        candidates = candidates_of(settings, NumberedRows(0, tuple(rows))).table
    finally:
        close_verifiers()
    drawn = set(candidates["trajectory_id"].to_pylist())
    lines = tuple(row for row in profile_rows(profile) if turn_of(_line(row))[0] in drawn)
    profiles = profiles_of(lines)
    with duckdb.connect() as database:
        create_tables(database)
        for name, table in (("candidates", candidates), ("profiles", profiles)):
            _insert(database, name, table)
        report = decide(database, rule)
        found = database.execute(_CLUSTERS).fetchall()
    clusters = tuple(TrajectoryCluster(float(kept), number) for kept, number in found)
    return Trial(report=report, clusters=clusters, samples=_samples(lines))


def _insert(database: duckdb.DuckDBPyConnection, name: str, rows: pyarrow.Table) -> None:
    database.register("rows", rows)
    database.execute(f"insert into {name} from rows")
    database.unregister("rows")


def _samples(lines: Iterable[RawRow]) -> TrialSamples:
    reasons: Counter[str] = Counter()
    prompts: list[int] = []
    num_samples = num_tokens = num_truncated = 0
    for row in lines:
        turn = parse_line(str(row.place), _line(row))
        num_samples += len(turn.samples)
        num_tokens += sum(sample.num_tokens for sample in turn.samples)
        num_truncated += sum(sample.verdict.reason == TRUNCATED.reason for sample in turn.samples)
        reasons.update(sample.verdict.reason for sample in turn.samples if sample.verdict.score != 1.0)
        if turn.samples and turn.num_prompt_tokens is not None:
            prompts.append(turn.num_prompt_tokens)
    return TrialSamples(
        num_samples=num_samples,
        num_tokens=num_tokens,
        num_truncated=num_truncated,
        reasons=reasons,
        mean_prompt_tokens=sum(prompts) / len(prompts) if prompts else 0.0,
    )


def _line(row: RawRow) -> bytes:
    assert isinstance(row.raw, bytes), row.place
    return row.raw
