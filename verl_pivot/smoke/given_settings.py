"""Launch of a user -> the settings that it gives, in its words and in configs of the user's own that they name."""

from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from verl_pivot.configuration import config_groups
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.groups import chosen_groups, leaves, names_own_config, search_paths
from verl_pivot.launch_checks.owned_setting import verl_defaults
from verl_pivot.planning.overrides import override_value


def given_settings(launch: Sequence[str]) -> dict[str, str]:
    """{key: value} that a launch gives beside verl's defaults; `method` is the method that it trains with.

    Args:
        launch: Words behind the module's name.

    Raises:
        ConfigError: If Hydra cannot compose the configs that the launch names.
    """
    words = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in launch if "=" in word}
    is_shipped = words.get("method") in (None, *config_groups()["method"])
    if is_shipped and not any(map(names_own_config, launch)):
        return words
    composed = _composed_settings(launch)
    return {**composed, **words, **{key: value for key, value in composed.items() if key == "method"}}


def _composed_settings(launch: Sequence[str]) -> dict[str, str]:
    """{key: value} of the configs that a launch names, without its words for single settings."""
    folder = Path(str(files("verl.trainer"))) / (_option(launch, "--config-path", "-cp") or "config")
    searched = [path if "://" in path else f"file://{Path(path).absolute()}" for path in search_paths(launch)]
    overrides = [word for word in launch if _chooses_config(word)]
    if searched:
        overrides.append(f"hydra.searchpath={override_value(list(searched))}")
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=None):
            config = compose(
                _option(launch, "--config-name", "-cn") or "ppo_trainer",
                overrides=overrides,
                return_hydra_config=True,
            )
    except HydraException as error:
        reason = (str(error).strip() or str(error.__cause__)).partition("\n")[0]
        raise ConfigError(
            f"Hydra cannot compose the configs that the launch names ({reason}): mend them, or name their folder with "
            "--config-dir"
        ) from error
    defaults, method = _values_of(verl_defaults()), chosen_groups(config.hydra.runtime.choices, config).get("method")
    given = {key: str(value) for key, value in _values_of(config).items() if defaults.get(key) != value}
    return given if method is None else {**given, "method": method}


def _values_of(config: DictConfig) -> dict[str, Any]:
    """{key: value} of a config without those that are null; interpolations are not resolved."""
    found = OmegaConf.to_container(config, resolve=False)
    assert isinstance(found, dict), type(found)
    return {key: value for key, value in leaves(found) if value is not None}


def _option(launch: Sequence[str], *names: str) -> str | None:
    """The last value of an option of Hydra; None if the launch does not have it."""
    values = [
        value if equals else following
        for word, following in pairwise([*launch, ""])
        for option, equals, value in [word.partition("=")]
        if option in names
    ]
    return values[-1] if values else None


def _chooses_config(word: str) -> bool:
    """Whether a word may choose a config, such as `+experiment=mine`; values that only a shell knows are left out."""
    key, equals, value = word.partition("=")
    return bool(equals) and not key.startswith("-") and "." not in key and "$" not in value
