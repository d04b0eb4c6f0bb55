"""How a process is born in its pod and gives up everything else, before any of the user's code runs in it."""

import os
import resource

from verl_pivot.lane import kernel

READY = b"+"
USER_ID = 1000

_ID_MAPS = (
    ("/proc/self/setgroups", b"deny"),
    ("/proc/self/uid_map", b"%d 0 1" % USER_ID),
    ("/proc/self/gid_map", b"%d 0 1" % USER_ID),
)
_NO_SUID_NO_DEVICES = kernel.MS_NOSUID | kernel.MS_NODEV
_SHARED_MEMORY_OPTIONS = b"size=16777216,mode=1777,nr_inodes="
_NICE = 15
"""The lane itself goes first, or a bomb would keep it from being stopped."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def fork_into(shim_pidfd: int, own_pidfd: int) -> int:
    """As kernel.fork, with the child in the pod's pid namespace and as our direct child.

    `own_pidfd` is the caller's, which leads its later forks back to where it is.

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


def furnish(tmp_bytes: int, num_tmp_files: int, *, has_proc: bool, raises_loopback: bool) -> None:
    """Mount what is private to a new pod, which this process has entered."""
    files = b"%d" % num_tmp_files
    kernel.mount(b"tmpfs", b"/tmp", _NO_SUID_NO_DEVICES, b"size=%d,mode=1777,nr_inodes=%b" % (tmp_bytes, files))
    kernel.mount(b"tmpfs", b"/dev/shm", _NO_SUID_NO_DEVICES, _SHARED_MEMORY_OPTIONS + files)
    if has_proc:
        kernel.mount(b"proc", b"/proc", _NO_SUID_NO_DEVICES | kernel.MS_NOEXEC, b"hidepid=2")
    if raises_loopback:
        _raise_loopback()


def _raise_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def give_up_privileges(*, scope: int | None, seccomp: kernel.SeccompFilter, has_proc: bool) -> None:
    """In the order that the kernel allows.

    Args:
        scope: Landlock ruleset, if the kernel has one for sockets.

    Raises:
        OSError: If a step fails; the process must then exit without running any of the user's code.
    """
    os.setpgid(0, 0)
    os.nice(_NICE)  # from where the lane is, which may not go down again: Ray's processes are at 15
    os.chdir("/tmp")
    if has_proc:
        _enter_user_namespace()
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


def accept_limits(limits: dict[str, int]) -> None:
    """See runs.resource_limits; that of open files comes last, when the descriptors that are needed are known."""
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
    _limit(resource.RLIMIT_DATA, limits["data_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_NPROC, limits["num_processes"])  # counted per user namespace


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    resource.setrlimit(kind, (soft, soft if hard is None else hard))
