"""The spawner: forks the shims of new pods, several in a row, from an interpreter that has almost nothing loaded.

After a fork a process copies every page that it writes to; done here, and in batches, that costs the lane nothing.
"""

import os
import signal
import socket

from verl_pivot.lane.passing import receive, send
from verl_pivot.lane.pod import READY, start_shim
from verl_pivot.lane.shapes import PodShape


def main(channel_fd: int) -> None:
    """Start pods on request until the lane goes away."""
    channel = socket.socket(fileno=channel_fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # for the shims as well; the kernel reaps what ends
    own_pidfd = os.pidfd_open(os.getpid())
    while (received := receive(channel)) is not None:
        (num_pods, *shape), _ = received
        error, shims = _start(PodShape(*shape), num_pods, own_pidfd)
        send(channel, (error, tuple(shims)), tuple(shims.values()))
        for pidfd in shims.values():
            os.close(pidfd)


def _start(shape: PodShape, num_pods: int, own_pidfd: int) -> tuple[str, dict[int, int]]:
    """What went wrong, or nothing, and the shims that stand: process id -> pidfd."""
    reports: dict[int, int] = {}
    for _ in range(num_pods):
        read_end, write_end = os.pipe()
        pid = start_shim(shape, own_pidfd, write_end)
        reports[pid] = read_end
        os.close(write_end)
    shims, error = {}, ""
    for pid, read_end in reports.items():
        report = os.read(read_end, 1024)
        os.close(read_end)
        if report == READY:
            shims[pid] = os.pidfd_open(pid)
        else:
            error = report.decode("utf-8", "replace") or "the first process of a pod died"
    return error, shims
