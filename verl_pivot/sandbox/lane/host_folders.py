"""Overlays in place of the folders of the host that a lane shows, so that no program learns where they lie on the host.

/proc/self/mountinfo names the file system of each mounted folder, and the folder's path on it. For an overlay it has
the options of the mount instead, and these name no folder of the host.
"""

import os

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.task_root import ROOTS

_WORK = "/tmp/covers"
_EMPTY = "/tmp/covers/empty"
_OPTIONS = f"lowerdir=.:{_EMPTY},userxattr".encode()
"""A read-only overlay needs two folders; `.` is the folder that this process is in."""
_FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
_OWN = ("/", "/proc", "/dev", "/tmp")
"""Places at which the lane mounted file systems of its own, which show nothing of the host but devices."""


def cover_host_folders() -> str | None:
    """Put an overlay in place of each folder of the host that this lane shows; nothing of the lane may run yet.

    Images for programs with a root file system of their own are left out. Such programs mount them as overlays, and the
    kernel stacks at most two overlays. Other programs do not see the images.

    Returns:
        None if all folders are covered; otherwise the reason why none is covered. Nothing has changed then.
    """
    places = host_folders(_read("/proc/self/mountinfo"))
    os.makedirs(_EMPTY)
    covers: list[tuple[str, str]] = []
    for number, place in enumerate(places):
        cover = f"{_WORK}/{number}"
        os.mkdir(cover)
        os.chdir(place)
        try:
            syscalls.mount(b"overlay", cover.encode(), _FLAGS, _OPTIONS)
        except OSError as error:
            for made, _ in covers:
                syscalls.unmount(made.encode())
            os.chdir("/tmp")
            return f"{place}: {error}"
        covers.append((cover, place))
    os.chdir("/tmp")
    for place in reversed(places):
        syscalls.unmount(place.encode())
    for cover, place in covers:
        syscalls.move_mount(cover.encode(), place.encode())
    return None


def host_folders(mountinfo: str) -> list[str]:
    """Places of a lane's mounts at which it shows folders of the host: outer ones first.

    Args:
        mountinfo: Content of /proc/self/mountinfo.
    """
    places = [_unescaped(line.split()[4]) for line in mountinfo.splitlines()]
    shown = [each for each in places if each not in (*_OWN, ROOTS) and not each.startswith(("/dev/", "/proc/"))]
    return [each for each in shown if os.path.isdir(each)]


def _unescaped(word: str) -> str:
    """Path for a word of mountinfo, in which the kernel writes blanks and the like as octal numbers."""
    for character in "\t\n \\":
        word = word.replace(f"\\{ord(character):03o}", character)
    return word


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
