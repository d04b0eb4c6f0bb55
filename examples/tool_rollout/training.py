"""Tasks as rows of a verl parquet, and the stock command that trains on them with the tool loop."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS
from examples.quickstart.tasks import make_task
from examples.quickstart.training import Training

MAX_RESPONSE_TOKENS = 384
"""Of a whole trajectory, what the tools give back included."""
MAX_TURNS = 8
TOOLS = Path(__file__).parent / "tools.yaml"


def write_tasks(path: Path, seeds: range, *, held_out: bool = False) -> Path:
    """One row per task: its first messages, and what rebuilds its shop."""
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
        micro = f"micro_batch_size_per_gpu={2 * self.group_size}"  # two groups: little padding, few passes
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=tool_rollout", "+local=cpu"),
            f"pivot.rollout.tools={TOOLS}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_NEW_TOKENS}",
            f"data.train_files={self.pivots}",
            f"data.val_files={self.validation}",
            f"data.train_batch_size={self.batch_size}",
            f"data.seed={self.seed}",
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.model.path={self.model}",
            f"actor_rollout_ref.actor.optim.lr={self.learning_rate}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            f"actor_rollout_ref.actor.ppo_{micro}",
            f"actor_rollout_ref.rollout.n={self.group_size}",
            f"actor_rollout_ref.rollout.log_prob_{micro}",
            f"actor_rollout_ref.actor.data_loader_seed={self.seed}",
            f"actor_rollout_ref.rollout.seed={self.seed}",
            "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
            "trainer.total_epochs=1000",
            f"trainer.total_training_steps={self.num_steps}",
            f"trainer.save_freq={self.num_steps}",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            f"trainer.default_local_dir={self.folder}",
            "trainer.project_name=tool_rollout",
            "trainer.experiment_name=shop",
        ]
