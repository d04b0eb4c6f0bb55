"""Name of a root file system -> nothing, or an error that says why no program can run in it on this node."""

import os
from collections.abc import Iterable
from pathlib import Path

from verl_pivot.errors import ConfigError, SandboxRequestError

MINIMUM_KERNEL = (6, 6)
"""First Linux version whose tmpfs can hold the writable layer of an overlay that an ordinary user mounts."""
_FOLDERS = ("usr/local/bin", "usr/bin", "bin")
"""Folders of PATH in every root file system."""
_MAX_LINKS = 40


class TaskRoots:
    """A node's folder of root file systems; `folder` is None on a node without one."""

    def __init__(self, folder: Path | None) -> None:
        """Look at the folder.

        Raises:
            ConfigError: If it cannot be read, or the kernel is too old.
        """
        self.folder = None if folder is None else folder.resolve()
        if self.folder is None:
            return
        if not (self.folder.is_dir() and os.access(self.folder, os.R_OK | os.X_OK)):
            raise ConfigError(f"--roots {folder}: uid {os.geteuid()} cannot read this folder; give a readable one")
        if (kernel := _kernel_version()) < MINIMUM_KERNEL:
            found, least = (".".join(map(str, version)) for version in (kernel, MINIMUM_KERNEL))
            raise ConfigError(f"--roots needs Linux {least} or later, and this is {found}; leave out --roots here")

    def check(self, name: str, tools: Iterable[str]) -> None:
        """Refuse a root that is not there, is no unpacked image, or lacks one of the tools.

        Args:
            name: Name of the root; "" for none, which passes.
            tools: Programs that it must have in its PATH.

        Raises:
            SandboxRequestError: If the root is refused.
        """
        if not name:
            return
        if self.folder is None:
            raise SandboxRequestError(
                f"root {name!r}: this node has no roots: start its service with `sandbox serve --roots FOLDER`"
            )
        root = self.folder / name
        if root.is_symlink() or not root.is_dir():
            raise SandboxRequestError(f"root {name!r} is not a folder in {self.folder}; unpack its image there")
        owner, own = root.stat(), (os.geteuid(), os.getegid())
        if (owner.st_uid, owner.st_gid) != own:  # the writable layer cannot change files of another owner
            raise SandboxRequestError(
                f"root {name!r} belongs to {owner.st_uid}:{owner.st_gid}, and the service runs as {own[0]}:{own[1]}: "
                f"chown -R {own[0]}:{own[1]} {root}"
            )
        if not any(exists_in(root, folder) for folder in ("bin", "usr/bin")):
            raise SandboxRequestError(f"root {name!r} has no /bin: {root} is not an unpacked image")
        for tool in tools:
            if not any(exists_in(root, f"{folder}/{tool}") for folder in _FOLDERS):
                places = ", ".join(f"/{folder}" for folder in _FOLDERS)
                raise SandboxRequestError(f"root {name!r} has no {tool!r} in {places}")


def exists_in(root: Path, path: str) -> bool:
    """Whether a program whose root is `root` finds a file or folder at a path; links are followed inside that root."""
    parts, place, num_links = path.split("/")[::-1], [""], 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = place[:-1] or [""]
            continue
        found = Path(root, *place[1:], part)
        if found.is_symlink():
            num_links += 1
            if num_links > _MAX_LINKS:
                return False
            target = os.readlink(found)
            place = [""] if target.startswith("/") else place
            parts += target.split("/")[::-1]
        elif found.exists():
            place = [*place, part]
        else:
            return False
    return True


def _kernel_version() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int("".join(digit for digit in minor if digit.isdigit()))
