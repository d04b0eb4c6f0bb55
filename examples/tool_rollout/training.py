"""Tasks as rows of a verl parquet, and the stock command that trains on them with the tool loop."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS
from examples.quickstart.tasks import make_task
from examples.quickstart.training import Training

MAX_RESPONSE_TOKENS = 384
"""Tokens of a whole trajectory, observations included."""
MAX_TURNS = 8
TOOLS = Path(__file__).parent / "tools.yaml"


def write_tasks(path: Path, seeds: range, *, held_out: bool = False) -> Path:
    """Write one row per task: its first messages, and the metadata from which its shop is rebuilt."""
    tasks = [make_task(seed, held_out=held_out) for seed in seeds]
    rows = [
        {
            "data_source": "shop",
            "prompt": [{"role": message.role.value, "content": message.content} for message in task.opening],
            "metadata": json.dumps(task.metadata),
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, task in enumerate(tasks)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTraining(Training):
    """One run of the stock trainer on whole tasks."""

    validation: Path

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=tool_rollout"),
            *machine_overrides(),
            f"pivot.rollout.tools={TOOLS}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_NEW_TOKENS}",
            f"data.val_files={self.validation}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.sizes,
            "trainer.test_freq=-1",
            "trainer.project_name=tool_rollout",
            "trainer.experiment_name=shop",
        ]
