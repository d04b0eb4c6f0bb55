"""A launch's config -> the config of a trial of the same launch: a few steps on one machine, without checkpoints."""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

FOLDER_VARIABLE = "VERL_PIVOT_RUN_FOLDER"
"""Environment variable with the folder of a launch on this machine."""
_FOLDER = f"${{oc.env:{FOLDER_VARIABLE},outputs/local}}"
PARALLEL_SIZES = (
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size",
    "critic.ulysses_sequence_parallel_size",
    "critic.fsdp.ulysses_sequence_parallel_size",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    "actor_rollout_ref.rollout.data_parallel_size",
    "actor_rollout_ref.rollout.expert_parallel_size",
)
"""Keys of verl with numbers of GPUs that share a model; 1 each in a small launch."""
_SETTINGS: dict[str, Any] = {
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
    "trainer.default_local_dir": f"{_FOLDER}/checkpoints",
    "trainer.rollout_data_dir": f"{_FOLDER}/rollouts",
    "trainer.validation_data_dir": f"{_FOLDER}/validation",
    "trainer.logger": ["console"],
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.name": "sglang",
    **dict.fromkeys(PARALLEL_SIZES, 1),
}


def make_trial(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Change a config in place, unless `pivot.trial_steps` is null; returns the overrides that lose their effect.

    Args:
        config: verl's config with `+local=cpu`.
        overrides: Words of the command line.
    """
    steps = config.pivot.trial_steps
    if steps is None:
        return []
    settings = {"trainer.total_training_steps": steps, "trainer.total_epochs": steps, **_SETTINGS}
    before = {key: str(OmegaConf.select(config, key)) for key in settings}
    for key, value in settings.items():
        if before[key] != "None" or key == "trainer.total_training_steps":
            OmegaConf.update(config, key, value)
    named = {override.lstrip("+").partition("=")[0]: override for override in overrides}
    return [named[key] for key in settings if key in named and before[key] != str(OmegaConf.select(config, key))]
