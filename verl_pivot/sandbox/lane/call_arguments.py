"""System calls that depend on an argument -> the instructions that decide, one function for each call.

Arguments are compared in their low 32 bits, which is what the kernel reads (CVE-2019-10063, CVE-2019-7303).
"""

import errno

from verl_pivot.sandbox.lane.filter_code import ALLOW, by_value, fail

# Offsets in struct seccomp_data.
_FIRST, _SECOND, _THIRD, _FOURTH = 16, 24, 32, 40

_REFUSED_CLONES = 0x7E020080 | 0x8000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}, and CLONE_PARENT: such a child of a program would be a child of the
zygote, which is outside of the pod and waits for its own children alone. No C library makes one."""
_UNIX, _INTERNET = 1, (2, 10)
_SOCKET_TYPE_BITS = 0xF
_INTERNET_TYPES = (1, 2, 3)
"""SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, for which the kernel wants a capability."""
_INTERNET_PROTOCOLS = (0, 1, 6, 17, 58)
"""Default protocol of the type, ICMP, TCP, UDP, ICMPv6. Not SCTP, MPTCP, DCCP and L2TP, which load kernel modules."""
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, and the same with FORCE."""
_SOCKET_FILTERS = (26, 50, 51, 52)
"""SO_ATTACH_{FILTER,BPF,REUSEPORT_CBPF,REUSEPORT_EBPF}."""
_TERMINAL_INJECTIONS = (0x5412, 0x541C, 0x541D, 0x5423)
"""TIOCSTI, TIOCLINUX (CVE-2017-5226), TIOCCONS, TIOCSETD, which loads kernel modules."""
_TERMINALS_AND_FILES = range(0x5401, 0x5461)
"""Requests of terminals, and those of every file: FIONREAD, FIONBIO, FIOCLEX, FIOASYNC."""
_MORE_REQUESTS = (
    *(0x80045430, 0x40045431, 0x80045432, 0x40045436, 0x80045438, 0x80045439, 0x80045440),  # TIOCGPTN and the like
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # TCGETS2, TCSETS2, TCSETSW2, TCSETSF2
    0x8914,  # SIOCSIFFLAGS, by which a pod's first process raises its loopback interface; others lack the capability
    *(0x8905, 0x8906, 0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933, 0x8942),
    *(0x80045200, 0x80086601),  # RNDGETENTCNT, FS_IOC_GETFLAGS
)
"""Further requests. They set nothing but attributes of a terminal, and with SIOCSIFFLAGS those of an interface. Those
for sockets are SIOCATMARK, SIOCGSTAMP and SIOCGIF*."""
_FCNTL_WATCHES = (1024, 1026)
"""F_SETLEASE, F_NOTIFY: they tell a program when others open a file or change a folder."""
_SET_SECCOMP = 22
_PROCESS_OPTIONS = (
    *(1, 2, 3, 4, 7, 8, 15, 16, 21, 23, 24, 27, 28, 29, 30),  # death signal, dumpable, name, capabilities, timer slack
    *(36, 37, 38, 39, 40, 41, 42, 47),  # subreaper, no_new_privs, huge pages
    *range(50, 57),  # vectors, speculation, pointer keys and tags
    *(60, 61, 63, 64, 65, 66),  # pointer keys, vectors, writing or executing
    *(0x53564D41, 0x59616D61),  # PR_SET_VMA, PR_SET_PTRACER
)
"""Allowed options of prctl. PR_SCHED_CORE, which keeps others off the second half of a core, and PR_SET_MM are not."""
_LIMIT_OF_CORE = 4
"""RLIMIT_CORE."""
_NATIVE_PERSONALITIES = (0, 0xFFFFFFFF)
"""The personality of Linux itself, and the value that only asks for the present personality."""
_SCHED_IDLE, _POLICY_BITS = 5, 0xF
"""Policy of processes that run only when no other process wants the core, and mask of a policy without its flags."""


def clone() -> bytes:
    return by_value(_FIRST, (), ALLOW, bits=_REFUSED_CLONES, found_bits=fail(errno.EPERM))


def ioctl() -> bytes:
    allowed = [(range(first, last), ALLOW) for first, last in _without(_TERMINALS_AND_FILES, _TERMINAL_INJECTIONS)]
    refused = [(_one(request), fail(errno.EPERM)) for request in _TERMINAL_INJECTIONS]
    asking = [(_one(request), ALLOW) for request in _MORE_REQUESTS]
    return by_value(_SECOND, [*allowed, *refused, *asking], fail(errno.ENOTTY))


