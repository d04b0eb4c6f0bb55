"""`pivot.rubrics` over rollouts of the scripted engine: what each is paid by criteria, and who is masked."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from tests.rewards.test_rubrics import answering, answering_unless_hostile
from tests.rollout.test_group_rewards import play, rewards
from tests.support.fake_judge import FakeJudge, judging
from tests.support.scripted_engine import call, rollout_config, scripted_model
from verl_pivot.data.rollout_records import RUBRIC_FIELD
from verl_pivot.data.step_state import StepState, state_path
from verl_pivot.rewards.reward_terms import dumped_terms

CRITERIA = [{"text": "It has a.", "weight": 1.0, "id": None}]


def config_of(folder: Path, judge: FakeJudge, *overrides: str) -> DictConfig:
    path = folder / "tools.yaml"
    path.write_text("- function: tests.support.tool_functions:add\n- function: tests.support.tool_functions:crash\n")
    return rollout_config(
        scripted_model(),
        f"pivot.rollout.tools={path}",
        f"pivot.rubrics.base_url={judge.url}",
        "pivot.rubrics.model=judge",
        "pivot.rubrics.cache_dir=null",
        "pivot.rubrics.max_retries=0",
        f"trainer.default_local_dir={folder}",
        "actor_rollout_ref.rollout.n=2",
        *overrides,
        method="rubrics",
    )


def scores(outputs: list[Any]) -> list[Any]:
    found = [each.extra_fields.get(RUBRIC_FIELD) for each in outputs]
    return [None if each is None else each["reason"] if each["score"] is None else each["score"] for each in found]


async def test_reports_are_paid_by_their_criteria_and_new_ones_are_kept(tmp_path: Path) -> None:
    async with judging(answering) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["a b"], ["b"], criteria=CRITERIA, global_steps=4)
        paid = await rewards(config, outputs, criteria=CRITERIA)

    assert scores(outputs) == [1.0, 0.5]
    assert [each["reward_score"] for each in paid] == [1.0, 0.5]
    info = paid[0]["reward_extra_info"]
    terms = dumped_terms(info)
    assert terms is not None
    assert [(term.name, term.value, term.paid) for term in terms.terms] == [("rubric", 1.0, 1.0)]
    assert (info["paid/rubric"], info["verifier"], info["reason"]) == (1.0, "rewards", "composed")
    assert [each["text"] for each in json.loads(info["criteria"])["criteria"]] == ["It has a.", "It has b."]
    assert len(StepState(state_path(tmp_path, "rubrics")).names()) == 1


async def test_all_rows_have_the_same_keys_also_those_that_the_system_failed(tmp_path: Path) -> None:
    async with judging(answering) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["a"], [call("crash"), "b"], criteria=CRITERIA)
        paid = await rewards(config, outputs, criteria=CRITERIA)

    assert scores(outputs) == [1.0, None]
    assert [each["reward_extra_info"]["undecided"] for each in paid] == [0.0, 1.0]
    assert paid[0]["reward_extra_info"].keys() == paid[1]["reward_extra_info"].keys()


async def test_a_judge_that_is_down_masks_and_scores_nothing_zero(tmp_path: Path) -> None:
    async with judging(answering) as judge:
        judge.failures = [500] * 100
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["a"], ["b"], criteria=CRITERIA)
        paid = await rewards(config, outputs, criteria=CRITERIA)

    assert scores(outputs) == ["judge_failed"] * 2
    assert [each["reward_extra_info"]["undecided"] for each in paid] == [1.0, 1.0]
    assert [each["reward_extra_info"]["reason"] for each in paid] == ["judge_failed"] * 2


async def test_one_report_without_a_valid_answer_is_masked_and_the_other_is_paid(tmp_path: Path) -> None:
    async with judging(answering_unless_hostile) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["a b"], ["b hostile"], criteria=CRITERIA)
        paid = await rewards(config, outputs, criteria=CRITERIA)

    assert scores(outputs) == [pytest.approx(2 / 3), "judge_failed"]
    assert "gives no valid answer" in outputs[1].extra_fields[RUBRIC_FIELD]["detail"]
    assert [each["reward_extra_info"]["undecided"] for each in paid] == [0.0, 1.0]


async def test_in_validation_the_criteria_of_the_row_alone_count(tmp_path: Path) -> None:
    async with judging(answering) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["a b"], is_validation=True, criteria=CRITERIA)
        bare = await play(config, ["a b"], is_validation=True)

    assert scores(outputs) == [1.0]
    assert len(judge.requests) == 1
    assert scores(bare) == ["broken_row"]
    assert "give it a column criteria" in bare[0].extra_fields[RUBRIC_FIELD]["detail"]


async def test_a_schedule_of_strictness_does_not_change_what_a_score_means_in_validation(tmp_path: Path) -> None:
    half = {"points": [{"number": 1, "points": 1}]}
    async with judging(lambda outside, inside: half) as judge:
        config = config_of(tmp_path, judge, "pivot.rubrics.evolve=False", "pivot.rubrics.strictness=[1,3]")
        given = {"criteria": CRITERIA, "is_validation": True}
        validated = [await play(config, ["a"], global_steps=step, **given) for step in (1, 3)]
        trained = [await play(config, ["a"], global_steps=step, criteria=CRITERIA) for step in (1, 3)]

    assert [scores(outputs) for outputs in validated] == [[0.5], [0.5]]
    assert [scores(outputs) for outputs in trained] == [[1.0], [0.0]]


async def test_criteria_that_contradict_are_the_rows_fault(tmp_path: Path) -> None:
    wrong = [{"text": "a", "weight": 1}, {"text": "a", "weight": -1}]
    async with judging(answering) as judge:
        outputs = await play(config_of(tmp_path, judge), ["a"], ["b"], criteria=wrong)

    assert scores(outputs) == ["broken_row"] * 2


async def test_a_group_that_is_not_whole_in_time_is_undecided(tmp_path: Path) -> None:
    async with judging(answering) as judge:
        config = config_of(tmp_path, judge, "pivot.rubrics.wait_seconds=0.05")
        outputs = await play(config, ["a"], criteria=CRITERIA)

    assert scores(outputs) == ["siblings_missing"]
