"""Fork a process into a pod and take away its privileges, before any of the user's code runs in it."""

import os
import resource

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.task_root import NUM_ROOT_FOLDERS, enter_root, hide_roots

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take a zygote 10 ms
    from verl_pivot.sandbox.lane.process_messages import ResourceLimits

READY = b"+"
USER_ID = 1000
SHM_BYTES = 16 * 1024**2
"""Size of /dev/shm."""
OOM_SCORE = b"1000"
"""Maximum of oom_score_adj: when memory runs out, the kernel ends pods before lanes and trainers."""
NUM_SIGNALS = 1024
"""Queued signals and timers of one program; the kernel has some ten thousands for all programs together."""

_NO_SUID_NO_DEVICES = syscalls.MS_NOSUID | syscalls.MS_NODEV
_PROC_FLAGS = _NO_SUID_NO_DEVICES | syscalls.MS_NOEXEC
_SHARED_MEMORY_OPTIONS = b"size=%d,mode=1777,nr_inodes=" % SHM_BYTES
_TERMINAL_OPTIONS = b"newinstance,ptmxmode=0666,mode=620,max=32"
_NICE = 15
"""Niceness of programs, added to that of the lane, which needs a core at once to stop a fork bomb."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_TCP_BUFFERS = b"4096 65536 106496"
"""Minimum, initial and maximum bytes of each buffer of a TCP connection. Both buffers together hold at most as much as
those of a local socket. Otherwise the kernel would let them grow to 32 MiB, which no limit counts."""


def fork_into(shim_pidfd: int, own_pidfd: int) -> int:
    """Fork as syscalls.fork does, with a child in the pod's pid namespace that is still a direct child of the caller.

    Args:
        shim_pidfd: Descriptor of the pod's first process.
        own_pidfd: Descriptor of the caller, by which its later forks are in its own pid namespace again.

    Raises:
        OSError: If the shim has ended or no process can be made.
    """
    syscalls.setns(shim_pidfd, syscalls.CLONE_NEWPID)
    try:
        pid = syscalls.fork()
    except OSError:
        syscalls.setns(own_pidfd, syscalls.CLONE_NEWPID)
        raise
    if pid != 0:
        syscalls.setns(own_pidfd, syscalls.CLONE_NEWPID)
    return pid


def enter_groups(entrances: tuple[int, ...]) -> None:
    """Put this process into its control groups, which it then sees as the topmost ones."""
    for fd in entrances:
        os.write(fd, b"0")  # 0 stands for this process
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def furnish(
    tmp_bytes: int, num_tmp_files: int, root: str, hidden: tuple[str, ...], *, has_proc: bool, raises_loopback: bool
) -> None:
    """Mount the private file systems of a new pod, which this process has entered, and change to its root."""
    for folder in hidden:
        syscalls.unmount(folder.encode())
    files = b"%d" % (num_tmp_files + (NUM_ROOT_FOLDERS if root else 0))
    syscalls.mount(b"tmpfs", b"/tmp", _NO_SUID_NO_DEVICES, b"size=%d,mode=1777,nr_inodes=%b" % (tmp_bytes, files))
    syscalls.mount(b"tmpfs", b"/dev/shm", _NO_SUID_NO_DEVICES, _SHARED_MEMORY_OPTIONS + files)
    syscalls.mount(b"devpts", b"/dev/pts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, _TERMINAL_OPTIONS)
    if has_proc:
        syscalls.mount(b"proc", b"/proc", _PROC_FLAGS, b"hidepid=2")
    if raises_loopback:
        if has_proc:
            _bound_buffers()
        raise_loopback()
    if has_proc:
        syscalls.make_read_only(b"/proc", _PROC_FLAGS)  # else a program could lower its oom_score_adj
    if root:
        enter_root(root, has_proc=has_proc)
    else:
        hide_roots()


def _bound_buffers() -> None:
    for name in ("tcp_rmem", "tcp_wmem"):
        with open(f"/proc/sys/net/ipv4/{name}", "wb", buffering=0) as file:
            file.write(_TCP_BUFFERS)


def raise_loopback() -> None:
    """Let 127.0.0.1 work in this process's network."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def give_up_privileges(
    *,
    scope: int | None,
    seccomp: syscalls.SeccompFilter,
    outer_proc: int,
    user_id: int | None,
    leads_session: bool,
) -> None:
    """Give up every privilege, in the only order that the kernel allows.

    Args:
        scope: Descriptor of syscalls.abstract_socket_scope; None where the kernel has none.
        seccomp: Filter to add.
        outer_proc: Descriptor of a /proc outside of the pod, which can be written.
        user_id: User and group id of the pod in the lane; None if it keeps the lane's.
        leads_session: Whether to lead a session of processes, which can have a terminal; otherwise it leads a group.

    Raises:
        OSError: If a step fails; the process must then exit without running any of the user's code.
    """
    if leads_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    os.nice(_NICE)  # on top of the lane's own niceness, which cannot be lowered: Ray starts processes with 15
    os.chdir("/tmp")
    if user_id is not None:
        _change_user(user_id)
    _write(outer_proc, "self/oom_score_adj", OOM_SCORE)
    _enter_user_namespace(outer_proc, user_id or 0)
    if scope is not None:
        syscalls.restrict_to(scope)
    syscalls.drop_capabilities()
    seccomp.install()


def _change_user(user_id: int) -> None:
    """Take another user id, so that the kernel counts per-user resources apart from those of other users."""
    os.setgroups(())
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)
    syscalls.become_dumpable()  # else /proc/self would be root's


def _enter_user_namespace(outer_proc: int, outer_id: int) -> None:
    """Enter a user namespace of its own, in which the kernel counts its processes apart from those of other pods."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    ids = b"%d %d 1" % (USER_ID, outer_id)
    for path, text in (("self/setgroups", b"deny"), ("self/uid_map", ids), ("self/gid_map", ids)):
        _write(outer_proc, path, text)


def _write(folder: int, path: str, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=folder)
    os.write(fd, text)
    os.close(fd)


def core_limit() -> tuple[int, int]:
    """Limit on core files of programs: with 1 byte none is written, and none goes to a handler of the machine.

    With 0 bytes a handler, such as systemd's or apport's, would still get all of a program's memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    return (0, 0) if hard == 0 else (1, 1)


def accept_limits(limits: "ResourceLimits") -> None:
    """Set every limit but that of open files, which comes last: the process still has descriptors to pass on."""
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
    _limit(resource.RLIMIT_DATA, limits["data_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_SIGPENDING, NUM_SIGNALS)
    _limit(resource.RLIMIT_NPROC, limits["num_processes"])  # the kernel counts per user namespace


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    resource.setrlimit(kind, (soft, soft if hard is None else hard))
