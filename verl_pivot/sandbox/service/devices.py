"""Devices of the host, such as GPUs, in the languages file -> checked paths that programs of a language may use."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

_DEV = Path("/dev")
_OWN = tuple(
    _DEV / name for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm")
)
"""Entries of /dev that a sandbox has already."""
MAX_DEVICES = 64


def checked_devices(paths: Iterable[str]) -> tuple[Path, ...]:
    """Check the devices of one language.

    Raises:
        ValueError: If a path is no device that this user may use, or every sandbox has it already.
    """
    devices = tuple(map(_usable, paths))
    if len(devices) > MAX_DEVICES:
        raise ValueError(f"{len(devices)} devices are more than {MAX_DEVICES}: leave some out")
    return devices


def _usable(name: str) -> Path:
    path = Path(name)
    if os.path.normpath(name) != name or _DEV not in path.parents:
        raise ValueError(f"{name} must be a path below /dev, as /dev/nvidia0")
    if any(own == path or own in path.parents for own in _OWN):
        raise ValueError(f"{name} is what every sandbox has of its own: leave it out")
    if path.is_symlink() or not path.exists() or not stat.S_ISCHR(path.stat().st_mode):
        raise ValueError(
            f"{name} is no character device of this machine: name one that `ls -l {name}` shows with a 'c'"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise ValueError(
            f"{name} may not be read and written by uid {os.geteuid()}, as which the service runs: let it, or start "
            "the service as a user who may"
        )
    return path
