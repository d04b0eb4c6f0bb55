"""Settings that `+local=cpu` changes in the launch command of a cluster."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_pivot.local.trial_settings import FOLDER_VARIABLE, make_trial

OF_A_CLUSTER = (
    "trainer.total_training_steps=500", "trainer.save_freq=20", "trainer.default_local_dir=runs/a", "trainer.nnodes=4",
    "trainer.resume_mode=auto", "trainer.rollout_data_dir=runs/a/rollouts", "trainer.n_gpus_per_node=8",
    "trainer.logger=[console,wandb]", "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
)  # fmt: skip


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer", overrides=["+method=pivotrl", "+local=cpu", "data.train_files=p.parquet", *overrides]
        )


def test_a_trial_of_a_clusters_command_saves_and_resumes_nothing_and_leaves_its_folders_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "outputs/local/now")
    config = composed(*OF_A_CLUSTER)

    without_effect = make_trial(config, OF_A_CLUSTER)

    trainer = config.trainer
    assert (trainer.total_training_steps, trainer.save_freq, trainer.resume_mode) == (2, -1, "disable")
    assert (trainer.default_local_dir, trainer.rollout_data_dir, trainer.validation_data_dir) == (
        "outputs/local/now/checkpoints", "outputs/local/now/rollouts", None,
    )  # fmt: skip
    assert (trainer.nnodes, trainer.n_gpus_per_node, trainer.logger) == (1, 1, ["console"])
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 1
    assert config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size == 1
    assert sorted(without_effect) == sorted(OF_A_CLUSTER)


def test_what_the_command_says_as_a_trial_would_is_not_called_without_effect() -> None:
    overrides = ("trainer.save_freq=-1", "trainer.resume_mode=disable", "pivot.trial_steps=7")
    config = composed(*overrides)

    assert make_trial(config, overrides) == []
    assert config.trainer.total_training_steps == 7


def test_a_trial_of_one_epoch_takes_all_its_steps_on_rows_of_one_step() -> None:
    config = composed("trainer.total_epochs=1")

    assert make_trial(config, ["trainer.total_epochs=1"]) == ["trainer.total_epochs=1"]
    assert (config.trainer.total_training_steps, config.trainer.total_epochs) == (2, 2)


def test_without_trial_steps_the_launch_trains_as_the_command_says() -> None:
    config = composed("pivot.trial_steps=null", *OF_A_CLUSTER)
    before = config.copy()

    assert make_trial(config, OF_A_CLUSTER) == []
    assert config == before
