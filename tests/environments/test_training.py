"""The stock trainer with an environment of Gymnasium: a policy that was taught one step gets the return as reward."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: the extra `gymnasium`")

from tests.rollout.test_tool_training import tool_training  # noqa: E402
from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics  # noqa: E402
from tests.support.scripted_engine import call, make_loop, row  # noqa: E402
from tests.support.tiny_model import teach, write_model  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]

QUESTION = "Stick."
METADATA = json.dumps({"seed": 7})


async def test_two_steps_of_blackjack(tmp_path: Path) -> None:
    tools = tmp_path / "tools.yaml"
    tools.write_text("- environment: gymnasium:Blackjack-v1\n  reward: turns\n")
    environment = gymnasium.make("Blackjack-v1")
    environment.reset(seed=7)
    _, reward, terminated, *_ = environment.step(0)
    loop = make_loop([call("step", action=0)], f"pivot.rollout.tools={tools}")
    shown = await loop.run({}, **row(QUESTION, metadata=METADATA))
    model = teach(
        write_model(tmp_path / "model"),
        shown.prompt_ids + shown.response_ids,
        [0] * len(shown.prompt_ids) + shown.response_mask,
    )
    problem = {
        "data_source": "made_up", "prompt": [{"role": "user", "content": QUESTION}], "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""}, "metadata": METADATA,
    }  # fmt: skip
    rows = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{**problem, "extra_info": {"index": index}} for index in range(8)]), rows
    )

    output = launch(tmp_path, *tool_training("tool_rollout", model, rows, tools, batch_size=2, n=2, num_steps=2))

    assert output.returncode == 0, output.stdout[-5000:]
    metrics = step_metrics(output.stdout)
    assert terminated
    assert sorted(metrics) == [1, 2]
    for step in (1, 2):
        assert metrics[step]["rollout/stop_reason/environment_terminated"] == 1.0
        assert metrics[step]["rollout/masked_rate"] == 0.0
        assert metrics[step]["critic/score/mean"] == reward
