"""trajectories.jsonl -> ExpertReport: how each turn's verifier judges the expert's own action."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from verl_pivot.data.files import in_chunks, read_rows
from verl_pivot.data.parallel import map_in_order
from verl_pivot.selection.candidates import CandidateSettings, NumberedRows, candidates_of, close_verifiers

_ROWS_PER_CHUNK = 64


@dataclass(slots=True, kw_only=True)
class ExpertReport:
    """Counts of verdicts on experts; all but the accepted ones are turns that `select` leaves out."""

    num_turns: int = 0
    num_accepted: int = 0
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    """{(reason, "undecided" or "refused"): number of turns}"""
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    """{(reason, "undecided" or "refused"): first such turn, with the verdict's detail}"""


def check_experts(
    trajectories: Path,
    verifier_modules: tuple[str, ...] = (),
    *,
    workers: int = 1,
    on_turns: Callable[[int], object] = lambda num_turns: None,
) -> ExpertReport:
    """Ask every turn's verifier, twice, about the expert's own action.

    Args:
        trajectories: File that `verl-pivot import` wrote.
        verifier_modules: Modules that register the user's own verifiers.
        workers: Number of processes.
        on_turns: Called with the number of turns that were judged since the last call.

    Raises:
        DataError: If a line is no trajectory.
        ConfigError: If a verifier is not registered.
    """
    settings = CandidateSettings(
        model=None,
        check_verifier=True,
        seed=0,
        validation_share=0.0,
        split_by="trajectory",
        verifier_modules=verifier_modules,
    )
    report = ExpertReport()
    chunks = map_in_order(
        partial(candidates_of, settings), _numbered(trajectories), workers=workers, prepare=settings.prepare
    )
    try:
        for chunk in chunks:
            for row in chunk.table.to_pylist():
                _count(report, row)
            on_turns(chunk.table.num_rows)
    finally:
        close_verifiers()
    return report


def _numbered(trajectories: Path) -> Iterator[NumberedRows]:
    first = 0
    for rows in in_chunks(read_rows(trajectories), _ROWS_PER_CHUNK):
        yield NumberedRows(first, rows)
        first += len(rows)


def _count(report: ExpertReport, row: dict[str, object]) -> None:
    report.num_turns += 1
    if row["expert_score"] == 1.0:
        report.num_accepted += 1
        return
    kind = "undecided" if row["expert_score"] is None else "refused"
    key = (str(row["expert_reason"]), kind)
    report.others[key] += 1
    report.examples.setdefault(key, f"turn {row['trajectory_id']}:{row['turn_index']}: {row['expert_detail']}")
