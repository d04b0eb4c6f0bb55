"""The stock trainer with `+method=ppr`: a critic, checklists as rewards, and workflows of its own successes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, fake_server
from tests.support.fake_judge import checking, outside_and_inside
from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics, training
from tests.support.sums_training import QUESTION, policy_of_own_process, write_tasks, write_tools
from verl_pivot.data.step_state import state_path
from verl_pivot.rewards.process_record import PROCESS_FIELD, process_record
from verl_pivot.rollout.workflow_settings import STATE
from verl_pivot.types import JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]


def judge(path: str, body: JsonObject) -> Answer:
    """Write a checklist of two items, the first of which is fulfilled by a turn that calls the tool."""
    outside, inside = outside_and_inside(body)
    return said(json.dumps(checking(outside, [text.replace('"add"', '"add" 1 is Yes') for text in inside])))


def lines_of(folder: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dump" / "pivot" / f"{step}.jsonl").read_text().splitlines()]


def test_two_steps_with_a_critic_are_paid_gains_and_the_second_sees_the_workflow_of_the_first(tmp_path: Path) -> None:
    """Half of the rollouts are right; each has one judged turn. The policy is taught the prompt without workflows."""
    tools, tasks = write_tools(tmp_path), write_tasks(tmp_path, 4)
    model = policy_of_own_process(tmp_path)
    with fake_server(judge) as server:
        output = launch(
            tmp_path,
            "+method=ppr",
            "+local=cpu",
            "pivot.trial_steps=null",
            *training(model, tasks, batch_size=4, n=1, num_steps=2),
            f"data.val_files={tasks}",
            f"pivot.rollout.tools={tools}",
            "pivot.rollout.workflows.every_steps=1",
            "pivot.rollout.workflows.max_tokens=700",
            f"pivot.process.base_url={server.url}",
            "pivot.process.model=Shepherd",
            "pivot.process.form=checklist",
            "pivot.process.mode=sum",
            "pivot.process.reward=gain",
            "pivot.process.answer_format=text",
            "trainer.val_before_train=False",
            f"trainer.default_local_dir={tmp_path}/checkpoints",
            f"trainer.rollout_data_dir={tmp_path}/dump",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.rollout.top_k=1",  # greedy, so that the model gives what it was taught
            "data.max_prompt_length=1536",
            "data.max_response_length=512",
        )

    assert output.returncode == 0, output.stdout[-3000:]
    assert "algorithm.adv_estimator=gae takes each turn's own reward" in output.stdout + output.stderr
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [1, 2]
    assert metrics[1]["critic/vf_loss"] != metrics[2]["critic/vf_loss"]
    assert metrics[1]["ppr/turns_per_trajectory"] == 2.0
    assert metrics[1]["ppr/score"] == 0.5
    assert metrics[1]["critic/score/max"] == 1.5
    assert metrics[1]["critic/score/min"] == 0.5
    assert metrics[1]["ppr/invalid_rate"] == metrics[1]["ppr/failed_judge_rate"] == 0.0
    assert [metrics[step]["workflows/version"] for step in (1, 2)] == [0.0, 1.0]
    assert [metrics[step]["workflows/shown_per_rollout"] for step in (1, 2)] == [0.0, 1.0]
    records = [process_record({PROCESS_FIELD: line["reward_info"][PROCESS_FIELD]}) for line in lines_of(tmp_path, 1)]
    assert sorted(record.rewards for record in records if record) == [(0.5, 0.0), (0.5, 0.0), (0.5, 1.0), (0.5, 1.0)]
    assert {record.checklist for record in records if record} == {(f"First of {QUESTION}", "Second")}
    written = [each for each in server.requests if "The checklist:" not in str(each)]
    asked = [re.sub("[0-9a-f]{16}", "", str(each)) for each in written]  # without the random words of the fences
    assert len(set(asked)) == len(asked) >= 1  # no checklist is written twice
    second = lines_of(tmp_path, 2)
    assert {(line["workflow_version"], line["num_workflows"]) for line in second} == {(1, 1)}
    prompts = [line["prompt"] for line in second if line.get("prompt")]
    assert prompts
    assert all("1. add(" in prompt[0]["content"] for prompt in prompts)
    assert state_path(tmp_path / "checkpoints", STATE).read_text().count('"goal"') >= 1
