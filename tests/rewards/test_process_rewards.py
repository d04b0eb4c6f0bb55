"""The reward manager with `pivot.process` over rollouts of the scripted engine: rewards per token, exactly."""

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto

from tests.support.fake_judge import FakeJudge, grading, judging
from tests.support.scripted_engine import Said, call, loop_of, rollout_config, row, scripted_model
from verl_pivot.data.rollout_records import IS_VALIDATION, VERDICT_FIELD
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.rewards.process_metrics import process_metrics
from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord, process_record
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.tool_loop import ToolLoop

SEARCHES = [f"grade 7 {call('add', a=2, b=3)}", f"grade 2 {call('add', a=5, b=1)}", "It is 6."]
RIGHT, WRONG = {"score": 1.0, "reason": "seen"}, {"score": 0.0, "reason": "seen"}


class Judged:
    """A rollout with its reward, joined as verl's worker does it."""

    def __init__(self, output: TurnRewardOutput, reward: dict[str, Any]) -> None:
        self.output = output
        output.reward_score = reward["reward_score"]
        output.extra_fields["reward_extra_info"] = reward["reward_extra_info"]
        self.info = reward["reward_extra_info"]
        self.record = process_record(self.info)
        self.scores: list[float] = output.as_dict()["rm_scores"].tolist()

    @property
    def of_turns(self) -> list[float]:
        """Rewards on the last tokens of turns, after a check that all other tokens have none."""
        rest = [score for at, score in enumerate(self.scores) if at + 1 not in self.output.turn_ends]
        assert rest == [0.0] * len(rest)
        return [self.scores[end - 1] for end in self.output.turn_ends]


def loop_of_ppr(folder: Path, judge: FakeJudge | None, script: list[Said | str], *overrides: str) -> ToolLoop:
    path = folder / "tools.yaml"
    path.write_text("- function: tests.support.tool_functions:add\n- function: tests.support.tool_functions:crash\n")
    url = "http://127.0.0.1:9" if judge is None else judge.url
    config = rollout_config(
        scripted_model(),
        f"pivot.rollout.tools={path}",
        f"pivot.process.base_url={url}",
        "pivot.process.model=PPRM",
        "pivot.process.cache_dir=null",
        "pivot.process.max_retries=0",
        *overrides,
        method="ppr",
    )
    loop: ToolLoop = loop_of(ToolLoop, config, script)
    return loop


async def judged(loop: ToolLoop, verdict: dict[str, Any] | None = RIGHT, **columns: Any) -> Judged:
    """Play a rollout and compute its reward; `verdict` takes the place of an environment's verdict."""
    from verl_pivot.rewards.manager import PivotRewardManager

    given = row("Add.", **columns)
    output = await loop.run({"temperature": 1.0, "logprobs": True}, **given)
    assert isinstance(output, TurnRewardOutput)
    if verdict is not None and VERDICT_FIELD not in output.extra_fields:
        output.extra_fields[VERDICT_FIELD] = verdict
    responses = torch.tensor([output.response_ids])
    batch = TensorDict({"responses": responses, "attention_mask": torch.ones_like(responses)}, batch_size=1)
    wrapped = {}
    for name, value in {**given, "tool_extra_fields": output.extra_fields}.items():
        wrapped[name] = numpy.empty(1, dtype=object)
        wrapped[name][0] = value
    manager = PivotRewardManager(loop.config, loop.tokenizer, None)
    try:
        return Judged(output, await manager.run_single(DataProto(batch=batch, non_tensor_batch=wrapped)))
    finally:
        await manager.process.close()


