"""Path of a browser -> the command that runs it inside bubblewrap. Starts nothing.

The pages that a policy opens are hostile code, and the browser inside runs without a sandbox of its own, which would
need further namespaces: bubblewrap, the filter of system calls, an ordinary user and resource limits confine it.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from verl_pivot.sandbox.bubblewrap.command_line import (
    FILES_OF_ETC,
    FOLDERS_OF_ETC,
    PROGRAM_UID,
    find_bwrap,
    shown_folders,
    view_of_system,
)
from verl_pivot.sandbox.bubblewrap.privileges import as_ordinary_user
from verl_pivot.sandbox.bubblewrap.python_view import is_below
from verl_pivot.sandbox.execution import MIB

_FILES_OF_NETWORK = ("resolv.conf", "hosts", "nsswitch.conf")
_FILTER_FD = 9
"""Descriptor from which bubblewrap reads the filter; `dash` takes no number above 9."""
_TMP_MIB = 512
_MAX_PROCESSES = 4096
"""Maximum number of processes and threads of a browser; a browser with 64 pages has about 1,500."""
_MAX_FILES = 8192


def browser_script(
    program: Path, *, folders: Mapping[str, Path], has_network: bool, memory_mib: int, filter_file: Path, pid_file: Path
) -> str:
    """Shell script that runs a browser in bubblewrap, with the script's own arguments and descriptors 3 and 4.

    Args:
        program: The browser.
        folders: {path in the sandbox: folder of the host} that the browser can read, beside the system.
        has_network: Whether the browser shares the machine's network; otherwise it has none.
        memory_mib: Maximum MiB of data of each process of the browser.
        filter_file: File that holds the filter of system calls.
        pid_file: File to which the script writes its process id, which bubblewrap then has.

    Raises:
        ConfigError: If bubblewrap is not installed.
    """
    uid = str(PROGRAM_UID)
    own = program.resolve().parent
    seen = dict(folders) if is_below(own, Path("/usr")) else {**folders, str(own): own}
    options = ["--unshare-all", "--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    if has_network:
        options.append("--share-net")
    names = ("fonts", "chromium.d", *FOLDERS_OF_ETC, *FILES_OF_ETC, *(_FILES_OF_NETWORK if has_network else ()))
    options += view_of_system(names)
    options += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/dev/shm", "/tmp"):
        options += ["--size", str(_TMP_MIB * MIB), "--perms", "1777", "--tmpfs", place]
    options += shown_folders(seen)
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--hostname", "box"]
    options += ["--new-session", "--die-with-parent", "--clearenv"]
    for name, value in {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}.items():
        options += ["--setenv", name, value]
    limits = ["/usr/bin/prlimit", f"--data={memory_mib * MIB}", f"--nproc={_MAX_PROCESSES}", f"--nofile={_MAX_FILES}"]
    limits += ["--core=0", "--memlock=0", f"--fsize={_TMP_MIB * MIB}"]
    program_inside = str(program if is_below(program, Path("/usr")) else program.resolve())
    words = [*as_ordinary_user(list(seen.values())), str(find_bwrap()), *options, "--seccomp", str(_FILTER_FD), "--"]
    line = shlex.join([*words, *limits, "--", program_inside])
    return (
        "#!/bin/sh\n"
        f"echo $$ > {shlex.quote(str(pid_file))}\n"
        f"exec {_FILTER_FD}< {shlex.quote(str(filter_file))}\n"
        f'exec {line} "$@"\n'
    )
