"""System calls that sandboxed programs may not make -> a compiled seccomp filter (classic BPF)."""

import errno
import os
import struct

# linux/audit.h, linux/seccomp.h, linux/bpf_common.h
_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data, of arguments in their low 32 bits.
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32

_CLONE, _CLONE3, _IOCTL, _SOCKET, _SOCKETPAIR, _SETSOCKOPT, _PRLIMIT = 56, 435, 16, 41, 53, 54, 302
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX: CVE-2017-5226; TIOCSETD loads modules
_SOCKET_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6; no netlink, packet, alg, vsock
_SOCKETPAIR_FAMILIES = (1,)
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and the same with FORCE

# x86-64 numbers, grouped by what they would give access to.
_ENTERING = (165, 272, 308)  # mount unshare setns: needed once, to enter a pod
_DENIED = {
    "mounts": (166, 155, 161, 428, 429, 430, 431, 432, 433, 442, 467),
    "other processes": (101, 310, 311, 312, 438, 440, 448),  # ptrace process_vm_* kcmp pidfd_getfd process_m*
    "kernel interfaces": (321, 298, 323, 425, 426, 427, 300),  # bpf perf userfaultfd io_uring fanotify
    "keyrings": (248, 249, 250),
    "System V and POSIX queues": (29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240),
    "modules, kexec, reboot, swap": (175, 176, 313, 246, 320, 169, 167, 168),
    "clocks": (227, 164, 159, 305),
    "accounting, quotas, ports": (163, 179, 443, 172, 173, 153, 103, 134, 154),
    "names": (170, 171),  # sethostname setdomainname
    "file handles": (303, 304),  # name_to_handle_at open_by_handle_at
    "memory that no limit counts": (319, 447),  # memfd_create memfd_secret
    "cores": (203,),  # sched_setaffinity
}
_MISSING = {
    "asynchronous I/O, of which the whole machine has a fixed number of requests": (206,),  # io_setup
    "inotify, of which a user has 128, and which shows what others open": (253, 294),  # inotify_init inotify_init1
}
"""Calls that are answered as by a kernel without them: programs then do without."""


def filter_bytes() -> bytes:
    """The whole filter as an array of struct sock_filter, for `bwrap --seccomp FD` and seccomp(2).

    Arguments are compared in their low 32 bits, which is what the kernel reads (CVE-2019-10063, CVE-2019-7303).

    Raises:
        RuntimeError: If the machine is not x86-64, the only one whose system call numbers are known here.
    """
    return _filter({**_rules(), **_no_entering()})


def zygote_filter_bytes() -> bytes:
    """The filter of a zygote: the whole one, but for the calls that its children need to enter their pods.

    Children inherit it, so that the kernel need not compile 200 instructions for each of them.
    """
    return _filter(_rules())


def program_filter_bytes() -> bytes:
    """The filter that a child adds in its pod: with the inherited one, it makes up the whole filter."""
    return _filter(_no_entering())


def _filter(rules: dict[int, bytes]) -> bytes:
    if os.uname().machine != "x86_64":
        raise RuntimeError(
            f"the sandbox knows the system calls of x86_64 only, and this machine is {os.uname().machine}: "
            "use an x86_64 machine"
        )
    return b"".join(
        (
            _instruction(_LOAD, _ARCH),
            _instruction(_JUMP_EQUAL, _AUDIT_ARCH_X86_64, when_true=1),
            _instruction(_RETURN, _KILL_PROCESS),  # 32-bit system calls have other numbers
            _instruction(_LOAD, _NUMBER),
            _instruction(_JUMP_GREATER_EQUAL, _X32_BIT, when_false=1),
            _instruction(_RETURN, _ERRNO | errno.ENOSYS),
            _search(sorted(rules.items())),
        )
    )


def _no_entering() -> dict[int, bytes]:
    return {number: _instruction(_RETURN, _ERRNO | errno.EPERM) for number in _ENTERING}


def _rules() -> dict[int, bytes]:
    """System call number -> instructions that decide about the call; calls that are not in the table are allowed."""
    rules = {number: _instruction(_RETURN, _ERRNO | errno.EPERM) for numbers in _DENIED.values() for number in numbers}
    # glibc falls back to clone, whose flags a filter can see.
    for number in (_CLONE3, *(number for numbers in _MISSING.values() for number in numbers)):
        rules[number] = _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    rules[_CLONE] = _clone()
    rules[_IOCTL] = _where(_SECOND_ARGUMENT, _TERMINAL_REQUESTS, found=_ERRNO | errno.EPERM, other=_ALLOW)
    rules[_SOCKET] = _where(_FIRST_ARGUMENT, _SOCKET_FAMILIES, found=_ALLOW, other=_ERRNO | errno.EAFNOSUPPORT)
    rules[_SOCKETPAIR] = _where(_FIRST_ARGUMENT, _SOCKETPAIR_FAMILIES, found=_ALLOW, other=_ERRNO | errno.EAFNOSUPPORT)
    rules[_SETSOCKOPT] = _setsockopt()
    # Limits of another process, such as the shim of a sandbox; 0 stands for the caller itself.
    rules[_PRLIMIT] = _where(_FIRST_ARGUMENT, (0,), found=_ALLOW, other=_ERRNO | errno.EPERM)
    return rules


def _search(rules: list[tuple[int, bytes]]) -> bytes:
    """A binary search tree over the numbers: the kernel tries a new filter on each, and a list would take 0.3 ms."""
    if len(rules) == 1:
        number, code = rules[0]
        return _instruction(_JUMP_EQUAL, number, when_false=len(code) // 8) + code + _instruction(_RETURN, _ALLOW)
    middle = len(rules) // 2
    low, high = _search(rules[:middle]), _search(rules[middle:])
    return _instruction(_JUMP_GREATER_EQUAL, rules[middle][0], when_true=len(low) // 8) + low + high


def _clone() -> bytes:
    return (
        _instruction(_LOAD, _FIRST_ARGUMENT)
        + _instruction(_JUMP_ANY_BIT, _NEW_NAMESPACES, when_false=1)
        + _instruction(_RETURN, _ERRNO | errno.EPERM)
        + _instruction(_RETURN, _ALLOW)
    )


def _where(argument: int, values: tuple[int, ...], *, found: int, other: int) -> bytes:
    """Decide by whether an argument is one of `values`."""
    jumps = (_instruction(_JUMP_EQUAL, value, when_true=len(values) - place) for place, value in enumerate(values))
    return _instruction(_LOAD, argument) + b"".join(jumps) + _instruction(_RETURN, other) + _instruction(_RETURN, found)


def _setsockopt() -> bytes:
    """Leave the sizes of socket buffers, which no limit on memory counts, as they are, and say that they were set."""
    by_option = _where(_THIRD_ARGUMENT, _BUFFER_SIZES, found=_ERRNO, other=_ALLOW)
    return (
        _instruction(_LOAD, _SECOND_ARGUMENT)
        + _instruction(_JUMP_EQUAL, _SOL_SOCKET, when_false=len(by_option) // 8)
        + by_option
        + _instruction(_RETURN, _ALLOW)
    )


def _instruction(code: int, operand: int, *, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, operand)
