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
        raise ValueError(f"at most {MAX_DEVICES} devices are allowed, got {len(devices)}: remove some")
    return devices


def _usable(name: str) -> Path:
    path = Path(name)
    if os.path.normpath(name) != name or _DEV not in path.parents:
        raise ValueError(f"{name} must be a path below /dev, such as /dev/nvidia0")
    if any(own == path or own in path.parents for own in _OWN):
        raise ValueError(f"every sandbox already has {name}: remove it from devices")
    if path.is_symlink() or not path.exists() or not stat.S_ISCHR(path.stat().st_mode):
        raise ValueError(
            f"{name} is not a character device of this machine: give a path that `ls -l {name}` shows with a 'c'"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise ValueError(
            f"the service's user (uid {os.geteuid()}) cannot read and write {name}: give that user access, or run the "
            "service as another user"
        )
    return path
