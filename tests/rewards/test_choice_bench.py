"""Choices among actions: the report by hand, files of choices, and a judge of checklists behind an endpoint."""

import json
from pathlib import Path

import pytest

from tests.support.fake_judge import checking, judging
from verl_pivot.commands.asked_judge import QuestionOptions, checklist_judge_of
from verl_pivot.configuration import configs_dir
from verl_pivot.errors import DataError
from verl_pivot.rewards.choice_bench import ActionChoice, bench_choices, choice_report, read_choices
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TurnJudgement


def choice(trajectory_id: str | None = None, right: int = 0) -> ActionChoice:
    return ActionChoice(task="Buy.", candidates=("a", "b", "c"), right=right, trajectory_id=trajectory_id)


def scored(*scores: float | None) -> list[TurnJudgement]:
    return [TurnJudgement(score=score, reason="" if score is not None else "broken") for score in scores]


def test_accuracy_reciprocal_rank_and_whole_trajectories_by_hand() -> None:
    report = choice_report(
        [choice("A"), choice("A"), choice("B"), choice("B", right=2), choice("C")],
        [
            scored(1.0, 0.5, 0.0),
            scored(0.5, 0.5, 0.0),
            scored(0.9, 0.1, 0.2),
            scored(0.0, 0.1, 0.2),
            scored(1.0, None, 0.0),
        ],
    )
    assert (report.num_choices, report.num_valid, report.num_tied) == (5, 4, 1)
    assert report.accuracy == 0.75
    assert report.mean_reciprocal_rank == (1 + 1 / 2 + 1 + 1) / 4
    assert report.trajectory_accuracy == 0.5  # B is right and A is not; C has no valid choice
    assert report.invalid == {"broken": 1}


async def test_a_judge_chooses_the_action_that_brings_the_task_farthest() -> None:
    choices = [
        ActionChoice(task="Buy.", candidates=("2 is No", "1 is Yes", "wait"), right=1),
        ActionChoice(task="Buy.", candidates=("1 is Yes", "wait"), right=1, checklist=("Only this.",)),
    ]
    async with judging(checking) as judge:
        settings = ProcessSettings(
            form="checklist", base_url=judge.url, model="J", principles=str(configs_dir() / "principles/search.yaml")
        )
        asked = checklist_judge_of(settings, QuestionOptions(form="checklist"))
        report = await bench_choices(choices, asked, concurrency=4, on_choices=lambda number: None)
        await asked.close()
    assert (report.accuracy, report.mean_reciprocal_rank) == (0.5, 0.75)
    assert len(judge.requests) == 1 + 3 + 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task": "a", "candidates": ["x", "y"], "right": 2}, "right=2 is not the index of one of 2 candidates"),
        ({"task": "a", "candidates": ["x"], "right": 0}, "candidates"),
        ({"task": "a", "candidates": ["x", "y"]}, "right: Field required"),
        ({"task": "a", "candidates": ["x", "y"], "right": 0, "checklist": []}, "1 to 5 items, got 0"),
    ],
)
def test_a_row_that_is_no_choice_is_named(row: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"choices.jsonl, line 1 is not a valid choice") as caught:
        list(read_choices(path))
    assert message in str(caught.value)
