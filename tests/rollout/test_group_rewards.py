"""`pivot.ruler` over rollouts of the scripted engine: who is compared with whom, and what each is paid."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl import DataProto

from tests.support.fake_judge import FakeJudge, comparing, judging
from tests.support.scripted_engine import RecordingRouter, Said, call, loop_of, rollout_config, row, scripted_model
from verl_pivot.data.rollout_records import GROUP_VERDICT_FIELD, IS_VALIDATION
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.ruler_metrics import ruler_metrics
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.types import JsonObject

LABEL = {"style": "rule", "ground_truth": "Bob"}


def config_of(folder: Path, judge: FakeJudge | str, *overrides: str) -> DictConfig:
    path = folder / "tools.yaml"
    path.write_text("- function: tests.support.tool_functions:add\n- function: tests.support.tool_functions:crash\n")
    return rollout_config(
        scripted_model(),
        f"pivot.rollout.tools={path}",
        f"pivot.ruler.base_url={judge if isinstance(judge, str) else judge.url}",
        "pivot.ruler.model=judge",
        "pivot.ruler.cache_dir=null",
        "pivot.ruler.max_retries=0",
        *overrides,
        method="mcp_rl",
    )


Script = Sequence[Said | str]


async def play(
    config: DictConfig,
    *scripts: Script,
    is_validation: bool = False,
    router: RecordingRouter | None = None,
    **columns: Any,
) -> list[Any]:
    """Output or exception of the agent loop for each rollout of one prompt."""
    given = row("Add.", uid="u", **{IS_VALIDATION: is_validation, **columns})
    loops = [loop_of(ToolLoop, config, script, _load_balancer=router) for script in scripts]
    return await asyncio.gather(*(loop.run({"temperature": 1.0}, **given) for loop in loops), return_exceptions=True)


def verdicts(outputs: Sequence[Any]) -> list[Any]:
    """Score of each rollout; its reason where it is undecided, None where it was not compared."""
    found = [each.extra_fields.get(GROUP_VERDICT_FIELD) for each in outputs]
    return [None if each is None else each["reason"] if each["score"] is None else each["score"] for each in found]


def holds(**given: Any) -> float:
    """Reward function: 1 if the response contains the ground truth, else 0."""
    return float(given["ground_truth"] in given["solution_str"])


async def rewards(
    config: DictConfig, outputs: Sequence[TurnRewardOutput], function: Callable[..., float] = holds, **columns: Any
) -> list[dict[str, Any]]:
    """What the reward manager gives for each output."""
    from verl_pivot.rewards.manager import PivotRewardManager

    tokenizer = loop_of(ToolLoop, config, []).tokenizer
    manager = PivotRewardManager(config, tokenizer, function)
    rewarded = []
    for output in outputs:
        responses = torch.tensor([output.response_ids])
        batch = TensorDict({"responses": responses, "attention_mask": torch.ones_like(responses)}, batch_size=1)
        wrapped = {}
        for name, value in {
            **row("Add."),
            "data_source": "x",
            "tool_extra_fields": output.extra_fields,
            **columns,
        }.items():
            wrapped[name] = numpy.empty(1, dtype=object)
            wrapped[name][0] = value
        rewarded.append(await manager.run_single(DataProto(batch=batch, non_tensor_batch=wrapped)))
    return rewarded


async def test_all_rollouts_of_a_prompt_are_compared_by_one_question_and_each_gets_its_score(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, *([call("add", a=1, b=grade), f"grade {grade}"] for grade in (3, 9, 0, 3)))
        paid = await rewards(config, outputs)

    assert verdicts(outputs) == [0.3, 0.9, 0.0, 0.3]
    assert len(judge.requests) == 1
    question = str(judge.requests[0]["messages"])
    assert question.count("grade 9") == 1
    assert "Trajectory 3, turn 2:" in question
    assert "Trajectory 4" not in question  # two of the four rollouts are alike
    assert '\\"name\\": \\"add\\"' in question or '"name": "add"' in question
    assert [each["reward_score"] for each in paid] == [0.3, 0.9, 0.0, 0.3]
    assert {each["reward_extra_info"]["verifier"] for each in paid} == {"ruler"}
    assert "independent_reward" not in paid[0]["reward_extra_info"]


async def test_the_reward_stands_on_the_last_token_that_the_policy_sampled(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, *([f"grade {grade}"] for grade in (3, 9, 0, 1)))
        paid = await rewards(config, outputs)

    output = outputs[1]
    output.reward_score, output.extra_fields["reward_extra_info"] = (
        paid[1]["reward_score"],
        paid[1]["reward_extra_info"],
    )
    scores = output.as_dict()["rm_scores"]
    assert scores[-1].item() == pytest.approx(0.9)
    assert scores.sum().item() == pytest.approx(0.9)


async def test_the_rows_own_reward_is_kept_beside_the_judges(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["Bob, grade 2"], ["Ann, grade 8"], ["grade 1"], ["grade 5"], reward_model=LABEL)
        paid = await rewards(config, outputs, reward_model=LABEL)

    infos = [each["reward_extra_info"] for each in paid]
    assert [each["reward_score"] for each in paid] == [0.2, 0.8, 0.1, 0.5]
    assert [each["independent_reward"] for each in infos] == [1.0, 0.0, 0.0, 0.0]
    assert ruler_metrics(infos) == {
        "ruler/undecided_rate": 0.0, "ruler/score": pytest.approx(0.4), "ruler/independent_reward": 0.25,
    }  # fmt: skip


async def test_a_reward_function_of_the_user_that_raises_is_named_though_it_pays_nobody(tmp_path: Path) -> None:
    def broken(**given: Any) -> float:
        raise NotImplementedError("no such data source")

    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, *[["Ann, grade 1"]] * 4, reward_model=LABEL)
        (paid, *_) = await rewards(config, outputs, broken, reward_model=LABEL)

    info = paid["reward_extra_info"]
    assert (info["reason"], info["undecided"]) == ("user_code_failed", 1.0)
    assert "NotImplementedError: no such data source" in info["detail"]


async def test_a_rollout_that_the_system_failed_is_masked_and_the_others_are_compared(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        empty = [Said("", ended=False)] * 3
        outputs = await play(config, ["grade 2"], [call("crash")], empty, ["grade 8"])
        paid = await rewards(config, [outputs[0], outputs[1], outputs[3]])

    assert outputs[2] == []
    assert verdicts([outputs[0], outputs[1], outputs[3]]) == [0.2, None, 0.8]
    assert math.isnan(paid[1]["reward_score"])
    assert paid[1]["reward_extra_info"]["undecided"] == 1.0


async def test_one_that_is_left_alone_is_undecided_and_no_judge_is_asked(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        outputs = await play(config, ["grade 2"], *[[call("crash")]] * 3)
        (paid,) = await rewards(config, outputs[:1])

    assert verdicts(outputs) == ["siblings_failed", None, None, None]
    assert judge.requests == []
    assert math.isnan(paid["reward_score"])
    assert paid["reward_extra_info"]["reason"] == "siblings_failed"
    assert ruler_metrics([paid["reward_extra_info"]]) == {"ruler/undecided_rate": 1.0}


async def test_a_loop_that_raises_keeps_the_others_from_waiting(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        given = row("Add.", uid="u", **{IS_VALIDATION: False})
        loops = [loop_of(ToolLoop, config, [f"grade {grade}"]) for grade in (1, 2, 3)]
        broken = loop_of(ToolLoop, config, [])  # its scripted engine has no answer
        outputs = await asyncio.gather(
            *(loop.run({"temperature": 1.0}, **given) for loop in [*loops, broken]), return_exceptions=True
        )

    assert isinstance(outputs[3], IndexError)
    assert verdicts(outputs[:3]) == [0.1, 0.2, 0.3]


async def test_a_group_that_is_spread_over_workers_ends_undecided(tmp_path: Path) -> None:
    limits = ("pivot.ruler.wait_seconds=0.2", "pivot.rollout.max_wall_seconds=0.2")
    async with judging(comparing) as judge:
        outputs = await play(config_of(tmp_path, judge, *limits), ["grade 2"], ["grade 8"])

    assert verdicts(outputs) == ["siblings_missing"] * 2
    assert judge.requests == []


@pytest.mark.parametrize(
    ("answers", "expected", "detail"),
    [
        (['{"scores": []}', None], [0.1, 0.2, 0.3, 0.4], ""),
        (["no", "no"], ["judge_failed"] * 4, "judge judge gives no valid answer about a group: it is not JSON"),
        (
            [json.dumps({"scores": [{"number": 7, "explanation": "", "score": 1}]})] * 2,
            ["judge_failed"] * 4,
            "judge judge gives no valid answer about a group: there is no trajectory 7",
        ),
    ],
)
async def test_a_judge_with_an_invalid_answer_is_asked_again_and_then_the_group_is_undecided(
    answers: list[str | None], expected: list[Any], detail: str, tmp_path: Path
) -> None:
    given = iter(answers)
    async with judging(lambda outside, inside: next(given) or comparing(outside, inside)) as judge:
        outputs = await play(config_of(tmp_path, judge), *([f"grade {grade}"] for grade in (1, 2, 3, 4)))

    assert verdicts(outputs) == expected
    assert outputs[0].extra_fields[GROUP_VERDICT_FIELD]["detail"].startswith(detail)
    assert [request["seed"] for request in judge.requests] == [0, 1]
    assert [request["temperature"] for request in judge.requests] == [0.0, 0.7]


async def test_a_judge_that_is_down_leaves_the_group_undecided(tmp_path: Path) -> None:
    outputs = await play(config_of(tmp_path, "http://127.0.0.1:9"), *[["Ann"]] * 4)

    assert verdicts(outputs) == ["judge_failed"] * 4
    assert "cannot be reached" in outputs[0].extra_fields[GROUP_VERDICT_FIELD]["detail"]


async def test_a_judge_that_refuses_every_question_is_the_users_to_mend(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        judge.failures = [400, 400]
        config = config_of(tmp_path, judge)
        outputs = await play(config, *[["Ann"]] * 4)
        (paid, *_) = await rewards(config, outputs)

    assert verdicts(outputs) == ["broken_row"] * 4
    assert "the judge refuses every question" in paid["reward_extra_info"]["detail"]


async def test_a_question_that_the_judge_refuses_leaves_its_group_undecided(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        judge.failures = [400]
        outputs = await play(config_of(tmp_path, judge), *[["Ann"]] * 4)

    assert verdicts(outputs) == ["judge_failed"] * 4


async def test_in_validation_a_label_decides_and_a_row_without_one_is_judged_alone(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        labelled = await play(config, ["Bob, grade 2"], is_validation=True, reward_model=LABEL)
        (paid,) = await rewards(config, labelled, reward_model=LABEL)
        assert judge.requests == []
        alone = await play(config, ["grade 2"], is_validation=True)
        again = await play(config, ["grade 3"], is_validation=True)

    assert verdicts([*labelled, *alone, *again]) == [None, 0.2, 0.3]
    assert paid["reward_score"] == 1.0


async def test_a_reward_with_the_comparison_as_a_term_compares_labelled_rows_in_validation_too(tmp_path: Path) -> None:
    (tmp_path / "sum.yaml").write_text("terms: {right: {value: outcome}, better: {value: ruler, weight: 0.5}}\n")
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge, f"pivot.rewards={tmp_path / 'sum.yaml'}")
        labelled = await play(config, ["Bob, grade 2"], is_validation=True, reward_model=LABEL)
        (paid,) = await rewards(config, labelled, reward_model=LABEL)

    assert verdicts(labelled) == [0.2]
    assert (paid["reward_score"], paid["reward_extra_info"]["reason"]) == (1.1, "composed")


async def test_without_the_methods_manager_the_cause_is_named(tmp_path: Path) -> None:
    loop = loop_of(ToolLoop, config_of(tmp_path, "http://127.0.0.1:9"), ["Ann"])

    with pytest.raises(
        ConfigError, match=r"pivot\.ruler cannot tell training from validation: leave out actor_rollout"
    ):
        await loop.run({}, **row("Add.", uid="u"))


NOTED = """
from pathlib import Path
from verl_pivot.tools.contract import Environment

