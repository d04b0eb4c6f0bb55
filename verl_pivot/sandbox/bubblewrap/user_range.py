"""User ids for programs: a user namespace with ids of its own, made by root before it becomes an ordinary user.

The kernel counts descriptors in flight and large pipes for each user. Programs that share the service's user can use up
what others need; with a user id for each program, they cannot.
"""

import os
import pwd
import stat

from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.lane.syscalls import CLONE_NEWUSER, unshare

FIRST_ID = 1_900_000_000
"""First id of the machine that stands for a program. systemd leaves the ids from 1,879,048,192 on to others."""
IDS_OF_LANE = 8192
"""Ids that the programs of one lane take in turn: more than it runs at once."""
NUM_LANES = 128
_NUM_IDS = IDS_OF_LANE * NUM_LANES
_READ_BY_ALL = stat.S_IROTH | stat.S_IXOTH
_VARIABLE = "VERL_PIVOT_SANDBOX_HANDED_USER_RANGE"


def make_user_range(account: pwd.struct_passwd) -> None:
    """Make the range for this process after it has become `account`.

    It makes none where this root may not give out ids,
    or where not all users may read Python.

    A file descriptor keeps it, which is inherited when the process restarts.
    """
    if any(FIRST_ID <= each.pw_uid < FIRST_ID + _NUM_IDS for each in pwd.getpwall()):
        return
    python = PythonView.of()
    shown = (*python.bases, *([python.environment] if python.environment is not None else []))
    if any(path.stat().st_mode & _READ_BY_ALL != _READ_BY_ALL for path in shown):
        return
    ready, at_end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(at_end[1])
        _own_user_namespace(account, ready[1], at_end[0])
    os.close(ready[1])
    os.close(at_end[0])
    try:
        if os.read(ready[0], 1):
            for name, own_id in (("uid_map", account.pw_uid), ("gid_map", account.pw_gid)):
                with open(f"/proc/{child}/{name}", "w") as file:
                    file.write(f"0 {own_id} 1\n1 {FIRST_ID} {_NUM_IDS}\n")
            fd = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
            os.set_inheritable(fd, True)
            os.environ[_VARIABLE] = str(fd)
    except PermissionError:
        return  # in a container with few ids
    finally:
        os.close(ready[0])
        os.close(at_end[1])
        os.waitpid(child, 0)


def take_user_range() -> int | None:
    """Descriptor of the user namespace that `make_user_range` made; None if it made none. To be called once."""
    fd = os.environ.pop(_VARIABLE, None)
    if fd is None:
        return None
    os.set_inheritable(int(fd), False)
    return int(fd)


def first_user_id(lane: int) -> int:
    """First id, inside the namespace, of the programs of a lane; lanes are numbered from 0."""
    return 1 + lane % NUM_LANES * IDS_OF_LANE


def _own_user_namespace(account: pwd.struct_passwd, ready: int, at_end: int) -> None:
    """Own a new user namespace until `at_end` closes. Never returns."""
    try:
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        unshare(CLONE_NEWUSER)
        os.write(ready, b"+")
        os.read(at_end, 1)
    finally:
        os._exit(0)