async def test_every_turn_has_its_reward_on_its_last_sampled_token(tmp_path: Path) -> None:
    async with judging(grading) as judge:
        right = await judged(loop_of_ppr(tmp_path, judge, SEARCHES))
        wrong = await judged(loop_of_ppr(tmp_path, judge, SEARCHES), WRONG)

    assert right.of_turns == pytest.approx([0.7, 0.2, 1.0])
    assert wrong.of_turns == pytest.approx([-0.3, -0.8, 0.0])
    assert all(right.output.response_mask[end - 1] == 1 for end in right.output.turn_ends)
    assert right.info["score"] == right.output.reward_score == 1.0
    assert isinstance(right.info[PROCESS_FIELD], str)


async def test_the_judge_sees_turns_as_text_with_what_the_tools_gave_back_and_no_mark_of_the_chat(
    tmp_path: Path,
) -> None:
    async with judging(grading) as judge:
        await judged(loop_of_ppr(tmp_path, judge, SEARCHES))

    second = next(str(request["messages"]) for request in judge.requests if "grade 2" in str(request["messages"]))
    assert "Add." in second
    assert "grade 7" in second
    assert json.dumps("5")[1:-1] in second
    assert "<|im_end|>" not in second
    assert "It is 6." not in second


@pytest.mark.parametrize(
    ("mode", "rewards"),
    [("sum", [0.7, 0.2, 0.0]), ("scaled", [0.35, 0.1, 0.0]), ("process", [0.7, 0.2, 0.0]), ("outcome", [0.0] * 3)],
)
async def test_the_other_modes(mode: str, rewards: list[float], tmp_path: Path) -> None:
    async with judging(grading) as judge:
        wrong = await judged(loop_of_ppr(tmp_path, judge, SEARCHES, f"pivot.process.mode={mode}"), WRONG)

    assert wrong.of_turns == pytest.approx(rewards)
    assert len(judge.requests) == (0 if mode == "outcome" else 2)


@pytest.mark.parametrize("mode", ["renorm", "process"])
async def test_validation_that_asks_no_judge_pays_the_outcome_alone_and_training_as_before(
    mode: str, tmp_path: Path
) -> None:
    overrides = (f"pivot.process.mode={mode}", "pivot.process.judge_validation=False")
    async with judging(grading) as judge:
        validated = await judged(loop_of_ppr(tmp_path, judge, SEARCHES, *overrides), **{IS_VALIDATION: True})
        assert judge.requests == []
        trained = await judged(loop_of_ppr(tmp_path, judge, SEARCHES, *overrides), **{IS_VALIDATION: False})

    assert validated.of_turns == [0.0, 0.0, 1.0]
    assert validated.record is not None
    assert validated.record.scores == ()
    assert trained.of_turns == pytest.approx([0.7, 0.2, 0.0 if mode == "process" else 1.0])
    assert len(judge.requests) == 2


async def test_validation_is_judged_as_training_is_unless_it_is_left_out(tmp_path: Path) -> None:
    async with judging(grading) as judge:
        validated = await judged(loop_of_ppr(tmp_path, judge, SEARCHES), **{IS_VALIDATION: True})

    assert validated.of_turns == pytest.approx([0.7, 0.2, 1.0])


async def test_a_trajectory_of_one_turn_has_its_outcome_alone(tmp_path: Path) -> None:
    one = await judged(loop_of_ppr(tmp_path, None, ["It is 6."]))

    assert one.of_turns == [1.0]
    assert one.record is not None
    assert one.record.num_asked == 0


async def test_a_trajectory_whose_last_calls_were_not_answered_ends_with_its_outcome_on_a_sampled_token(
    tmp_path: Path,
) -> None:
    async with judging(grading) as judge:
        late = await judged(loop_of_ppr(tmp_path, judge, SEARCHES[:2], "pivot.rollout.max_turns=2"))

    assert late.of_turns == pytest.approx([0.7, 1.0])