class Noted(Environment):
    async def close(self):
        with Path(__file__).with_suffix(".closed").open("a") as file:
            file.write("closed ")
"""


async def test_the_tools_of_all_rollouts_are_closed_and_their_places_free_when_the_judge_is_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "noted.py").write_text(NOTED)
    (tmp_path / "noted.yaml").write_text(f"- environment: {tmp_path / 'noted.py'}:Noted\n")
    router, when_asked = RecordingRouter(), []

    def noting(outside: str, inside: list[str]) -> JsonObject:
        when_asked.append(((tmp_path / "noted.closed").read_text(), len(router.ended)))
        return comparing(outside, inside)

    async with judging(noting) as judge:
        config = config_of(tmp_path, judge, f"pivot.rollout.tools={tmp_path / 'noted.yaml'}")
        outputs = await play(config, *([f"grade {grade}"] for grade in (1, 2, 3, 4)), router=router)

    assert verdicts(outputs) == [0.1, 0.2, 0.3, 0.4]
    assert when_asked == [("closed " * 4, 4)]


async def test_a_rollout_that_is_cancelled_while_it_plays_or_waits_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with judging(comparing) as judge:
        config = config_of(tmp_path, judge)
        given = row("Add.", uid="u", **{IS_VALIDATION: False})
        loops = [loop_of(ToolLoop, config, [f"grade {grade}"], seconds=60.0 * (grade == 4)) for grade in (1, 2, 3, 4)]
        *waiting, playing = [asyncio.create_task(loop.run({}, **given)) for loop in loops]
        while not playing.done():
            await asyncio.sleep(0.05)
            if loops[3].server_manager.requests:
                playing.cancel()
        outputs = await asyncio.wait_for(asyncio.gather(*waiting), timeout=30.0)

    assert verdicts(outputs) == [0.1, 0.2, 0.3]
