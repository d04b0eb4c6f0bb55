"""A service's process id -> what it and its lanes hold: memory, descriptors, processes, mounts. Read from /proc."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.bubblewrap.process_tree import child_pids, descendants

_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Of one service at one time."""

    num_processes: int
    """All below it."""
    num_service_files: int
    """Open descriptors."""
    num_lane_files: int
    """Of bubblewraps, supervisors, zygotes and spawners."""
    num_mounts: int
    """Lines of /proc/self/mountinfo, over the mount namespaces of all its processes."""
    service_bytes: int
    """Resident, as the next."""
    lane_bytes: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All but memory: what can come back exactly."""
        return self.num_processes, self.num_service_files, self.num_lane_files, self.num_mounts


def footprint(service: int) -> Footprint:
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
    """Resident memory of every bubblewrap, supervisor, zygote and spawner; programs are not among them."""
    return sum(status_bytes(pid, "VmRSS") for pid in standing_pids(service))


def standing_pids(service: int) -> Iterator[int]:
    """Processes below a service that outlive programs: forks of a lane's interpreters are pods and their programs."""
    waiting = [(pid, "") for pid in child_pids(service)]
    while waiting:
        pid, parents_command = waiting.pop()
        command = _command(pid)
        if command and (command != parents_command or command.split("\0")[0].endswith("/bwrap")):
            yield pid
            waiting += [(child, command) for child in child_pids(pid)]


def status_bytes(pid: int, name: str) -> int:
    """A line of /proc/PID/status in bytes, such as VmRSS, or VmHWM for the largest that was; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def available_bytes() -> int:
    """What the machine could still give to programs."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024


def busy_seconds(cores: frozenset[int]) -> float:
    """CPU time that anything on this machine took of these cores since it was started."""
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
        except _GONE:
            continue
    return sum(namespaces.values())
