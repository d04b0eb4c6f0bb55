"""Dumps of pages -> scores by the verifier, and shares of pages that are invalid."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.comparison import mean
from examples.contrasts import Contrast
from examples.dumps import Decided, decided, step_dumps
from examples.evaluation_results import EvaluatedResult
from examples.measured_arms import ArmReport
from examples.render.training import ARMS, BASE, BROKEN_PAID, LAST_PAGE, RELOOK
from examples.results_file import StudyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One trajectory that was scored."""

    prompt_id: str
    pages: tuple[str, ...]
    """[num_looks] HTML that was looked at, in order."""
    scores: tuple[float, ...]
    """[num_looks] scores by the verifier, whatever rewards the arm has; 0 if a page is invalid, or entirely wrong."""
    paid: float
    """Score of the trajectory under the rules of its arm."""
    stop_reason: str
    response_tokens: int

    @property
    def em(self) -> float:
        """Score of its best page; 0 without a look."""
        return max(self.scores, default=0.0)

    @property
    def first(self) -> float:
        return self.scores[0] if self.scores else 0.0

    @property
    def last(self) -> float:
        return self.scores[-1] if self.scores else 0.0

    @property
    def is_first_invalid(self) -> float:
        """Whether its first page scores 0; later looks do not change this."""
        return float(self.first == 0.0)

    @property
    def is_solved(self) -> float:
        """Whether one of its pages is fully right."""
        return float(self.em == 1.0)


Result = EvaluatedResult[Design]


def read_dump(path: Path) -> list[Design]:
    """All decided trajectories of a dump."""
    return [_design(each) for each in decided(path)]


def _design(rollout: Decided) -> Design:
    record = rollout.record
    # A refused call has no reward.
    looks = [(call.arguments, call.reward) for call in record.calls if call.reward is not None]
    return Design(
        prompt_id=record.prompt_id,
        pages=tuple(str((arguments or {})["html"]) for arguments, _ in looks),
        scores=tuple(score for _, score in looks),
        paid=rollout.score,
        stop_reason=record.stop_reason.value,
        response_tokens=record.response_tokens,
    )


def read_training(folder: Path) -> dict[int, list[Design]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path) for step, path in step_dumps(folder).items()}


def valid_page_score(designs: Sequence[Design]) -> float:
    """Mean score of the pages that score more than 0; NaN if there are none."""
    return mean([score for each in designs for score in each.scores if score > 0.0])


REPORT: ArmReport[Design] = ArmReport(
    arms=list(ARMS),
    measures={
        "first page": lambda designs: mean([each.first for each in designs]),
        "invalid first pages": lambda designs: mean([each.is_first_invalid for each in designs]),
        "valid pages": valid_page_score,
        "best page": lambda designs: mean([each.em for each in designs]),
        "last page": lambda designs: mean([each.last for each in designs]),
        "solved": lambda designs: mean([each.is_solved for each in designs]),
        "looks": lambda designs: mean([len(each.scores) for each in designs]),
    },
    baseline=BASE,
    compared="best page over base",
    title="Held-out requests",
    plot="render.png",
    contrasts=[
        Contrast(arm=RELOOK, over=BASE, measure="invalid first pages", value=lambda each: each.is_first_invalid),
        Contrast(arm=RELOOK, over=BASE, measure="first page", value=lambda each: each.first),
        Contrast(arm=RELOOK, over=BROKEN_PAID, measure="invalid first pages", value=lambda each: each.is_first_invalid),
        Contrast(arm=RELOOK, over=BROKEN_PAID, measure="best page", value=lambda each: each.em),
        Contrast(arm=RELOOK, over=LAST_PAGE, measure="first page", value=lambda each: each.first),
        Contrast(arm=RELOOK, over=LAST_PAGE, measure="best page", value=lambda each: each.em),
        Contrast(arm=RELOOK, over=LAST_PAGE, measure="last page", value=lambda each: each.last),
    ],
)
STUDY = StudyReport(arms=REPORT.arms, played=Design, write=REPORT.write, show=REPORT.show)
