"""Hydra plugin that puts the configs of this package on the search path; this folder is where Hydra finds it."""

import sys
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from verl_pivot.configuration import config_groups, configs_dir, register_resolvers


class VerlPivotSearchPathPlugin(SearchPathPlugin):  # type: ignore[misc]  # hydra is untyped here
    """Makes `+method=pivotrl` and `+local=cpu` resolve in the stock `verl.trainer.main_ppo`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register_resolvers()
        paths = [str(element.path) for element in search_path.get_path()]
        search_path.append(provider="verl-pivot", path=f"file://{configs_dir()}")
        if any(map(_is_verls_trainer, paths)):
            _check_command_line([Path(path.removeprefix("file://")) for path in paths if "pkg://" not in path])


def _is_verls_trainer(path: str) -> bool:
    """Whether a search path is verl's config folder, written as a package or, under `python -m`, as a path."""
    return path.replace(".", "/").endswith("verl/trainer/config")


def _check_command_line(folders: list[Path]) -> None:
    from verl_pivot.errors import ConfigError
    from verl_pivot.launch import check_groups
    from verl_pivot.launch_checks.groups import check_arguments, config_folders

    try:
        check_groups(sys.argv[1:], config_groups(), [*folders, *config_folders(sys.argv[1:])])
        check_arguments(sys.argv[1:])
    except ConfigError as error:
        raise SystemExit(f"verl-pivot: {error}") from error
