"""A pod: fresh namespaces with a shim as PID 1, and how a process enters them and gives up everything else.

The user's program is never PID 1 (which ignores signals) and stays a direct child of its zygote, which alone reads its
exit status. When the shim is killed the kernel kills whatever is left in the pod.
"""

import os
import resource
import signal

from verl_pivot.lane import kernel
from verl_pivot.lane.shapes import NETWORK_LOOPBACK, NETWORK_NONE, PodShape

USER_ID = 1000
READY = b"+"

_SHARED_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
_SHARED_MEMORY_BYTES = 16 * 1024**2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_ID_MAPS = (
    ("/proc/self/setgroups", b"deny"),
    ("/proc/self/uid_map", b"%d 0 1" % USER_ID),
    ("/proc/self/gid_map", b"%d 0 1" % USER_ID),
)


def namespaces(shape: PodShape) -> int:
    """What a shim unshares beside its process ids, and what a program joins."""
    return _SHARED_NAMESPACES | (0 if shape.network == NETWORK_NONE else kernel.CLONE_NEWNET)


def start_shim(shape: PodShape, own_pidfd: int, report_fd: int) -> int:
    """Fork the PID 1 of a new pod; it says READY in `report_fd`, or what went wrong.

    `own_pidfd` is the caller's own, which leads its later forks back to where it is.
    """
    mounts = _mounts(shape)
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = kernel.fork()
    if pid == 0:
        _be_shim(shape, mounts, report_fd)
    kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
    return pid


def _be_shim(shape: PodShape, mounts: tuple[tuple[bytes, bytes, int, bytes], ...], report_fd: int) -> None:
    """Never returns. It has no signal handlers, so that nothing in its pod can signal it."""
    try:
        kernel.end_with_parent(signal.SIGKILL)
        kernel.unshare(namespaces(shape))
        for kind, target, flags, options in mounts:
            kernel.mount(kind, target, flags, options)
        if shape.network == NETWORK_LOOPBACK:
            _raise_loopback()
        os.write(report_fd, READY)
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        while True:
            signal.pause()
    except OSError as error:
        os.write(report_fd, str(error).encode())
    finally:
        os._exit(1)


def _mounts(shape: PodShape) -> tuple[tuple[bytes, bytes, int, bytes], ...]:
    """Arguments of kernel.mount."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    files = b"nr_inodes=%d,mode=1777" % shape.num_tmp_files
    tmp = (b"tmpfs", b"/tmp", flags, b"size=%d,%b" % (shape.tmp_bytes, files))
    memory = (b"tmpfs", b"/dev/shm", flags, b"size=%d,%b" % (_SHARED_MEMORY_BYTES, files))
    proc = (b"proc", b"/proc", flags | kernel.MS_NOEXEC, b"hidepid=2")
    return (tmp, memory, proc) if shape.has_proc else (tmp, memory)


def _raise_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def fork_into(shim_pidfd: int, own_pidfd: int) -> int:
    """As kernel.fork, with the child in the pod's pid namespace and as our direct child.

    Raises:
        OSError: If the shim has ended or no process can be made.
    """
    kernel.setns(shim_pidfd, kernel.CLONE_NEWPID)
    try:
        pid = kernel.fork()
    except OSError:
        kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
        raise
    if pid != 0:
        kernel.setns(own_pidfd, kernel.CLONE_NEWPID)
    return pid


def enter(
    shim_pidfd: int,
    joined: int,
    limits: dict[str, int],
    *,
    scope: int | None,
    seccomp: kernel.SeccompFilter,
    has_proc: bool,
) -> None:
    """Move this process into the pod's namespaces and give up every privilege; in the order that the kernel allows.

    Args:
        joined: `namespaces` of the pod's shape.
        limits: See runs.resource_limits.
        scope: Landlock ruleset, if the kernel has one for sockets.

    Raises:
        OSError: If a step fails; the process must then exit without running any of the user's code.
    """
    kernel.setns(shim_pidfd, joined)
    os.setpgid(0, 0)
    os.chdir("/tmp")
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
    _limit(resource.RLIMIT_DATA, limits["data_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    if has_proc:
        _enter_user_namespace()
    _limit(resource.RLIMIT_NPROC, limits["num_processes"])  # counted per user namespace, so only from here on
    if scope is not None:
        kernel.restrict_to(scope)
    kernel.drop_capabilities()
    seccomp.install()


def _enter_user_namespace() -> None:
    """Without /proc no ids can be mapped, and the lane's user namespace has to do."""
    kernel.unshare(kernel.CLONE_NEWUSER)
    for path, text in _ID_MAPS:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, text)
        os.close(fd)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    resource.setrlimit(kind, (soft, soft if hard is None else hard))
