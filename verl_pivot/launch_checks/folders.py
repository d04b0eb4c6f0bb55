"""Folders that a launch writes to -> an error if one of them cannot be made or written."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from verl_pivot.errors import ConfigError


def check_folders(folders: Mapping[str, str | None]) -> None:
    """Refuse a folder for results that is a file, lies below one, or cannot be written.

    Args:
        folders: {key of the command line: path}; None or "" where the launch writes nothing.

    Raises:
        ConfigError: Naming the key and the obstacle.
    """
    for key, path in folders.items():
        if path and "://" not in path:
            _check_folder(key, path)


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
