"""Dumps of pages -> scores by the verifier, and shares of pages that are broken."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from examples.dumps import decided, step_dumps
from examples.evaluation_results import EvaluatedResult
from examples.measured_arms import ArmReport
from examples.render.training import ARMS, BASE
from examples.results_file import StudyReport
from verl_pivot.data.rollout_records import RolloutRecord

_BROKEN = "getElementById('c')"
"""What a page with a script error holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One trajectory that was scored."""

    prompt_id: str
    em: float
    """Score of its best page by the verifier, an invalid page being 0, whatever the arm is paid."""
    last: float
    """Score of its last page."""
    broken: float
    """Share of its pages whose script raises."""
    looks: int
    """Pages that it looked at."""


Result = EvaluatedResult[Design]


def read_dump(path: Path) -> list[Design]:
    """All decided trajectories of a dump."""
    return [_design(each.record) for each in decided(path)]


def _design(record: RolloutRecord) -> Design:
    looks = [call for call in record.calls if call.name == "look" and call.arguments is not None]
    pages = [str(call.arguments["html"]) for call in looks if call.arguments is not None]
    scores = [
        0.0 if _BROKEN in page else call.reward
        for page, call in zip(pages, looks, strict=True)
        if call.reward is not None
    ]
    return Design(
        prompt_id=record.prompt_id,
        em=max(scores, default=0.0),
        last=scores[-1] if scores else 0.0,
        broken=fmean(_BROKEN in page for page in pages) if pages else 0.0,
        looks=len(pages),
    )


def read_training(folder: Path) -> dict[int, list[Design]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path) for step, path in step_dumps(folder).items()}


REPORT: ArmReport[Design] = ArmReport(
    arms=list(ARMS),
    measures={
        "score of the best page": lambda designs: fmean(each.em for each in designs),
        "score of the last page": lambda designs: fmean(each.last for each in designs),
        "broken pages": lambda designs: fmean(each.broken for each in designs),
        "looks": lambda designs: fmean(each.looks for each in designs),
    },
    baseline=BASE,
    compared="best page over base",
    title="Held-out requests, one trajectory each",
    plot="render.png",
)
STUDY = StudyReport(arms=REPORT.arms, played=Design, write=REPORT.write, show=REPORT.show)
