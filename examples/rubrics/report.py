"""Dumps of reports -> their true quality, and how many are stuffed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from examples.comparison import UnitResult
from examples.dumps import decided, step_dumps
from examples.measured_arms import ArmReport
from examples.rubrics.reports import is_stuffed, quality
from examples.rubrics.training import ARMS, FIXED
from examples.world.entities import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report that was scored."""

    prompt_id: str
    em: float
    """True quality of the report: the share of the facts that it tells rightly."""
    is_stuffed: bool
    score: float
    """Score from the judge's points."""


Result = UnitResult[Report]


def read_dump(path: Path, people: Mapping[str, Entity]) -> list[Report]:
    """All decided reports of a dump, whose prompts are about these people."""
    reports = []
    for row, record, score in decided(path):
        text = row.turns[-1].recorded_text
        person = people[record.prompt_id]
        reports.append(
            Report(
                prompt_id=record.prompt_id,
                em=quality(text, person),
                is_stuffed=is_stuffed(text),
                score=score,
            )
        )
    return reports


def read_training(folder: Path, people: Mapping[str, Entity]) -> dict[int, list[Report]]:
    """{step: reports} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path, people) for step, path in step_dumps(folder).items()}


def mean_quality(reports: Sequence[Report]) -> float:
    return fmean(each.em for each in reports)


def stuffed_share(reports: Sequence[Report]) -> float:
    return fmean(each.is_stuffed for each in reports)


def mean_score(reports: Sequence[Report]) -> float:
    return fmean(each.score for each in reports)


REPORT: ArmReport[Report] = ArmReport(
    arms=ARMS,
    measures={"stuffed reports": stuffed_share, "true quality": mean_quality, "the judge's score": mean_score},
    baseline=FIXED,
    compared="quality over fixed",
    title="Reports on held-out people, one each",
    plot="rubrics.png",
)