def ioctl_of_devices() -> bytes:
    """Allow the requests of any driver, which only the programs of a language with devices can reach."""
    return by_value(_SECOND, [(_one(request), fail(errno.EPERM)) for request in _TERMINAL_INJECTIONS], ALLOW)


def fcntl() -> bytes:
    return by_value(_SECOND, [(_one(command), fail(errno.EINVAL)) for command in _FCNTL_WATCHES], ALLOW)


def prctl(*, may_filter: bool) -> bytes:
    """Decide about prctl.

    Args:
        may_filter: Whether PR_SET_SECCOMP is allowed, which a zygote's children need once; filters are memory of the
            kernel that no limit counts.
    """
    options = (*_PROCESS_OPTIONS, _SET_SECCOMP) if may_filter else _PROCESS_OPTIONS
    return by_value(_FIRST, [(_one(option), ALLOW) for option in options], fail(errno.EINVAL))


def no_more_filters() -> bytes:
    return by_value(_FIRST, [(_one(_SET_SECCOMP), fail(errno.EINVAL))], ALLOW)


def socket() -> bytes:
    protocols = by_value(_THIRD, [(_one(each), ALLOW) for each in _INTERNET_PROTOCOLS], fail(errno.EPROTONOSUPPORT))
    types = [(_one(each), protocols) for each in _INTERNET_TYPES]
    internet = by_value(_SECOND, types, fail(errno.ESOCKTNOSUPPORT), mask=_SOCKET_TYPE_BITS)
    families = [(_one(_UNIX), ALLOW), *((_one(family), internet) for family in _INTERNET)]
    return by_value(_FIRST, families, fail(errno.EAFNOSUPPORT))


def socketpair() -> bytes:
    return by_value(_FIRST, [(_one(_UNIX), ALLOW)], fail(errno.EAFNOSUPPORT))


def setsockopt() -> bytes:
    """Leave the sizes of socket buffers, which no limit on memory counts, as they are, and say that they were set."""
    sizes = [(_one(option), fail(0)) for option in _BUFFER_SIZES]
    filters = [(_one(option), fail(errno.ENOPROTOOPT)) for option in _SOCKET_FILTERS]
    options = by_value(_THIRD, [*sizes, *filters], ALLOW)
    return by_value(_SECOND, [(_one(_SOL_SOCKET), options)], ALLOW)


def prlimit() -> bytes:
    """Refuse limits of other processes, such as the shim; process id 0 stands for the caller itself."""
    setting = _when_null(_FOURTH, fail(0), fail(errno.EPERM))
    of_core = by_value(_SECOND, [(_one(_LIMIT_OF_CORE), _when_null(_THIRD, ALLOW, setting))], ALLOW)
    return by_value(_FIRST, [(_one(0), of_core)], fail(errno.EPERM))


def setrlimit() -> bytes:
    """Leave the limit on core files, see confinement.core_limit, and say that it was set: scripts often set it."""
    return by_value(_FIRST, [(_one(_LIMIT_OF_CORE), fail(0))], ALLOW)


def personality() -> bytes:
    return by_value(_FIRST, [(_one(value), ALLOW) for value in _NATIVE_PERSONALITIES], fail(errno.EPERM))


def sched_setscheduler() -> bytes:
    """Let no program give up its share of the core: time of waiting for a core is granted to it, see core_time."""
    return by_value(_SECOND, [(_one(_SCHED_IDLE), fail(errno.EPERM))], ALLOW, mask=_POLICY_BITS)


def _when_null(offset: int, null: bytes, other: bytes) -> bytes:
    """Decide by whether an argument, with all its 64 bits, is a null pointer."""
    high = by_value(offset + 4, [(_one(0), null)], other)
    return by_value(offset, [(_one(0), high)], other)


def _one(value: int) -> range:
    return range(value, value + 1)


def _without(values: range, removed: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first, end) of each stretch of `values` that is left without `removed`."""
    firsts = [values.start, *(value + 1 for value in removed)]
    return [(first, end) for first, end in zip(firsts, [*removed, values.stop], strict=True) if first < end]
