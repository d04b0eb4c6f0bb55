"""Control groups of version 2: real ones, and folders in which a test makes the files that the kernel would make."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from verl_pivot.sandbox.execution import MIB
from verl_pivot.sandbox.lane import control_groups
from verl_pivot.sandbox.lane.control_groups import (
    CpuCounter,
    GroupFolders,
    GroupPool,
    PodGroup,
    group_bytes,
    machine_ran_out,
)

OF_THE_KERNEL = {
    "cgroup.procs": "",
    "memory.max": "",
    "memory.swap.max": "",
    "memory.oom.group": "",
    "memory.current": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "pids.max": "",
    "cgroup.freeze": "0\n",
    "cgroup.kill": "",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
}
LEFT_OUT = [(), ("memory.swap.max",), ("memory.oom.group", "cgroup.freeze", "cgroup.kill"), ("cgroup.kill",)]
"""Files that are missing on some kernels: those without swap, and older ones."""


@pytest.fixture(params=LEFT_OUT, ids=["all files", "no swap", "an older kernel", "Linux 5.2 to 5.13"])
def folders(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupFolders]:
    make = os.mkdir

    def make_group(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        for file, content in OF_THE_KERNEL.items():
            if file not in request.param:
                (tmp_path / name / file).write_text(content)

    monkeypatch.setattr(control_groups.os, "mkdir", make_group)
    fd = os.open(tmp_path, os.O_PATH)
    yield GroupFolders(version=2, memory=fd, pids=fd)
    os.close(fd)


def read(folder: Path, group: PodGroup, file: str) -> str:
    return (folder / group.name / file).read_text()


def set_event(folder: Path, group: PodGroup, name: str, count: int) -> None:
    path = folder / group.name / "memory.events"
    lines = [line if line.split()[0] != name else f"{name} {count}" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def test_a_group_of_version_2_gets_the_limits_of_its_program_and_no_swap(folders: GroupFolders, tmp_path: Path) -> None:
    group = GroupPool(folders).take(memory_bytes=64 * MIB, num_processes=10)

    assert read(tmp_path, group, "memory.max") == f"{64 * MIB}"
    assert read(tmp_path, group, "pids.max") == "18"
    for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
        path = tmp_path / group.name / file
        assert not path.exists() or path.read_text() == value


def test_a_process_enters_by_one_file(folders: GroupFolders, tmp_path: Path) -> None:
    group = GroupPool(folders).take(memory_bytes=64 * MIB, num_processes=10)

    group.admit(4711)

    assert read(tmp_path, group, "cgroup.procs") == "4711"


def test_a_group_that_was_given_back_is_asked_in_vain_also_after_its_removal(
    folders: GroupFolders, tmp_path: Path
) -> None:
    """The end of a process is reported after the end of its pod; if many pods end, the group may be removed by then."""
    pool = GroupPool(folders)
    group = pool.take(memory_bytes=64 * MIB, num_processes=10)
    set_event(tmp_path, group, "oom", 3)
    set_event(tmp_path, group, "oom_kill", 2)
    assert group.has_run_out()

    pool.give_back(group)
    assert not group.has_run_out()
    shutil.rmtree(tmp_path / group.name)

    assert (group.has_run_out(), group.has_lost_processes()) == (False, False)


RAN_OUT: dict[str, tuple[Callable[[Path, PodGroup], None], bool]] = {
    "nothing happened": (lambda folder, group: None, False),
    "its limit was reached": (
        lambda folder, group: (set_event(folder, group, "oom", 3), set_event(folder, group, "oom_kill", 2))[0],
        True,
    ),
    "the machine ran out": (lambda folder, group: set_event(folder, group, "oom_kill", 2), False),
    "its limit was met and nobody was ended": (lambda folder, group: set_event(folder, group, "oom", 3), False),
}


@pytest.mark.parametrize("name", RAN_OUT)
def test_only_a_limit_of_its_own_that_ended_a_process_is_its_own_fault(
    folders: GroupFolders, tmp_path: Path, name: str
) -> None:
    change, has_run_out = RAN_OUT[name]
    group = GroupPool(folders).take(memory_bytes=64 * MIB, num_processes=10)

    change(tmp_path, group)

    assert group.has_run_out() == has_run_out
    assert machine_ran_out(group, since=0.0) == (name == "the machine ran out")


def test_what_an_earlier_program_of_the_group_did_does_not_count(folders: GroupFolders, tmp_path: Path) -> None:
    group = GroupPool(folders).take(memory_bytes=64 * MIB, num_processes=10)
    set_event(tmp_path, group, "oom", 1)
    set_event(tmp_path, group, "oom_kill", 1)
    assert group.has_run_out()

    group.set_limits(memory_bytes=64 * MIB, num_processes=10)

    assert not group.has_run_out()


def test_a_group_is_used_again_when_it_is_empty_and_not_before(folders: GroupFolders, tmp_path: Path) -> None:
    pool = GroupPool(folders)
    taken = [pool.take(memory_bytes=64 * MIB, num_processes=10) for _ in range(9)]
    busy, full, empty = taken[:3]
    (tmp_path / busy.name / "cgroup.procs").write_text("4711\n")
    (tmp_path / full.name / "memory.current").write_text(f"{32 * MIB}\n")
    for group in (busy, full, empty):
        pool.give_back(group)

    assert pool.take(memory_bytes=32 * MIB, num_processes=20) is empty
    assert read(tmp_path, empty, "memory.max") == f"{32 * MIB}"
    assert pool.take(memory_bytes=64 * MIB, num_processes=10).name == "pod-10"
    (tmp_path / busy.name / "cgroup.procs").write_text("")
    assert pool.take(memory_bytes=64 * MIB, num_processes=10) is busy


def test_a_group_that_can_be_frozen_says_so_and_is_thawed_for_the_next_program(
    folders: GroupFolders, tmp_path: Path
) -> None:
    pool = GroupPool(folders)
    group = pool.take(memory_bytes=64 * MIB, num_processes=10)
    freezer, killer = tmp_path / group.name / "cgroup.freeze", tmp_path / group.name / "cgroup.kill"
    can_freeze, can_kill = freezer.exists(), killer.exists()

    assert group.set_frozen(is_frozen=True) is can_freeze
    assert not can_freeze or freezer.read_text().split() == ["1"]
    group.kill()

    assert not can_kill or killer.read_text() == "1"
    assert not can_freeze or freezer.read_text().split() == ["0"]
    assert (freezer.exists(), killer.exists()) == (can_freeze, can_kill)


def test_cpu_time_counts_from_the_beginning_of_a_program_until_its_group_is_given_back(
    folders: GroupFolders, tmp_path: Path
) -> None:
    pool = GroupPool(folders)
    group = pool.take(memory_bytes=64 * MIB, num_processes=10)
    counter = CpuCounter(group)
    assert counter.used_seconds == 0.0

    (tmp_path / group.name / "cpu.stat").write_text("usage_usec 4000000\nuser_usec 4000000\n")
    assert (counter.used_seconds, CpuCounter(None).used_seconds) == (2.5, 0.0)
    pool.give_back(group)
    shutil.rmtree(tmp_path / group.name)

    assert counter.used_seconds == 0.0


def test_a_group_of_version_1_leaves_stopping_to_signals(tmp_path: Path) -> None:
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    memory.mkdir()
    pids.mkdir()
    fds = os.open(memory, os.O_PATH), os.open(pids, os.O_PATH)
    group = PodGroup(GroupFolders(version=1, memory=fds[0], pids=fds[1]), "pod")

    assert not group.set_frozen(is_frozen=True)
    assert (group.cpu_seconds(), CpuCounter(group).used_seconds) == (None, 0.0)
    group.kill()

    assert list((memory / "pod").iterdir()) == []
    for fd in fds:
        os.close(fd)


UNIFIED = Path("/sys/fs/cgroup/unified")
HOPPERS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("begun", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
"""
"""Processes that hop from one process group to the next, so that a signal to the groups seen before misses them."""


