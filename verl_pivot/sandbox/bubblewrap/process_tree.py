"""Process id -> its descendants, and the memory, files and processes of all, read from /proc."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.sandbox.lane.confinement import OOM_SCORE
from verl_pivot.sandbox.lane.procfs import ProcessStat, read_process

_COUNTED_EACH = ("RssAnon", "RssShmem", "VmSwap", "VmPTE")
_PROPORTIONAL = ("Pss_Anon", "Pss_Shmem", "SwapPss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Use of resources by a tree of processes at one moment."""

    memory_bytes: int
    """Bytes in anonymous, shared and swapped pages and in page tables; pages of files, which the kernel can drop, do
    not count."""
    processes: tuple[ProcessStat, ...]


def child_pids(pid: int) -> list[int]:
    """Ids of the direct children of all threads of a process; none if it is gone."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return children
    return children


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all descendants, orphans included, whose parent becomes PID 1 of their namespace."""
    waiting = child_pids(pid)
    while waiting:
        current = waiting.pop()
        yield current
        waiting += child_pids(current)


def be_ended_first(pid: int) -> None:
    """Let the kernel end a process, and those that it will start, before all others when memory runs out."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone
        Path(f"/proc/{pid}/oom_score_adj").write_bytes(OOM_SCORE)


def usage_below(pid: int, *, memory_limit_bytes: int) -> Usage:
    """Resources that the descendants of `pid` use together.

    A page that processes share counts once for each of them, unless the sum is above the limit: then the kernel's
    proportional count is read, which takes longer.
    """
    pids = list(descendants(pid))
    memory = sum(_kilobytes(f"/proc/{each}/status", _COUNTED_EACH) for each in pids) * 1024
    if memory > memory_limit_bytes:
        tables = sum(_kilobytes(f"/proc/{each}/status", ("VmPTE",)) for each in pids)
        memory = (tables + sum(_kilobytes(f"/proc/{each}/smaps_rollup", _PROPORTIONAL) for each in pids)) * 1024
    processes = tuple(process for each in pids if (process := read_process(each)) is not None)
    return Usage(memory_bytes=memory, processes=processes)


def num_tmp_files(pid: int) -> int:
    """Number of files and folders below /tmp as the process `pid` sees it; 0 if the process is gone."""
    try:
        # Safe to follow: the sandbox's / is read-only, and its /tmp is a mount of this package.
        found = os.statvfs(f"/proc/{pid}/root/tmp")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # PermissionError if it is just ending
        return 0
    return found.f_files - found.f_ffree


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    """Sum of the named lines of a file in /proc; 0 if the process is gone or a zombie."""
    try:
        lines = Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = (line.split() for line in lines)
    return sum(int(words[1]) for words in fields if words and words[0].rstrip(":") in names)
