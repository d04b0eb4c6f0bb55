"""The kernel calls of namespaces and privileges that Python 3.11 has no function for."""

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

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_SCOPED_ABSTRACT_UNIX_SOCKET = 1
_LANDLOCK_ABI_WITH_SCOPES = 6

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    _checked("setns", _libc.setns(fd, flags))


def mount(kind: str, target: str, flags: int, options: str) -> None:
    """Mount a new file system of `kind` on `target`."""
    _checked(
        f"mount {kind} on {target}", _libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode())
    )


def drop_capabilities() -> None:
    """Give up every capability. With no_new_privs set, which bubblewrap does, none comes back with an exec."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked("capset", _libc.capset(header, bytes(24)))


def install_seccomp(filter_bytes: bytes) -> None:
    """Needs no_new_privs, which bubblewrap has set on everything in a lane."""
    code = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))
    program = struct.pack("=HxxxxxxQ", len(filter_bytes) // 8, ctypes.addressof(code))
    _checked("seccomp", _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


def landlock_abi() -> int:
    """Version of Landlock, 0 where the kernel has none."""
    version: int = _libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    return max(version, 0)


def abstract_socket_scope() -> int | None:
    """A Landlock ruleset that keeps abstract Unix sockets within a process and its children; None before ABI 6."""
    if landlock_abi() < _LANDLOCK_ABI_WITH_SCOPES:
        return None
    attributes = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPED_ABSTRACT_UNIX_SOCKET)
    fd: int = _libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    _checked("landlock_create_ruleset", fd)
    return fd


def restrict_to(ruleset: int) -> None:
    """Enforce a Landlock ruleset on this process."""
    _checked("landlock_restrict_self", _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0))


def _checked(what: str, outcome: int) -> None:
    if outcome < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
