"""Choices among actions and a judge of checklists -> how often the right action gets the highest progress."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import DataError
from verl_pivot.rewards.checklist import checked_items
from verl_pivot.rewards.checklist_judge import ChecklistJudge, ChecklistTask
from verl_pivot.rewards.principle_answers import reason_to_count
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.turn_judge import TurnJudgement, all_or_none
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem

_COLUMNS = ("task", "earlier", "candidates", "right", "first_page", "checklist", "trajectory_id")


class EarlierTurn(Options):
    """A turn before the choice."""

    text: str
    observation: str = ""


class ActionChoice(Options):
    """A state, and actions that could be taken in this state, as in WebRewardBench."""

    task: str
    earlier: tuple[EarlierTurn, ...] = ()
    candidates: Annotated[tuple[str, ...], Field(min_length=2)]
    """Texts of the actions; no observation follows them."""
    right: Annotated[int, Field(ge=0)]
    """Index of the right candidate, from 0."""
    first_page: str | None = None
    """Page in the state before the first turn."""
    checklist: tuple[str, ...] | None = None
    """Checklist of the task; None lets the judge write one."""
    trajectory_id: str | None = None
    """Id of the trajectory that the state comes from; None counts the choice as a trajectory of its own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.right >= len(self.candidates):
            raise ValueError(f"right={self.right} is not the index of one of {len(self.candidates)} candidates")
        if self.checklist is not None:
            checked_items(self.checklist)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """How often the right action has the highest progress, over the choices whose answers were all valid."""

    num_choices: int
    num_valid: int
    invalid: dict[str, int]
    """{reason why an answer was invalid: number of such answers}"""
    accuracy: float | None
    """Share of the choices whose right action is above all others; a tie is not right."""
    mean_reciprocal_rank: float | None
    """Mean of 1 / rank of the right action, which is ranked after the actions that it ties with, as in the released
    code."""
    trajectory_accuracy: float | None
    """Share of the trajectories in which every choice is right."""
    num_tied: int
    """Choices in which another action ties with the right one."""

    def as_dict(self) -> JsonObject:
        return {**asdict(self), "valid_rate": self.num_valid / self.num_choices}


def read_choices(path: Path) -> Iterator[ActionChoice]:
    """Read the choices in a file of rows.

    Raises:
        DataError: If the file cannot be read, or a row is no choice; the message names the row.
    """
    for row in read_rows(path):
        try:
            decoded = row.decoded()
            given = {name: decoded[name] for name in _COLUMNS if decoded.get(name) is not None}
            yield ActionChoice.model_validate(given)
        except ValidationError as error:
            raise DataError(f"{row.place} is not a valid choice: {first_problem(error)}") from error
        except BadRowError as error:
            raise DataError(f"{row.place} is not a valid choice: {error}") from error


async def bench_choices(
    choices: Sequence[ActionChoice], judge: ChecklistJudge, *, concurrency: int, on_choices: Callable[[int], object]
) -> ChoiceReport:
    """Ask a judge about every action of each choice, as about a turn without an observation.

    Raises:
        VerifierError: If the judge cannot be reached or keeps failing.
        ConfigError: If it refuses every question.
    """
    slots = asyncio.Semaphore(concurrency)

    async def ask(choice: ActionChoice) -> list[TurnJudgement]:
        async with slots:
            judged = await judged_candidates(choice, judge)
        on_choices(1)
        return judged

    return choice_report(choices, await all_or_none([ask(choice) for choice in choices]))


async def judged_candidates(choice: ActionChoice, judge: ChecklistJudge) -> list[TurnJudgement]:
    """[num_candidates] the judge's judgement of each action."""
    earlier = [ShownTurn(text=turn.text, observation=turn.observation) for turn in choice.earlier]
    items = None if choice.checklist is None else checked_items(choice.checklist)
    about = ChecklistTask(task=choice.task, first_page=choice.first_page or "", items=items)
    found = await judge.checklist(about, earlier)
    if found.value is None:
        return [TurnJudgement(score=None, reason=f"no checklist: {found.reason}") for _ in choice.candidates]
    return await all_or_none(
        [judge.judge_turn(about, found.value, [*earlier, ShownTurn(text=text)]) for text in choice.candidates]
    )


def choice_report(choices: Sequence[ActionChoice], answered: Sequence[Sequence[TurnJudgement]]) -> ChoiceReport:
    """Report on the judge's answers.

    Args:
        choices: [num_choices] one or more.
        answered: [num_choices][num_candidates]
    """
    ranks: list[int] = []
    num_tied = 0
    of_trajectory: dict[str, list[bool]] = defaultdict(list)
    for number, (choice, judged) in enumerate(zip(choices, answered, strict=True)):
        scores = [each.score for each in judged if each.score is not None]
        if len(scores) < len(judged):
            continue
        others = [score for place, score in enumerate(scores) if place != choice.right]
        ranks.append(1 + sum(score >= scores[choice.right] for score in others))
        num_tied += scores[choice.right] in others
        of_trajectory[choice.trajectory_id or f"row {number}"].append(ranks[-1] == 1)
    reasons = Counter(reason_to_count(each.reason) for judged in answered for each in judged if each.score is None)
    return ChoiceReport(
        num_choices=len(choices),
        num_valid=len(ranks),
        invalid=dict(reasons.most_common()),
        accuracy=_mean([float(rank == 1) for rank in ranks]),
        mean_reciprocal_rank=_mean([1.0 / rank for rank in ranks]),
        trajectory_accuracy=_mean([float(all(right)) for right in of_trajectory.values()]),
        num_tied=num_tied,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
