"""The stock trainer with the tool loop: a policy that calls the sandbox, in trainer mode sync and in an asynchronous one."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.launching import launch, step_metrics, training
from tests.sandbox_machine import needs_sandbox
from tests.scripted_engine import call, make_loop, row
from tests.tiny_model import teach, write_model

pytestmark = [pytest.mark.slow, needs_sandbox]

PROBE = """
from verl_pivot.tools.contract import Environment
from verl_pivot.types import Verdict

class Probe(Environment):
    tools = ()

    async def score(self, answer):
        return Verdict(score=float(answer is not None and answer.content == "It is 3."), reason="seen")
"""
QUESTION = "Add 1 and 2."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model that has learnt to run a cell and to say what comes of it, its rows and its tools."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "probe.py").write_text(PROBE)
    tools = f"- tool: jupyter_code\n  tell_seconds: False\n- environment: {folder}/probe.py:Probe\n"
    (folder / "tools.yaml").write_text(tools)
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number in range(16)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return folder


async def demonstrate(folder: Path) -> tuple[list[int], list[int]]:
    """Tokens of the conversation, and which of them the policy says."""
    script = [call("jupyter_code", code="1 + 2"), "It is 3."]
    loop = make_loop(script, f"pivot.rollout.tools={folder}/tools.yaml")
    output = await loop.run({}, **row(QUESTION))
    assert output.extra_fields["rollout"]["num_tool_errors"] == 0
    return output.prompt_ids + output.response_ids, [0] * len(output.prompt_ids) + output.response_mask


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
async def test_trajectories_with_tools_train(folder: Path, tmp_path: Path, mode: str) -> None:
    model = folder / "model"
    if not model.is_dir():
        teach(write_model(model), *await demonstrate(folder))

    output = launch(
        tmp_path,
        "+method=tool_rollout",
        "+local=cpu",
        *training(model, folder / "rows.parquet", batch_size=4, n=4, num_steps=2),
        f"data.val_files={folder}/rows.parquet",
        f"pivot.rollout.tools={folder}/tools.yaml",
        "pivot.rollout.max_turns=3",
        f"trainer.v1.trainer_mode={mode}",
        "+ray_kwargs.ray_init.address=local",  # never a cluster that somebody else has here
        "trainer.val_before_train=False",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.max_prompt_length=512",
        "data.max_response_length=256",
        f"trainer.rollout_data_dir={tmp_path}/dump",
    )

    assert output.returncode == 0, output.stdout[-3000:]
    metrics = step_metrics(output.stdout)
    assert sorted(set(metrics) - {0}) == [1, 2]
    assert metrics[1]["rollout/calls_per_trajectory"] > 0.5
    assert metrics[1]["critic/score/mean"] > 0.5
    assert metrics[1]["rollout/masked_rate"] == metrics[1]["rollout/text_differs_rate"] == 0.0
    assert metrics[1]["rollout/stop_reason/answered"] > 0.5
    assert metrics[1]["training/rollout_probs_diff_mean"] < 0.005  # verl's own bar: tokens, mask and logprobs are one
    dumped = [json.loads(line) for line in (tmp_path / "dump" / "1.jsonl").read_text().splitlines()]
    assert {"stop_reason", "num_calls", "num_tool_errors"} <= set(dumped[0])
