"""User ids for programs: a user namespace with ids of its own.

The kernel counts descriptors in flight and large pipes for each user. Programs that share the service's user can use up
what others need; with a user id for each program, they cannot. Root makes the namespace before it becomes an ordinary
user; an ordinary user makes it with the subordinate ids that /etc/subuid and /etc/subgid give to it.
"""

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.lane.syscalls import CLONE_NEWUSER, unshare

FIRST_ID = 1_900_000_000
"""First id of the machine that stands for a program. systemd leaves the ids from 1,879,048,192 on to others."""
NUM_IDS = 1024 * 1024
"""Number of ids that root gives to a service."""
MAX_IDS_OF_LANE = 8192
"""Maximum number of ids that the programs of one lane take in turn."""
_GENERATIONS = 2
"""Number of id ranges for each running lane: a lane that is ending still has its ids when its successor begins."""
_READ_BY_ALL = stat.S_IROTH | stat.S_IXOTH
_VARIABLE = "VERL_PIVOT_SANDBOX_HANDED_USER_RANGE"
_MAKERS = (("newuidmap", "/etc/subuid"), ("newgidmap", "/etc/subgid"))
"""Programs that write an ordinary user's maps of ids, and the files that say which ids it has."""
_TRUSTED_PATH = "/usr/bin:/usr/local/bin:/bin"


@dataclass(frozen=True, slots=True)
class UserRange:
    """A user namespace with ids for programs."""

    fd: int
    """Descriptor of the namespace."""
    num_ids: int
    """Number of ids for programs, which are 1, 2, ... inside the namespace."""

    def of_lane(self, lane: int, num_lanes: int, num_at_once: int) -> tuple[int, int]:
        """First id and number of ids of a lane, whose programs take them in turn.

        Args:
            lane: Number of the lane from 0, counting those that have ended.
            num_lanes: Lanes that run at once.
            num_at_once: Programs that a lane runs at once.

        Returns:
            The first id inside the namespace, and how many there are; (0, 0) if programs would have to share some.
        """
        num_ids = min(MAX_IDS_OF_LANE, self.num_ids // (_GENERATIONS * num_lanes))
        if num_ids < 2 * num_at_once:
            return 0, 0
        return 1 + lane % (self.num_ids // num_ids) * num_ids, num_ids


def make_user_range(account: pwd.struct_passwd) -> None:
    """Make the range for this process after it has become `account`.

    No range is made where this root may not give out ids, where an account has one of the ids, or where not all users
    may read Python. The range exists as long as a file descriptor of it, which is inherited when the process restarts.
    """
    if any(FIRST_ID <= each.pw_uid < FIRST_ID + NUM_IDS for each in pwd.getpwall()) or not _python_is_open_to_all():
        return

    def write_maps(child: int) -> bool:
        try:
            for name, own_id in (("uid_map", account.pw_uid), ("gid_map", account.pw_gid)):
                with open(f"/proc/{child}/{name}", "w") as file:
                    file.write(f"0 {own_id} 1\n1 {FIRST_ID} {NUM_IDS}\n")
        except PermissionError:
            return False  # in a container with few ids
        return True

    fd = _namespace_of(account, write_maps)
    if fd is not None:
        os.set_inheritable(fd, True)
        os.environ[_VARIABLE] = str(fd)


def take_user_range() -> UserRange | None:
    """User namespace that `make_user_range` made, else one with this user's subordinate ids. To be called once.

    None where there are none, or where not all users may read Python.
    """
    handed = os.environ.pop(_VARIABLE, None)
    if handed is not None:
        os.set_inheritable(int(handed), False)
        return UserRange(int(handed), NUM_IDS)
    return _subordinate_range() if os.geteuid() != 0 and _python_is_open_to_all() else None


def subordinate_ids(text: str, account: pwd.struct_passwd) -> tuple[int, int]:
    """First id and number of ids of a user's largest range; (0, 0) if it has none.

    Args:
        text: Content of /etc/subuid or /etc/subgid, with lines such as `name:100000:65536`.
        account: The user; a line names it by name or by number.
    """
    ranges = [(0, 0)]
    for line in text.splitlines():
        owner, *numbers = line.strip().split(":")
        if owner in (account.pw_name, str(account.pw_uid)) and len(numbers) == 2 and all(map(str.isdigit, numbers)):
            ranges.append((int(numbers[0]), int(numbers[1])))
    return max(ranges, key=lambda each: each[1])


def _subordinate_range() -> UserRange | None:
    account = pwd.getpwuid(os.geteuid())
    commands = [shutil.which(name, path=_TRUSTED_PATH) for name, _ in _MAKERS]
    tables = [Path(path) for _, path in _MAKERS]
    if None in commands or not all(table.is_file() for table in tables):
        return None
    ranges = [subordinate_ids(table.read_text(), account) for table in tables]
    num_ids = min(number for _, number in ranges)
    if num_ids == 0:
        return None

    def write_maps(child: int) -> bool:
        own_ids = (account.pw_uid, account.pw_gid)
        return all(
            _succeeds([str(command), str(child), "0", str(own_id), "1", "1", str(first), str(num_ids)])
            for command, own_id, (first, _) in zip(commands, own_ids, ranges, strict=True)
        )

    fd = _namespace_of(account, write_maps)
    return None if fd is None else UserRange(fd, num_ids)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, env={}, capture_output=True, check=False).returncode == 0


def _python_is_open_to_all() -> bool:
    python = PythonView.of()
    shown = (*python.bases, *([python.environment] if python.environment is not None else []))
    return all(path.stat().st_mode & _READ_BY_ALL == _READ_BY_ALL for path in shown)


def _namespace_of(account: pwd.struct_passwd, write_maps: Callable[[int], bool]) -> int | None:
    """Descriptor of a new user namespace of `account`, whose maps `write_maps` writes for a process in it.

    None if the namespace or its maps could not be made.
    """
    ready, at_end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(at_end[1])
        _own_user_namespace(account, ready[1], at_end[0])
    os.close(ready[1])
    os.close(at_end[0])
    try:
        if os.read(ready[0], 1) and write_maps(child):
            return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
        return None
    finally:
        os.close(ready[0])
        os.close(at_end[1])
        os.waitpid(child, 0)


def _own_user_namespace(account: pwd.struct_passwd, ready: int, at_end: int) -> None:
    """Make a new user namespace, and stay in it until `at_end` closes. Never returns."""
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        unshare(CLONE_NEWUSER)
        os.write(ready, b"+")
        os.read(at_end, 1)
    finally:
        os._exit(0)
