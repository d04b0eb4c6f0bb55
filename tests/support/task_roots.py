"""A small root file system for tests: a shell, a few tools with their libraries, and a `python` that is a script."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from verl_pivot.sandbox.bubblewrap.privileges import DEFAULT_USER

TOOLS = ("bash", "cat", "ls", "rm", "mkdir", "head", "id", "readlink")


def make_root(folder: Path) -> Path:
    """Make the root at `folder`, for the user that services run as in tests."""
    programs = folder / "usr/bin"
    programs.mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    for tool in TOOLS:
        found = Path(f"/usr/bin/{tool}").resolve()
        shutil.copy(found, programs / tool)
        for library in _libraries(found):
            place = folder / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    (programs / "python").write_text("#!/bin/bash\necho python of the image: $(cat $1)\n")
    (programs / "python").chmod(0o755)
    (folder / "testbed").mkdir()
    (folder / "testbed/code.txt").write_text("from the image\n")
    give_to_service(folder)
    return folder


def give_to_service(folder: Path) -> None:
    """Give everything in the folder to the user that services run as."""
    if os.geteuid() == 0:
        account = pwd.getpwnam(DEFAULT_USER)
        for path in (folder, *folder.rglob("*")):
            os.lchown(path, account.pw_uid, account.pw_gid)


def _libraries(program: Path) -> list[str]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [word for word in listed.split() if word.startswith("/")]
