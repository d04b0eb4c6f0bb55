"""The stock trainer with +method=web_agent: a policy that clicks in a real browser, and a kill of the whole launch."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.launching import LAUNCH_SECONDS, killed_launch, step_metrics, training
from tests.support.scripted_engine import call, make_loop
from tests.support.tiny_model import teach, write_model
from tests.support.web import needs_browser
from verl_pivot.configuration import configs_dir
from verl_pivot.environments.miniwob_rows import miniwob_problems, miniwob_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200), needs_browser]

TOOLS = configs_dir() / "tools" / "miniwob.yaml"


async def test_a_policy_that_was_taught_to_click_solves_miniwob_and_a_kill_leaves_no_process(tmp_path: Path) -> None:
    episodes = miniwob_problems(["click-test"], range(4))
    rows = [miniwob_row(each, "Click the button.", index) for index, each in enumerate(episodes)]
    loop = make_loop([call("click", number=2)], f"pivot.rollout.tools={TOOLS}", "data.max_prompt_length=2048")
    taught = await loop.run({}, raw_prompt=rows[0]["prompt"], metadata=rows[0]["metadata"])
    assert taught.extra_fields["rollout"]["num_tool_errors"] == 0
    mask = [0] * len(taught.prompt_ids) + taught.response_mask
    model = teach(write_model(tmp_path / "model"), taught.prompt_ids + taught.response_ids, mask)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "web.parquet")

    log, names, left = killed_launch(
        tmp_path,
        "+method=web_agent",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, tmp_path / "web.parquet", batch_size=2, n=2, num_steps=8),
        f"data.val_files={tmp_path}/web.parquet",
        "trainer.val_before_train=False",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "data.max_prompt_length=2048",
        "data.max_response_length=256",
        "actor_rollout_ref.rollout.top_k=1",  # greedy, so that the model gives what it was taught
        "trainer.total_epochs=4",
        f"trainer.rollout_data_dir={tmp_path}/dump",
        after="step 2 of 8",
    )

    assert {"raylet", "gcs_server", "sglang::scheduler", "chromium-headless-shell"} <= names
    assert left == []
    metrics = step_metrics(log)
    assert metrics[1]["critic/score/mean"] == metrics[2]["critic/score/mean"] == 1.0
    lines = [json.loads(line) for line in (tmp_path / "dump" / "pivot" / "2.jsonl").read_text().splitlines()]
    assert {each["reason"] for each in lines} == {"solved"}
