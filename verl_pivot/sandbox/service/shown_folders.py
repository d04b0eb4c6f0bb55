"""Folders of the host in the languages file -> checked paths at which pods of a language show them, read-only."""

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from verl_pivot.sandbox.bubblewrap.python_view import VENV, PythonView, is_below

_TAKEN = (
    "tmp",
    "dev",
    "proc",
    "sys",
    "sandbox",
    "roots",
    "usr",
    "etc",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
)
"""Entries of / that a pod has already; a folder of the host cannot be shown there or below."""
_MAX_FOLDERS = 16


class ShownFolder(NamedTuple):
    """A folder of the host that programs may read."""

    source: Path
    """Folder of the host."""
    place: str
    """Absolute path of the folder in a pod."""


def shown_folders(folders: Mapping[str, str], python: PythonView) -> tuple[ShownFolder, ...]:
    """Check the folders of one language.

    Args:
        folders: {folder of the host: path in the pod}.
        python: The Python that pods show, whose folders cannot be covered.

    Raises:
        ValueError: If a folder cannot be read, or its path in the pod is not allowed.
    """
    return tuple(ShownFolder(_readable(source), _free(place, python)) for source, place in folders.items())


def check_together(folders: Iterable[ShownFolder]) -> dict[str, Path]:
    """{path in the pod: folder of the host} of all languages, which share their lanes.

    Raises:
        ValueError: If two of them have the same path or one inside the other, or there are too many.
    """
    found: dict[str, Path] = {}
    for source, place in folders:
        for other, known in found.items():
            if other == place and known == source:
                continue
            if is_below(Path(place), Path(other)) or is_below(Path(other), Path(place)):
                raise ValueError(f"{place} and {other} overlap: give each folder a separate path in the pod")
        found[place] = source
    if len(found) > _MAX_FOLDERS:
        raise ValueError(f"at most {_MAX_FOLDERS} folders can be shown, got {len(found)}: put several into one folder")
    return found


def _readable(source: str) -> Path:
    path = Path(source)
    if not path.is_absolute():
        raise ValueError(f"{source} must be an absolute path of the host")
    if not path.is_dir():
        raise ValueError(f"{source} is not a folder that uid {os.geteuid()} can see: create it, or remove the entry")
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH) != stat.S_IROTH | stat.S_IXOTH:
        raise ValueError(
            f"{source} must be readable for all users, since programs have their own user ids: chmod -R o+rX {source}"
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise ValueError(f"{source} cannot be read by the service's user (uid {os.geteuid()}): give that user access")
    return path.resolve()


def _free(place: str, python: PythonView) -> str:
    parts = place.split("/")
    if posixpath.normpath(place) != place or parts[0] or len(parts) < 2 or not parts[1] or "\0" in place:
        raise ValueError(
            f"{place!r} must be an absolute path in the pod, such as /data/words, without '..' or '/' at its end"
        )
    own = [Path("/", name) for name in _TAKEN] + [Path(VENV), *python.bases]
    for folder in own:
        if is_below(Path(place), folder) or is_below(folder, Path(place)):
            raise ValueError(
                f"{place} overlaps {folder}, which every pod has already: choose a path such as /data/words"
            )
    return place
