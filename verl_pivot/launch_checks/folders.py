"""Folders that a launch writes to -> an error if one of them cannot be made or written."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from verl_pivot.data.rollout_dumps import FOLDER
from verl_pivot.errors import ConfigError

_TRAINING, _VALIDATION = "trainer.rollout_data_dir", "trainer.validation_data_dir"


def check_folders(folders: Mapping[str, str | None]) -> None:
    """Refuse a folder for results that is a file, lies below one, cannot be written, or gets two dumps of one name.

    Args:
        folders: {key of the command line: path}; None or "" where the launch writes nothing.

    Raises:
        ConfigError: Naming the key and the obstacle.
    """
    for key, path in folders.items():
        if path and "://" not in path:
            _check_folder(key, path)
    _check_dumps(folders.get(_TRAINING), folders.get(_VALIDATION))


def _check_folder(key: str, path: str) -> None:
    """Write and remove a file in the folder, or in the one in which it would be made."""
    place = next(each for each in (Path(path), *Path(path).absolute().parents) if os.path.lexists(each))
    if not place.is_dir():
        raise ConfigError(f"{key}={path} cannot be made, since {place} is not a folder: choose another path")
    try:
        TemporaryFile(dir=place).close()
    except OSError as error:
        raise ConfigError(
            f"{key}={path} cannot be written, since {place} refuses files ({error.strerror}): choose another path"
        ) from error


def _check_dumps(training: str | None, validation: str | None) -> None:
    """Refuse dumps of training and validation in one folder: those of a step have the same name."""
    if training and validation and _folders_of_dumps(training) & _folders_of_dumps(validation):
        raise ConfigError(
            f"{_TRAINING}={training} and {_VALIDATION}={validation} put the dumps of training and of validation into "
            "one folder, where the second of a step replaces the first: choose another path for one of them"
        )


def _folders_of_dumps(path: str) -> set[Path]:
    """The folder of verl's own dumps, and that of ours within it."""
    folder = Path(path).resolve()
    return {folder, folder / FOLDER}
