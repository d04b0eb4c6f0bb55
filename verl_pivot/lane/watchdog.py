"""Process trees of pods -> memory and CPU time, sampled from /proc: what no rlimit bounds."""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
LOW_PRIORITY = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a pod."""

    memory_bytes: int
    """Above what a fresh interpreter shares with its zygote."""
    cpu_seconds: float
    num_processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One look at a process."""

    is_asleep: bool
    cpu_seconds: float
    group: int
    """Its process group."""


def process_state(pid: int) -> ProcessState:
    """A process that has ended is asleep."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ProcessState(is_asleep=True, cpu_seconds=0.0, group=0)
    cpu_seconds = (int(stat[11]) + int(stat[12])) / _TICKS
    return ProcessState(is_asleep=stat[0] in b"SDTZX", cpu_seconds=cpu_seconds, group=int(stat[2]))


def sample_pod(shim_pid: int, pid: int | None, shared_bytes: int) -> Sample:
    """Look at the program `pid`, its descendants, and those that the shim inherited.

    Args:
        shim_pid: PID 1 of the pod.
        pid: Its program, if that lives.
        shared_bytes: Resident memory of the zygote, which each forked process shows as its own.
    """
    private, shared, cpu_seconds = 0, 0, 0.0
    processes = programs(shim_pid, pid)
    for number in processes:
        try:
            _, resident, mapped, *_ = Path(f"/proc/{number}/statm").read_bytes().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        private += max(0, (int(resident) - int(mapped)) * _PAGE_BYTES - shared_bytes)
        shared = max(shared, int(mapped) * _PAGE_BYTES)
        cpu_seconds += process_state(number).cpu_seconds
    memory_bytes = private + max(0, shared - _MAPPED_LIBRARIES_BYTES)
    return Sample(memory_bytes=memory_bytes, cpu_seconds=cpu_seconds, num_processes=len(processes))


_MAPPED_LIBRARIES_BYTES = 96 * 1024**2
"""Files that a process maps count as shared, as shared memory does; more than this is taken to be memory."""


def programs(shim_pid: int, pid: int | None) -> set[int]:
    """The processes of a pod but for its shim."""
    found: set[int] = set()
    waiting = [shim_pid] if pid is None else [shim_pid, pid]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += _children(number)
    return found - {shim_pid}


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(child) for task in tasks for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def process_groups(shim_pid: int, pid: int | None) -> set[int]:
    """Those that a pod's processes have made; never ours, in which nobody but the shim can be."""
    groups = {process_state(number).group for number in programs(shim_pid, pid)}
    return groups - {0, os.getpgrp()}


def lower_priority(shim_pid: int, pid: int | None) -> None:
    """Let programs that have just come go first: what has used its share of the cores runs when they leave one free."""
    for number in programs(shim_pid, pid):
        try:
            for task in os.listdir(f"/proc/{number}/task"):
                os.setpriority(os.PRIO_PROCESS, int(task), LOW_PRIORITY)
        except (FileNotFoundError, ProcessLookupError):
            continue


def resident_bytes(pid: int) -> int:
    """Private resident memory of one process."""
    sizes = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(sizes[1]) - int(sizes[2])) * _PAGE_BYTES