def cpu_microseconds(folder: Path) -> int:
    return int((folder / "cpu.stat").read_text().split()[1])


CHAIN = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("begun", flush=True)
sys.stdin.readline()
for _ in range(10):
    end = time.process_time() + 0.05
    while time.process_time() < end: pass
    if os.fork(): os._exit(0)
"""
"""Processes each of which computes for 0.05 s, starts its successor and ends."""
in_version_2 = pytest.mark.skipif(
    not os.access(UNIFIED / "cgroup.procs", os.W_OK), reason="groups of version 2 cannot be made"
)


@contextmanager
def real_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, PodGroup]]:
    """A group that the kernel made, and its folder."""
    with tempfile.TemporaryDirectory(dir=UNIFIED, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pod").mkdir()
        fd = os.open(folder, os.O_PATH)
        monkeypatch.setattr(control_groups.os, "mkdir", lambda *_, **__: None)
        yield folder / "pod", PodGroup(GroupFolders(version=2, memory=fd, pids=fd), "pod")
        os.close(fd)
        (folder / "pod").rmdir()


@in_version_2
@pytest.mark.heavy
@pytest.mark.finding("time without a core", where="no service")
def test_the_kernel_counts_the_time_of_processes_that_nobody_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        real_group(monkeypatch) as (folder, group),
        subprocess.Popen([sys.executable, "-c", CHAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        group.admit(process.pid)
        process.stdout.readline()
        counter = CpuCounter(group)
        process.stdin.close()
        until_event(folder, "populated 0")

        assert 0.45 < counter.used_seconds < 1.0


@in_version_2
@pytest.mark.heavy
@pytest.mark.finding("stopped programs that go on", where="no service")
def test_the_kernel_stops_and_ends_processes_that_no_signal_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        real_group(monkeypatch) as (folder, group),
        subprocess.Popen([sys.executable, "-c", HOPPERS], stdout=subprocess.PIPE) as process,
    ):
        group.admit(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"

        assert group.set_frozen(is_frozen=True)
        until_event(folder, "frozen 1")
        before = cpu_microseconds(folder)
        until_event(folder, "frozen 1", looks=20)
        assert cpu_microseconds(folder) == before
        group.kill()
        until_event(folder, "populated 0")

        assert process.wait() in (0, -signal.SIGKILL)


def until_event(folder: Path, line: str, *, looks: int = 1) -> None:
    """Wait until `looks` looks at a group's cgroup.events, 10 ms apart, have found the line."""
    for _ in range(3_000):
        looks -= line in (folder / "cgroup.events").read_text().splitlines()
        if looks == 0:
            return
        time.sleep(0.01)
    raise AssertionError(f"{line} never came: {(folder / 'cgroup.events').read_text()}")


def test_the_limit_of_a_group_is_beyond_what_its_watchdog_allows() -> None:
    for limit in (16 * MIB, 1024 * MIB):
        assert group_bytes(limit, MIB, 0) >= limit + limit // 8 + 16 * MIB + MIB
