"""Control groups of a process, found in files like those of /proc and /sys/fs/cgroup."""

import fcntl
import os
from pathlib import Path

import pytest

from verl_pivot.sandbox.bubblewrap.group_tree import GroupTree, memory_limits, own_groups, remove_abandoned

GIB = 1024**3


def machine(folder: Path, *, groups: str, mounts: str) -> Path:
    """A folder like /proc/self; {} in `mounts` stands for the folder in which groups are mounted."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts.replace("{}", str(folder / "cg")))
    return proc


def group(folder: Path, path: str, **files: str) -> Path:
    """Make a group with files; the first "_" of a name stands for ".": memory_max is the file memory.max."""
    made = folder / "cg" / path
    made.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (made / name.replace("_", ".", 1)).write_text(text)
    return made


VERSION_2 = "31 23 0:28 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
VERSION_1 = (
    "30 23 0:27 / /proc rw - proc proc rw\n"
    "32 31 0:29 / {}/memory rw,relatime - cgroup cgroup rw,memory\n"
    "33 31 0:30 / {}/pids rw,relatime - cgroup cgroup rw,pids\n"
    "34 31 0:31 / {}/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


def test_a_group_of_version_2_with_both_controllers_is_found(tmp_path: Path) -> None:
    proc = machine(tmp_path, groups="0::/user.slice/run-1.scope\n", mounts=VERSION_2)
    own = group(tmp_path, "user.slice/run-1.scope", cgroup_controllers="cpu memory pids\n")

    found = own_groups(proc)

    assert found is not None
    assert (found.version, found.memory, found.pids) == (2, own, own)


@pytest.mark.parametrize("controllers", ["", "cpu memory\n", "pids\n"])
def test_a_group_of_version_2_that_cannot_count_is_none(tmp_path: Path, controllers: str) -> None:
    proc = machine(tmp_path, groups="0::/a\n", mounts=VERSION_2)
    group(tmp_path, "a", cgroup_controllers=controllers)

    assert own_groups(proc) is None


def test_groups_of_version_1_are_found_beside_an_empty_version_2(tmp_path: Path) -> None:
    proc = machine(tmp_path, groups="8:pids:/\n4:memory:/jobs/7\n0::/\n", mounts=VERSION_1)

    found = own_groups(proc)

    assert found is not None
    assert (found.version, found.memory, found.pids) == (1, tmp_path / "cg/memory/jobs/7", tmp_path / "cg/pids")


def test_in_a_container_that_mounts_its_own_group_alone_the_path_counts_from_there(tmp_path: Path) -> None:
    mounts = VERSION_1.replace("0:29 /", "0:29 /docker/ab").replace("0:30 /", "0:30 /docker/ab")
    proc = machine(tmp_path, groups="8:pids:/docker/ab\n4:memory:/docker/ab/in\n", mounts=mounts)

    found = own_groups(proc)

    assert found is not None
    assert (found.memory, found.pids) == (tmp_path / "cg/memory/in", tmp_path / "cg/pids")


def test_groups_that_are_not_mounted_are_none(tmp_path: Path) -> None:
    mounts = VERSION_1.replace("0:29 /", "0:29 /docker/ab")
    proc = machine(tmp_path, groups="8:pids:/\n4:memory:/elsewhere\n", mounts=mounts)

    assert own_groups(proc) is None


@pytest.mark.finding("core files and the service's clients", where="no service")
def test_the_memory_of_a_job_is_the_least_limit_of_its_groups(tmp_path: Path) -> None:
    proc = machine(tmp_path, groups="0::/slurm/job_7/step_0\n", mounts=VERSION_2)
    group(tmp_path, "slurm", memory_max="max\n")
    group(tmp_path, "slurm/job_7", memory_max=f"{64 * GIB}\n")
    group(tmp_path, "slurm/job_7/step_0", memory_max=f"{80 * GIB}\n")

    assert sorted(memory_limits(proc)) == [64 * GIB, 80 * GIB]


def test_the_limits_of_version_1_count_up_to_the_mount(tmp_path: Path) -> None:
    proc = machine(tmp_path, groups="8:pids:/\n4:memory:/jobs/7\n", mounts=VERSION_1)
    group(tmp_path, "memory/jobs", memory_limit_in_bytes=f"{3 * GIB}\n")
    group(tmp_path, "memory/jobs/7", memory_limit_in_bytes="9223372036854771712\n")
    (tmp_path / "cg" / "memory.limit_in_bytes").write_text("5\n")

    assert sorted(memory_limits(proc)) == [3 * GIB, 9223372036854771712]


DEAD = 2**22 + 1
"""Process id above the largest that the kernel gives."""


def left_by(tree: GroupTree, pid: int) -> GroupTree:
    """Make the groups of a service with this process id, and the group of a pod below them."""
    own = tree.below(f"verl-pivot-{pid}").make_folders()
    own.below("lane-1").make_folders().below("pod-1").make_folders()
    return own


def of_version_1(folder: Path) -> GroupTree:
    return GroupTree(version=1, memory=folder / "memory", pids=folder / "pids").make_folders()


def test_groups_of_a_dead_service_go_and_those_of_others_stay(tmp_path: Path) -> None:
    tree = of_version_1(tmp_path)
    abandoned, living = left_by(tree, DEAD), left_by(tree, os.getpid())
    others = [tree.below(name).make_folders() for name in ("jobs", "verl-pivotal", "pod-1")]

    remove_abandoned(tree)

    assert [folder.exists() for folder in abandoned.folders] == [False, False]
    assert all(folder.is_dir() for each in (living.below("lane-1/pod-1"), *others) for folder in each.folders)


@pytest.mark.parametrize("half", ["memory", "pids"])
def test_half_of_the_groups_of_a_dead_service_goes_too(tmp_path: Path, half: str) -> None:
    tree = of_version_1(tmp_path)
    folder = tmp_path / half / f"verl-pivot-{DEAD}"
    folder.mkdir()

    remove_abandoned(tree)

    assert not folder.exists()


def test_groups_that_are_locked_belong_to_a_service_of_another_pid_namespace(tmp_path: Path) -> None:
    tree = of_version_1(tmp_path)
    groups = left_by(tree, DEAD)
    fd = os.open(groups.memory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)

    remove_abandoned(tree)
    assert all(folder.is_dir() for folder in groups.folders)

    os.close(fd)
    remove_abandoned(tree)
    assert not any(folder.exists() for folder in groups.folders)
