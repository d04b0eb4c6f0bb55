"""System calls that sandboxed programs may make -> a compiled seccomp filter (classic BPF), for x86-64 and aarch64."""

import errno
import os
from collections.abc import Callable, Mapping

from verl_pivot.sandbox.lane import call_arguments
from verl_pivot.sandbox.lane.call_decisions import ALLOWED, ENTERING, MISSING, REFUSED
from verl_pivot.sandbox.lane.filter_code import ALLOW, KILL, by_value, fail, when_equal
from verl_pivot.sandbox.lane.system_calls import NUMBERS, TRACED

# Offsets in struct seccomp_data.
_NUMBER, _ARCH = 0, 4
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""{machine: its AUDIT_ARCH of linux/audit.h}, in the order of the numbers in system_calls.NUMBERS."""
MACHINES = tuple(_ARCHES)
"""Machines whose system calls are known here."""
_BY_ARGUMENTS: Mapping[str, Callable[[], bytes]] = {
    "clone": call_arguments.clone,
    "fcntl": call_arguments.fcntl,
    "ioctl": call_arguments.ioctl,
    "personality": call_arguments.personality,
    "prlimit64": call_arguments.prlimit,
    "sched_setscheduler": call_arguments.sched_setscheduler,
    "setrlimit": call_arguments.setrlimit,
    "setsockopt": call_arguments.setsockopt,
    "socket": call_arguments.socket,
    "socketpair": call_arguments.socketpair,
    "sync": lambda: fail(0),  # a program's files lie in memory, and it must not sync the files of the machine
    "syncfs": lambda: fail(0),
}


def filter_bytes(machine: str = os.uname().machine, *, has_devices: bool = False) -> bytes:
    """The whole filter as an array of struct sock_filter, for `bwrap --seccomp FD` and seccomp(2).

    Args:
        machine: One of MACHINES.
        has_devices: Whether programs may use devices, whose drivers have requests of their own.

    Raises:
        RuntimeError: If the machine is none of MACHINES.
    """
    rules = {**_rules(), "prctl": call_arguments.prctl(may_filter=False)}
    if has_devices:
        rules["ioctl"] = call_arguments.ioctl_of_devices()
    return _filter(rules, fail(errno.ENOSYS), machine)


def zygote_filter_bytes(machine: str = os.uname().machine) -> bytes:
    """The filter of a zygote: as filter_bytes, but it also allows the calls that its children need to enter their pods.

    Children inherit it, so that the kernel need not compile 500 instructions for each child.
    """
    entering = dict.fromkeys(ENTERING, ALLOW)
    return _filter(
        {**_rules(), **entering, "prctl": call_arguments.prctl(may_filter=True)}, fail(errno.ENOSYS), machine
    )


def program_filter_bytes(machine: str = os.uname().machine) -> bytes:
    """The filter that a child adds in its pod: together with the inherited filter it decides as filter_bytes does."""
    rules = _rules()
    taken = {name: rules[name] for name in ENTERING}
    return _filter({**taken, "prctl": call_arguments.no_more_filters()}, ALLOW, machine)


def _rules() -> dict[str, bytes]:
    """{system call: instructions that decide about it}; a call that is not in it is treated as missing."""
    rules = dict.fromkeys((*TRACED, *_named(ALLOWED)), ALLOW)
    rules |= {name: rule() for name, rule in _BY_ARGUMENTS.items()}
    rules |= dict.fromkeys(_named(REFUSED), fail(errno.EPERM))
    return rules | dict.fromkeys(_named(MISSING), fail(errno.ENOSYS))


def _named(groups: Mapping[str, str]) -> list[str]:
    return [name for names in groups.values() for name in names.split()]


def _filter(rules: Mapping[str, bytes], otherwise: bytes, machine: str) -> bytes:
    """A filter that ends programs which make calls of another architecture, whose numbers mean something else.

    On x86-64 these are calls by int 0x80. The numbers of x32 calls are beyond the table, so such calls fail as missing.
    """
    if machine not in _ARCHES:
        raise RuntimeError(
            f"the sandbox supports only machines of type {' and '.join(MACHINES)}, and this one is {machine}: "
            "use another machine"
        )
    place = MACHINES.index(machine)
    cases = [(range(number, number + 1), code) for name, code in rules.items()
             if (number := NUMBERS[name][place]) is not None]  # fmt: skip
    return when_equal(_ARCH, _ARCHES[machine], by_value(_NUMBER, cases, otherwise), KILL)
