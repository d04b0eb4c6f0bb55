"""Root file system of a task: an unpacked image, read-only, under a bounded writable layer; entered by pivot_root.

Everything that is written, in /tmp and elsewhere, lies in the pod's one tmpfs, whose size and number of files are
limited. The content of an image is not trusted: nothing is mounted over a symbolic link in it.
"""

import os
import stat
import sys

from verl_pivot.sandbox.lane import syscalls

ROOTS = "/roots"
"""Folder inside a lane that holds the images."""
NUM_ROOT_FOLDERS = 64
"""Number of folders that `enter_root` may make itself, on top of the program's limit on files."""
_NODE = "/sandbox/node"
"""Folder inside a root file system that shows the Python modules of the node, for the interpreters of sessions."""
_VIEW = b"/tmp/view"
_LAYERS = b"upperdir=/tmp/upper,workdir=/tmp/work,userxattr"


def hide_roots() -> None:
    """Unmount the folder of images, in a pod that asked for none of them."""
    if os.path.isdir(ROOTS):
        syscalls.unmount(ROOTS.encode())


def enter_root(name: str, *, has_proc: bool) -> None:
    """Make the image `name` the root of this process, with the /tmp, /dev and /proc that it has mounted.

    Raises:
        OSError: If the image does not exist, or the kernel does not let ordinary users mount an overlay.
    """
    for folder in ("upper", "work", "view", "tmp"):
        os.mkdir(f"/tmp/{folder}", 0o755)
    os.chmod("/tmp/tmp", 0o1777)
    lower = f"{ROOTS}/{name}".encode()
    syscalls.mount(b"overlay", _VIEW, syscalls.MS_NOSUID | syscalls.MS_NODEV, b"lowerdir=%b,%b" % (lower, _LAYERS))
    modules = _module_folders()
    shown = {"/tmp": "/tmp/tmp", "/dev": "/dev", **{f"{_NODE}{folder}": folder for folder in modules}}
    if has_proc:
        shown["/proc"] = "/proc"
    for place, source in shown.items():
        syscalls.bind(source.encode(), _made_folder(place))
    syscalls.change_root(_VIEW)
    _move_modules(modules)


def _made_folder(place: str) -> bytes:
    """Path below _VIEW of the folder `place`, made if it is missing; a symbolic link or file in its way is removed."""
    path = _VIEW.decode()
    for part in place.strip("/").split("/"):
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            os.mkdir(path, 0o755)
            continue
        if not stat.S_ISDIR(mode):
            os.unlink(path)
            os.mkdir(path, 0o755)
    return path.encode()


def _module_folders() -> list[str]:
    """Folders that this interpreter imports from, without those that lie below another of them."""
    found = sorted({path for path in sys.path if os.path.isdir(path) and path != "/tmp"})
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def _move_modules(folders: list[str]) -> None:
    """Make this interpreter import from the new places of the folders, also the submodules of loaded packages."""

    def moved(path: str) -> str:
        return f"{_NODE}{path}" if any(path == each or path.startswith(f"{each}/") for each in folders) else path

    sys.path[:] = map(moved, sys.path)
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        places = module.__dict__.get("__path__") if module is not None else None
        if isinstance(places, list):
            places[:] = map(moved, places)