async def test_invalid_answers_give_the_mean_of_the_others_and_are_counted(tmp_path: Path) -> None:
    def partly(outside: str, inside: list[str]) -> Any:
        return "no idea" if "grade 2" in inside[-2] else grading(outside, inside)

    async with judging(partly) as judge:
        wrong = await judged(loop_of_ppr(tmp_path, judge, SEARCHES), WRONG)

    assert wrong.of_turns == pytest.approx([-0.3, -0.3, 0.0])
    assert wrong.record is not None
    assert (wrong.record.scores, wrong.record.num_asked) == ((0.7, None), 3)
    assert process_metrics([wrong.info])["ppr/invalid_rate"] == 0.5


async def test_a_judge_that_is_down_masks_the_rollout_and_gives_no_reward(tmp_path: Path) -> None:
    down = await judged(loop_of_ppr(tmp_path, None, SEARCHES))

    assert math.isnan(down.output.reward_score or 0.0)
    assert (down.info["undecided"], down.info["reason"], down.info[PROCESS_FIELD]) == (1.0, "judge_failed", "")
    assert "cannot be reached" in down.info["detail"]
    assert down.info["stop_reason"] == "answered"
    assert process_metrics([down.info]) == {"ppr/failed_judge_rate": 1.0}


async def test_a_composed_reward_says_whether_the_judge_was_down_or_gave_no_valid_answer(tmp_path: Path) -> None:
    (tmp_path / "sum.yaml").write_text("terms: {paid: {value: outcome}, judged: {value: process}}\n")
    composed = f"pivot.rewards={tmp_path / 'sum.yaml'}"
    down = await judged(loop_of_ppr(tmp_path, None, SEARCHES, composed))
    async with judging(lambda outside, inside: "no idea") as judge:
        mute = await judged(loop_of_ppr(tmp_path, judge, SEARCHES, composed, "pivot.process.invalid_retries=0"))

    assert [each.info["undecided"] for each in (down, mute)] == [1.0, 1.0]
    assert [each.info["reason"] for each in (down, mute)] == ["judge_failed", "no_valid_answer"]
    assert process_metrics([down.info, mute.info])["ppr/failed_judge_rate"] == 0.5


async def test_a_judge_that_is_down_masks_no_rollout_whose_reward_does_not_need_it(tmp_path: Path) -> None:
    judged_if_right = "judged: {value: process, only_if: {term: paid, at_least: 1}}"
    (tmp_path / "sum.yaml").write_text(f"terms:\n  paid: {{value: outcome}}\n  {judged_if_right}\n")
    composed = f"pivot.rewards={tmp_path / 'sum.yaml'}"
    wrong = await judged(loop_of_ppr(tmp_path, None, SEARCHES, composed), WRONG)
    right = await judged(loop_of_ppr(tmp_path, None, SEARCHES, composed))

    assert (wrong.output.reward_score, wrong.info["reason"]) == (0.0, "composed")
    assert (wrong.of_turns, wrong.record) == ([0.0] * 3, ProcessRecord(rewards=(0.0,) * 3, scores=()))
    assert (right.info["undecided"], right.info["reason"], right.record) == (1.0, "judge_failed", None)
    assert right.info["detail"].startswith("term judged: ")
    assert process_metrics([wrong.info, right.info])["ppr/failed_judge_rate"] == 0.5


async def test_a_rollout_that_is_masked_or_undecided_already_is_not_judged(tmp_path: Path) -> None:
    async with judging(grading) as judge:
        masked = await judged(loop_of_ppr(tmp_path, judge, [SEARCHES[0], call("crash")]))
        undecided = await judged(loop_of_ppr(tmp_path, judge, SEARCHES), {"score": None, "reason": "no_judge"})

    assert [each.info["undecided"] for each in (masked, undecided)] == [1.0, 1.0]
    assert [each.info["reason"] for each in (masked, undecided)] == ["tool_failure", "no_judge"]
    assert judge.requests == []


