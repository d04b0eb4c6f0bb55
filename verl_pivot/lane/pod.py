"""A pod: fresh namespaces with a shim as PID 1, and how a process enters them and gives up everything else.

The user's program is never PID 1 (which ignores signals) and stays a direct child of its zygote, which alone reads its
exit status. When the shim is killed the kernel kills whatever is left in the pod.
"""

import os
import resource
import signal
from dataclasses import dataclass

from verl_pivot.lane import kernel

USER_ID = 1000
_SHARED_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
_SHARED_MEMORY_BYTES = 16 * 1024**2
_NO_SUID_NO_DEVICES = kernel.MS_NOSUID | kernel.MS_NODEV
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
READY = b"+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """What differs between pods."""

    tmp_bytes: int
    num_tmp_files: int
    network: str
    """none, private or loopback; see sandbox/execution.py."""
    has_proc: bool

    @property
    def namespaces(self) -> int:
        """What the shim unshares beside its process ids, and what a program joins."""
        return _SHARED_NAMESPACES | (0 if self.network == "none" else kernel.CLONE_NEWNET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A shim that waits, or is about to."""

    shape: PodShape
    pid: int
    pidfd: int
    report_fd: int
    """Reads READY once the namespaces stand, or what went wrong."""


def start_pod(shape: PodShape, own_pidfd: int) -> Pod:
    """Fork a shim as PID 1 of a new pid namespace; `own_pidfd` leads later forks back to ours."""
    read_end, write_end = os.pipe()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _shim(shape, write_end)
    kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
    os.close(write_end)
    os.set_blocking(read_end, False)
    return Pod(shape=shape, pid=pid, pidfd=os.pidfd_open(pid), report_fd=read_end)


def _shim(shape: PodShape, report_fd: int) -> None:
    """Never returns. It has no handlers, so that nothing in its pod can signal it."""
    try:
        for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # children that lost their parent are reaped by the kernel
        kernel.unshare(shape.namespaces)
        _mount(shape)
        if shape.network == "loopback":
            _raise_loopback()
        os.write(report_fd, READY)
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        while True:
            signal.pause()
    except OSError as error:
        os.write(report_fd, str(error).encode())
    finally:
        os._exit(1)


def _mount(shape: PodShape) -> None:
    files = f"nr_inodes={shape.num_tmp_files},mode=1777"
    kernel.mount("tmpfs", "/tmp", _NO_SUID_NO_DEVICES, f"size={shape.tmp_bytes},{files}")
    kernel.mount("tmpfs", "/dev/shm", _NO_SUID_NO_DEVICES, f"size={_SHARED_MEMORY_BYTES},{files}")
    if shape.has_proc:
        kernel.mount("proc", "/proc", _NO_SUID_NO_DEVICES | kernel.MS_NOEXEC, "hidepid=2")


def _raise_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """What the kernel enforces on each process of one execution."""

    cpu_seconds: int
    data_bytes: int
    """Private writable memory, above what the zygote has."""
    file_bytes: int
    num_processes: int
    num_open_files: int


def fork_into(shim_pidfd: int, own_pidfd: int) -> int:
    """As os.fork, with the child in the pod's pid namespace and as our direct child.

    Raises:
        OSError: If the shim has ended or no process can be made.
    """
    kernel.setns(shim_pidfd, kernel.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
        raise
    if pid != 0:
        kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
    return pid


def enter(
    shim_pidfd: int, namespaces: int, limits: ResourceLimits, *, scope: int | None, seccomp: bytes, has_proc: bool
) -> None:
    """Move this process into the pod's namespaces and give up every privilege; in the order that the kernel allows.

    Raises:
        OSError: If a step fails; the process must then exit without running any of the user's code.
    """
    kernel.setns(shim_pidfd, namespaces)
    os.setpgid(0, 0)
    os.chdir("/tmp")
    _limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)
    _limit(resource.RLIMIT_DATA, limits.data_bytes)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.num_open_files)
    if has_proc:
        _enter_user_namespace()
    _limit(resource.RLIMIT_NPROC, limits.num_processes)  # counted per user namespace, so only from here on
    if scope is not None:
        kernel.restrict_to(scope)
    kernel.drop_capabilities()
    kernel.install_seccomp(seccomp)


def _enter_user_namespace() -> None:
    """Without /proc no ids can be mapped, and the lane's user namespace has to do."""
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{USER_ID} 0 1"), ("gid_map", f"{USER_ID} 0 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    resource.setrlimit(kind, (soft, soft if hard is None else hard))
