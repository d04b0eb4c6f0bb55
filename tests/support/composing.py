"""Overrides of a launch -> its composed config, after those checks of a launch that read no files."""

from collections.abc import Sequence

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_pivot.launch_checks.groups import check_choices, check_settings_of_groups, chosen_groups
from verl_pivot.launch_checks.owned_settings import check_owned_settings, owning_parts
from verl_pivot.launch_checks.values import check_mini_batch, check_values
from verl_pivot.launch_checks.void_settings import check_void_settings


def checked_config(overrides: Sequence[str]) -> DictConfig:
    """Compose a config of the stock trainer; settings that are wrong or do nothing are refused as in a launch."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides), return_hydra_config=True)
    choices = OmegaConf.to_container(config.hydra.runtime.choices)
    assert isinstance(choices, dict)
    with open_dict(config):
        del config["hydra"]
    chosen = chosen_groups(choices, config)
    check_choices(chosen)
    check_settings_of_groups(config, chosen)
    check_values(config)
    check_mini_batch(config)
    check_owned_settings(config, owning_parts(chosen), overrides)
    check_void_settings(config, overrides)
    return config
