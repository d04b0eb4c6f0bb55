"""The stock trainer with `+method=ppr`: PPO with a critic on a CPU, judged by a server that answers by the text."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, fake_server
from tests.support.fake_judge import turn_shown
from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics, training
from tests.support.paths import ROOT
from tests.support.scripted_engine import call, make_loop, row
from tests.support.tiny_model import teach, write_model
from verl_pivot.rewards.process_record import PROCESS_FIELD, process_record
from verl_pivot.types import JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]

QUESTION = "Add 1 and 2."
TOOLS = """
from verl_pivot.tools.contract import Environment, tool
from verl_pivot.types import Verdict

class Sums(Environment):
    def __init__(self, metadata):
        self.is_right = metadata["number"] % 2 == 0

    @tool
    def add(self, a: int, b: int) -> str:
        \"\"\"Add two numbers.\"\"\"
        return str(a + b)

    async def score(self, answer):
        is_right = self.is_right and answer is not None and "It is 3." in answer.content
        return Verdict(score=float(is_right), reason="seen")
"""


def judge(path: str, body: JsonObject) -> Answer:
    """Score 7 of 10 for each principle."""
    messages: object = body["messages"]
    assert isinstance(messages, list)
    system, user = (message["content"] for message in messages)
    word = re.search(r"with the word ([0-9a-f]{16}),", system)
    assert word is not None
    fence = re.compile(rf"<{word[1]}>\n(.*?)\n</{word[1]}>", re.DOTALL)
    outside = fence.sub("", user)
    quotation = turn_shown(outside, fence.findall(user))[:20]
    names = re.findall(r"^- (\w+):", outside, re.MULTILINE)
    scores = [{"name": name, "quotation": quotation, "score": 7, "maximum": 10} for name in names]
    return said(json.dumps({"principles": scores}))


async def write_policy(folder: Path) -> Path:
    """A model that was taught to call the tool once and to answer with its result."""
    script = [call("add", a=1, b=2), "It is 3."]
    loop = make_loop(script, f"pivot.rollout.tools={folder}/tools.yaml")
    shown = await loop.run({}, **row(QUESTION, metadata=json.dumps({"number": 0})))
    assert shown.extra_fields["rollout"]["stop_reason"] == "answered"
    assert shown.extra_fields["rollout"]["num_tool_errors"] == 0
    mask = [0] * len(shown.prompt_ids) + shown.response_mask
    return teach(write_model(folder / "model"), shown.prompt_ids + shown.response_ids, mask)


def policy_of_own_process(folder: Path) -> Path:
    """The model of `write_policy`; in a process that ran many tests before, its loss was seen to become NaN."""
    code = "import asyncio, sys, pathlib; from tests.rewards.test_ppr_training import write_policy\n"
    code += "asyncio.run(write_policy(pathlib.Path(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    return folder / "model"


async def test_two_steps_of_ppo_with_a_critic_pay_each_turn_by_judge_and_outcome(tmp_path: Path) -> None:
    """Half of the rollouts are right. Each has one judged turn, and all ask the judge the same."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "tools.yaml").write_text(f"- environment: {tmp_path}/tools.py:Sums\n")
    model = policy_of_own_process(tmp_path)
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
            "metadata": json.dumps({"number": number}),
        }
        for number in range(4)
    ]
    tasks = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tasks)

    with fake_server(judge) as server:
        output = launch(
            tmp_path,
            "+method=ppr",
            "+local=cpu",
            "pivot.trial_steps=null",
            *training(model, tasks, batch_size=4, n=1, num_steps=2),
            f"data.val_files={tasks}",
            f"pivot.rollout.tools={tmp_path}/tools.yaml",
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