async def test_an_outcome_of_a_reward_function_outside_of_0_and_1_is_refused_with_renorm_alone(tmp_path: Path) -> None:
    """The reward manager turns this error into a broken row, as where a judge refuses every question."""
    from verl_pivot.rewards.process_rewards import ProcessRewards
    from verl_pivot.rewards.process_settings import parse_process

    async with judging(grading) as judge:
        for mode in ("renorm", "sum"):
            loop = loop_of_ppr(tmp_path, judge, SEARCHES, f"pivot.process.mode={mode}")
            output = await loop.run({}, **row("Add."))
            end_ids = frozenset({loop.tokenizer.eos_token_id})
            process = ProcessRewards(parse_process(loop.config), loop.tokenizer, end_ids, num_workers=1)
            recording = process.record(output.response_ids, -1.0, row("Add."), output.extra_fields)
            if mode == "sum":
                assert (await recording).rewards == pytest.approx((0.7, 0.2, -1.0))
            else:
                with pytest.raises(ConfigError, match=r"renorm needs outcomes in \[0, 1\], but an outcome is -1: "):
                    await recording
            await process.close()


async def test_a_judge_that_dies_between_two_turns_masks_the_trajectory(tmp_path: Path) -> None:
    """The judge answers about one turn, and every later connection breaks."""
    async with judging(grading) as judge:
        judge.breaks = lambda number: number > 1
        masked = await judged(loop_of_ppr(tmp_path, judge, SEARCHES))

    assert len(judge.requests) == 2
    assert math.isnan(masked.info["score"])
    assert (masked.info["undecided"], masked.info["reason"], masked.record) == (1.0, "judge_failed", None)
    assert process_metrics([masked.info]) == {"ppr/failed_judge_rate": 1.0}


async def test_a_judge_that_refuses_every_question_is_a_fault_of_the_launch(tmp_path: Path) -> None:
    async with judging(grading) as judge:
        judge.failures = [400] * 9
        refused = await judged(loop_of_ppr(tmp_path, judge, SEARCHES))

    assert refused.info["reason"] == "broken_row"
    assert "the judge refuses every question" in refused.info["detail"]


async def test_a_row_of_another_agent_loop_is_told(tmp_path: Path) -> None:
    from verl_pivot.rewards.process_rewards import played_turns

    with pytest.raises(DataError, match="another loop played this row"):
        played_turns([1, 2], {}, None, frozenset())  # type: ignore[arg-type]


def test_the_metrics_of_a_step_by_hand() -> None:
    right = ProcessRecord(rewards=(0.8, 1.0), scores=(0.8,), num_asked=1, num_prompt_tokens=10, seconds=1.0)
    wrong = ProcessRecord(
        rewards=(-0.6, -0.6, 0.0), scores=(0.4, None), num_asked=3, num_cached=1, num_completion_tokens=5, seconds=3.0
    )
    rows = [
        {"score": 1.0, PROCESS_FIELD: right.as_text()},
        {"score": 0.0, PROCESS_FIELD: wrong.as_text()},
        {"score": math.nan, PROCESS_FIELD: "", "reason": "judge_failed"},
        {"score": math.nan, PROCESS_FIELD: "", "reason": "tool_failure"},
    ]

    metrics = process_metrics(rows)

    assert metrics == pytest.approx(
        {
            "ppr/failed_judge_rate": 0.25,
            "ppr/turns_per_trajectory": 2.5,
            "ppr/reward_per_trajectory": (1.8 - 1.2) / 2,
            "ppr/reward_per_judged_turn": (0.8 - 0.6 - 0.6) / 3,
            "ppr/invalid_rate": 1 / 3,
            "ppr/asked_per_turn": 4 / 3,
            "ppr/cached_answers": 1.0,
            "ppr/judge_prompt_tokens": 10.0,
            "ppr/judge_completion_tokens": 5.0,
            "ppr/judge_seconds/mean": 2.0,
            "ppr/judge_seconds/max": 3.0,
            "ppr/score": 0.6,
            "ppr/score_of_right": 0.8,
            "ppr/score_of_wrong": 0.4,
        }
    )
    assert process_metrics([{"score": 1.0}]) == {}
