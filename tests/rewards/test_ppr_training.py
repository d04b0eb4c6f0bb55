"""The stock trainer with `+method=ppr`: PPO with a critic on a CPU, and a scripted server as the judge."""

import json
import re
from pathlib import Path

import pytest

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, fake_server
from tests.support.fake_judge import outside_and_inside, turn_shown
from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics, training
from tests.support.sums_training import policy_of_own_process, write_tasks, write_tools
from verl_pivot.rewards.process_record import PROCESS_FIELD, process_record
from verl_pivot.types import JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]


def judge(path: str, body: JsonObject) -> Answer:
    """Score 7 of 10 for each principle."""
    outside, inside = outside_and_inside(body)
    quotation = turn_shown(outside, inside)[:20]
    names = re.findall(r"^- (\w+):", outside, re.MULTILINE)
    scores = [{"name": name, "quotation": quotation, "score": 7, "maximum": 10} for name in names]
    return said(json.dumps({"principles": scores}))


async def test_two_steps_of_ppo_with_a_critic_pay_each_turn_by_judge_and_outcome(tmp_path: Path) -> None:
    """Half of the rollouts are right. Each has one judged turn, and all put the same question to the judge."""
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
            f"pivot.process.base_url={server.url}",
            "pivot.process.model=PPRM",
            "pivot.process.answer_format=text",
            "trainer.val_before_train=False",
            f"trainer.rollout_data_dir={tmp_path}/dump",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.rollout.top_k=1",  # greedy, so that the model gives what it was taught
            "data.max_prompt_length=512",
            "data.max_response_length=512",
        )

    assert output.returncode == 0, output.stdout[-3000:]
    assert "algorithm.adv_estimator=gae takes each turn's own reward" in output.stdout + output.stderr
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [1, 2]
    for step in metrics.values():
        assert step["ppr/turns_per_trajectory"] == 2.0
        assert step["ppr/score"] == pytest.approx(0.7)
        assert step["ppr/invalid_rate"] == step["ppr/failed_judge_rate"] == 0.0
        assert step["critic/score/mean"] == pytest.approx((1.7 - 0.3) / 2)
        assert step["critic/score/max"] == pytest.approx(1.7)
        assert step["critic/score/min"] == pytest.approx(-0.3)
        assert "critic/vf_loss" in step
    assert metrics[1]["critic/vf_loss"] != metrics[2]["critic/vf_loss"]
    assert len(server.requests) == 1
    lines = [json.loads(line) for line in (tmp_path / "dump" / "pivot" / "1.jsonl").read_text().splitlines()]
    rewards = [process_record({PROCESS_FIELD: line["reward_info"][PROCESS_FIELD]}) for line in lines]
    assert sorted(record.rewards for record in rewards if record) == [
        (pytest.approx(-0.3), 0.0), (pytest.approx(-0.3), 0.0), (pytest.approx(0.7), 1.0), (pytest.approx(0.7), 1.0),
    ]  # fmt: skip
