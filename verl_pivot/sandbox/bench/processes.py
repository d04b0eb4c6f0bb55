"""Process id of a service -> memory, file descriptors, processes and mounts that it and its lanes hold."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.sandbox.bubblewrap.process_tree import child_pids, descendants

_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Resources that one service holds at one moment."""

    num_processes: int
    """Descendants of the service's process."""
    num_service_files: int
    """Open file descriptors of the service's process."""
    num_lane_files: int
    """Open file descriptors of all bubblewraps, supervisors, zygotes and spawners."""
    num_mounts: int
    """Lines of /proc/self/mountinfo, over the mount namespaces of all processes."""
    service_bytes: int
    """Resident memory of the service's process."""
    lane_bytes: int
    """Resident memory of the lanes, without programs."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All figures but memory, the only one that does not return to exactly the same value."""
        return self.num_processes, self.num_service_files, self.num_lane_files, self.num_mounts


def footprint(service: int) -> Footprint:
    """Footprint of the service with this process id."""
    standing = tuple(standing_pids(service))
    return Footprint(
        num_processes=sum(1 for _ in descendants(service)),
        num_service_files=_num_files(service),
        num_lane_files=sum(map(_num_files, standing)),
        num_mounts=_num_mounts(service),
        service_bytes=status_bytes(service, "VmRSS"),
        lane_bytes=lane_bytes(service),
    )


def lane_bytes(service: int) -> int:
    """Resident memory of all bubblewraps, supervisors, zygotes and spawners of a service, without programs."""
    return sum(status_bytes(pid, "VmRSS") for pid in standing_pids(service))


def standing_pids(service: int) -> Iterator[int]:
    """Yield the processes below a service that outlive programs; forks of a lane's interpreters do not."""
    waiting = [(pid, "") for pid in child_pids(service)]
    while waiting:
        pid, parents_command = waiting.pop()
        command = _command(pid)
        if command and (command != parents_command or command.split("\0")[0].endswith("/bwrap")):
            yield pid
            waiting += [(child, command) for child in child_pids(pid)]


def status_bytes(pid: int, name: str) -> int:
    """Bytes in a line of /proc/PID/status, such as VmRSS, or VmHWM for the peak; 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def available_bytes() -> int:
    """Memory that the machine could still give to programs."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024


def busy_seconds(cores: frozenset[int]) -> float:
    """CPU seconds that all programs on this machine used of these cores since the machine was started."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user, nice, system, then idle and iowait, then irq, softirq, steal
    ticks = [int(word) for line in lines if line[0] in names for word in (*line[1:4], *line[6:9])]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except _GONE:
        return ""


def _num_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except _GONE:
        return 0


def _num_mounts(service: int) -> int:
    namespaces: dict[str, int] = {}
    for pid in (service, *descendants(service)):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in namespaces:
                namespaces[namespace] = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EINVAL):  # EINVAL: it has left its namespaces
                raise
    return sum(namespaces.values())
