"""What L0's batch relies on in verl: the size of mini-batches is read anew in each step, and padding has no steps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from tests.contract.test_configs import stock
from verl_pivot.advantages.estimators import step_reinforce_pp
from verl_pivot.resampling.mini_batches import MiniBatches
from verl_pivot.rewards.step_returns import StepReturnOutput


class RecordingWorkers:
    """Stand-in for verl's worker group: keeps the settings of the last update that the trainer asked for."""

    asked: dict[str, Any]

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.asked = dict(batch.extra_info)
        return {"metrics": {"mfu": [0.0]}}


def trainer(config: DictConfig) -> Any:
    """Object with the attributes that the two tested methods of verl's trainer read."""
    return SimpleNamespace(config=config, use_critic=False, global_steps=1, actor_rollout_wg=RecordingWorkers())


@pytest.mark.parametrize(
    ("num_rows", "num_gpus", "padded"),
    [(256, 1, 256), (259, 1, 260), (1, 1, 4), (1000, 1, 1000), (259, 8, 264), (13, 16, 16)],
)
def test_a_batch_of_any_number_of_rows_is_one_update(num_rows: int, num_gpus: int, padded: int) -> None:
    """If this fails read resampling/mini_batches.py: verl's own size makes two updates of 259 rows, of 256 and of 3."""
    config = stock("+method=l0", f"trainer.n_gpus_per_node={num_gpus}", "actor_rollout_ref.actor.use_dynamic_bsz=True")
    verls, sizes = trainer(config), MiniBatches(config)

    sizes.fit_one_update(7)
    sizes.fit_one_update(num_rows)
    multiple = PPOTrainer._get_required_batch_multiple(verls, num_gpus)
    PPOTrainer._update_actor(verls, KVBatchMeta(partition_id="train", keys=[], tags=[]), {})

    assert multiple == padded
    assert verls.actor_rollout_wg.asked["mini_batch_size"] == padded >= num_rows


def test_a_sampler_shares_the_root_of_the_config_that_the_trainer_reads() -> None:
    """verl hands a sampler only `config.trainer.v1.<mode>`."""
    config = stock("+method=l0", "trainer.n_gpus_per_node=1")

    MiniBatches(config.trainer.v1.sync._get_root()).fit_one_update(259)

    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 65


def test_verls_padding_has_no_step() -> None:
    """If this fails read advantages/estimators.py."""
    output = StepReturnOutput(
        prompt_ids=[1, 2], response_ids=[3, 4], response_mask=[1, 1], turn_ends=[2], step_returns=[0.5], metrics={}
    )
    row = {**output.as_dict(), "position_ids": torch.arange(4), "input_ids": torch.arange(4)}

    padding, _ = construct_minimal_padding_template(row, {}, eos_token_id=0)
    rewards = torch.stack([row["rm_scores"], torch.tensor([0.0, 0.9]), torch.zeros(2)])
    masks = torch.stack([row["response_mask"], torch.tensor([0, 1]), torch.tensor([*padding["response_mask"], 0])])

    assert padding["response_mask"].tolist() == padding["rm_scores"].tolist() == [0]
    advantages, _ = step_reinforce_pp(rewards, masks, config=OmegaConf.create({}))
    assert advantages.tolist() == [[pytest.approx(-(0.5**0.5))] * 2, [0.0, pytest.approx(0.5**0.5)], [0.0, 0.0]]
