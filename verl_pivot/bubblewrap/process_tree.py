"""A process -> what it and its descendants use, read from /proc of the host."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHARED_OR_SWAPPED = ("RssAnon", "RssShmem", "VmSwap")
_PROPORTIONAL = ("Pss_Anon", "Pss_Shmem", "SwapPss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one tree at one time."""

    memory_bytes: int
    """Anonymous, shared and swapped pages; not those of files, which the kernel can drop."""
    delay_seconds: float
    """The longest that one of its processes was ready to run and had no core."""


def child_pids(pid: int) -> list[int]:
    """Direct children, by every thread. Empty where `pid` is gone."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return children
    return children


def descendants(pid: int) -> Iterator[int]:
    """All of them. An orphan stays one, as PID 1 of the namespace adopts it."""
    waiting = child_pids(pid)
    while waiting:
        current = waiting.pop()
        yield current
        waiting += child_pids(current)


def usage_below(pid: int, *, memory_limit_bytes: int) -> Usage:
    """What the descendants of `pid` use together.

    Pages that processes share count once for each of them, unless that comes out above the limit: then the kernel's
    proportional count decides, which takes longer to read.
    """
    pids = list(descendants(pid))
    memory = sum(_kilobytes(f"/proc/{each}/status", _SHARED_OR_SWAPPED) for each in pids) * 1024
    if memory > memory_limit_bytes:
        memory = sum(_kilobytes(f"/proc/{each}/smaps_rollup", _PROPORTIONAL) for each in pids) * 1024
    return Usage(memory_bytes=memory, delay_seconds=max(map(_delay_seconds, pids), default=0.0))


def num_tmp_files(pid: int) -> int:
    """Files and folders below /tmp of the sandbox of `pid`; 0 where it is gone."""
    try:
        # Safe to walk: the sandbox's / is read-only, and /tmp is our mount.
        found = os.statvfs(f"/proc/{pid}/root/tmp")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return found.f_files - found.f_ffree


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    """Sum of the named lines; 0 where the process is gone or a zombie."""
    try:
        lines = Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = (line.split() for line in lines)
    return sum(int(words[1]) for words in fields if words and words[0].rstrip(":") in names)


def _delay_seconds(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
