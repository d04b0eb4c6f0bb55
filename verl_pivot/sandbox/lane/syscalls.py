"""System calls for namespaces and privileges that Python 3.11 has no function for, by ctypes."""

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_MOVE, _MS_REC = 0x20, 0x1000, 0x2000, 0x4000
_MNT_DETACH = 2

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_NUM_CAPABILITIES = 41
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, this process
CAP_DAC_OVERRIDE = 1 << 1
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_SCOPED_ABSTRACT_UNIX_SOCKET = 1
_LANDLOCK_ABI_WITH_SCOPES = 6
_MADV_COLLAPSE = 25
_HUGE_PAGE_BYTES = 2 * 1024**2

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
# Looked up once here: each forked child would otherwise look them up again.
_capset, _clone, _madvise, _mount, _pause = _libc.capset, _libc.clone, _libc.madvise, _libc.mount, _libc.pause
_prctl, _setns, _syscall, _unshare = _libc.prctl, _libc.setns, _libc.syscall, _libc.unshare


def fork() -> int:
    """Fork a process with one thread as os.fork does, without Python's own work in the child.

    That work resets locks, which no other thread can hold here, and makes the kernel copy 0.7 MB of shared memory: half
    of the time of a fork.
    """
    pid: int = _libc_with_gil.fork()
    _check("fork", pid)
    return pid


def clone_to_pause(stack: int, flags: int) -> tuple[int, int]:
    """Start a process that only runs pause(2) on `stack`, which grows downwards; returns its process id and pidfd."""
    pidfd = ctypes.c_int(-1)
    pause, top = ctypes.cast(_pause, ctypes.c_void_p), ctypes.c_void_p(stack)
    pid: int = _clone(pause, top, ctypes.c_int(flags), None, ctypes.byref(pidfd))
    _check("clone", pid)
    return pid, pidfd.value


def unshare(flags: int) -> None:
    _check("unshare", _unshare(flags))


def setns(fd: int, flags: int) -> None:
    _check("setns", _setns(fd, flags))


def mount(kind: bytes, target: bytes, flags: int, options: bytes) -> None:
    """Mount a new file system, of the type `kind`, on `target`."""
    _check("mount", _mount(kind, target, kind, flags, options))


def bind(source: bytes, target: bytes) -> None:
    """Show the folder `source`, with everything that is mounted in it, at `target`."""
    _check("mount", _mount(source, target, None, _MS_BIND | _MS_REC, None))


def make_read_only(target: bytes, flags: int) -> None:
    """Make the mount at `target` read-only; it keeps its `flags`."""
    _check("mount", _mount(None, target, None, _MS_REMOUNT | _MS_BIND | MS_RDONLY | flags, None))


def move_mount(source: bytes, target: bytes) -> None:
    """Move what is mounted at `source` to `target`."""
    _check("mount", _mount(source, target, None, _MS_MOVE, None))


def unmount(target: bytes) -> None:
    """Unmount the file system at `target`; processes that have it open can go on using it."""
    _check("umount2", _libc.umount2(target, _MNT_DETACH))


def change_root(folder: bytes) -> None:
    """Make `folder`, on which something is mounted, the root of this mount namespace, and forget the old one."""
    os.chdir(folder)
    _check("pivot_root", _libc.pivot_root(b".", b"."))
    unmount(b".")
    os.chdir("/")


def become_dumpable() -> None:
    """Let this process's user own its files in /proc, after a change of user."""
    _check("prctl", _prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def drop_capabilities(*, kept: int = 0) -> None:
    """Give up all capabilities but those of the bit mask `kept`, and the bounding set, so that no other comes back."""
    for capability in range(_NUM_CAPABILITIES):
        _prctl(_PR_CAPBSET_DROP, capability)  # EINVAL on kernels that know fewer capabilities
    _check("capset", _capset(_CAPABILITY_HEADER, struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0)))


def give_up_capabilities(*, kept: int = 0) -> None:
    """Give up capabilities for good: no program that this process executes gets one back."""
    drop_capabilities(kept=kept)
    _check("prctl", _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


class SeccompFilter:
    """A compiled filter in the form that the kernel takes; made before a fork, so that no child spends time on it."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))

    def install(self) -> None:
        """Enforce it on this process and its children. Needs no_new_privs, which bubblewrap sets on a whole lane."""
        _check("seccomp", _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._program, 0, 0))


def landlock_abi() -> int:
    """Version of the kernel's Landlock; 0 where it has none."""
    version: int = _syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    return max(version, 0)


def abstract_socket_scope() -> int | None:
    """Landlock ruleset that lets a process reach abstract Unix sockets of itself and its children only.

    None where the kernel's Landlock is older than version 6.
    """
    if landlock_abi() < _LANDLOCK_ABI_WITH_SCOPES:
        return None
    attributes = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPED_ABSTRACT_UNIX_SOCKET)
    fd: int = _syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    _check("landlock_create_ruleset", fd)
    return fd


def restrict_to(ruleset: int) -> None:
    """Enforce a Landlock ruleset on this process."""
    _check("landlock_restrict_self", _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0))


def collapse_memory() -> None:
    """Gather this process's memory in huge pages where the kernel can: a fork then copies 1 table entry, not 512."""
    with open("/proc/self/maps", "rb") as file:
        mappings = [line.split() for line in file]
    for addresses, permissions, _, _, inode, *name in mappings:
        if permissions == b"rw-p" and inode == b"0" and name != [b"[stack]"]:
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            first = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            for address in range(first, end - _HUGE_PAGE_BYTES + 1, _HUGE_PAGE_BYTES):
                _madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE_PAGE_BYTES), _MADV_COLLAPSE)


def _check(what: str, outcome: int) -> None:
    if outcome < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
