"""The seccomp filters, run here by an interpreter of their byte code, as the kernel runs them."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.sandbox.lane import seccomp

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86_64, I386 = 0xC000003E, 0x40000003
NUMBERS = st.integers(min_value=0, max_value=600)
ENTERING = {"mount": 165, "unshare": 272, "setns": 308}


def decide(code: bytes, number: int, *arguments: int, arch: int = X86_64) -> int:
    """Action of the filter for one system call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = [struct.unpack_from("=HBBI", code, offset) for offset in range(0, len(code), 8)]
    accumulator, place = 0, 0
    while True:
        operation, when_true, when_false, operand = program[place]
        place += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand != 0}
            place += when_true if holds[operation] else when_false


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("ptrace", 101), ("bpf", 321), ("io_uring_setup", 425), ("keyctl", 250), ("add_key", 248), ("shmget", 29)),
        *(("kexec_load", 246), ("reboot", 169), ("open_by_handle_at", 304), ("userfaultfd", 323), ("pidfd_getfd", 438)),
        *(("process_vm_readv", 310), ("perf_event_open", 298), ("memfd_create", 319), ("sched_setaffinity", 203)),
        *(("umount2", 166), ("pivot_root", 155), ("chroot", 161), ("move_mount", 429), ("mount_setattr", 442)),
        *ENTERING.items(),
    ],
)
def test_system_calls_that_lead_into_the_kernel_are_refused(name: str, number: int) -> None:
    assert decide(seccomp.filter_bytes(), number) == ERRNO | errno.EPERM, name


@pytest.mark.parametrize("number", [0, 1, 2, 9, 39, 41, 56, 59, 60, 61, 62, 157, 231, 257, 318, 334])
def test_system_calls_that_programs_need_are_allowed(number: int) -> None:
    assert decide(seccomp.filter_bytes(), number, 1) == ALLOW


def test_new_namespaces_are_refused_also_through_clone_and_clone3() -> None:
    new_user, new_net, threads = 0x10000000, 0x40000000, 0x003D0F00

    assert decide(seccomp.filter_bytes(), 56, new_user | 17) == ERRNO | errno.EPERM
    assert decide(seccomp.filter_bytes(), 56, new_net) == ERRNO | errno.EPERM
    assert decide(seccomp.filter_bytes(), 56, threads) == ALLOW
    assert decide(seccomp.filter_bytes(), 435) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_terminal_injection_is_refused_whatever_the_high_bits_are(high: int) -> None:
    code = seccomp.filter_bytes()

    assert [decide(code, 16, 0, high | request) for request in (0x5412, 0x541C, 0x5423)] == [ERRNO | errno.EPERM] * 3
    assert decide(code, 16, 0, high | 0x5413) == ALLOW  # TIOCGWINSZ


def test_only_local_and_internet_sockets_can_be_asked_for() -> None:
    code = seccomp.filter_bytes()

    allowed = [family for family in range(64) if decide(code, 41, family) == ALLOW]

    assert allowed == [1, 2, 10]
    assert decide(code, 41, 16) == ERRNO | errno.EAFNOSUPPORT  # netlink


def test_pairs_of_sockets_are_local_ones() -> None:
    code = seccomp.filter_bytes()

    assert [family for family in range(64) if decide(code, 53, family) == ALLOW] == [1]


@pytest.mark.parametrize("option", [7, 8, 32, 33])
def test_sizes_of_socket_buffers_are_left_alone_and_said_to_be_set(option: int) -> None:
    code = seccomp.filter_bytes()

    assert decide(code, 54, 3, 1, option) == ERRNO
    assert decide(code, 54, 3, 1 << 32 | 1, 1 << 32 | option) == ERRNO
    assert decide(code, 54, 3, 6, option) == ALLOW  # the same number among the options of TCP
    assert [other for other in range(64) if decide(code, 54, 3, 1, other) != ALLOW] == [7, 8, 32, 33]


def test_only_a_process_s_own_limits_can_be_asked_for_and_set() -> None:
    code = seccomp.filter_bytes()

    assert [decide(code, 302, pid) for pid in (0, 1, 2, 0xFFFFFFFF)] == [ALLOW, *[ERRNO | errno.EPERM] * 3]


@pytest.mark.parametrize("number", [206, 253, 294])
def test_calls_that_use_up_what_all_programs_share_do_not_exist(number: int) -> None:
    assert decide(seccomp.filter_bytes(), number) == ERRNO | errno.ENOSYS


def test_other_architectures_are_killed_and_x32_does_not_exist() -> None:
    assert decide(seccomp.filter_bytes(), 4, arch=I386) == KILL
    assert decide(seccomp.filter_bytes(), 0x40000000) == ERRNO | errno.ENOSYS


@given(NUMBERS, st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=2**64 - 1))
def test_the_filters_of_zygote_and_program_together_are_the_whole_filter(number: int, first: int, second: int) -> None:
    zygote = decide(seccomp.zygote_filter_bytes(), number, first, second)
    program = decide(seccomp.program_filter_bytes(), number, first, second)

    together = program if zygote == ALLOW else zygote  # the kernel takes the stricter
    assert together == decide(seccomp.filter_bytes(), number, first, second)


@given(NUMBERS)
def test_a_zygote_may_make_only_the_calls_that_enter_a_pod_beside_those_of_programs(number: int) -> None:
    keeps = decide(seccomp.zygote_filter_bytes(), number) == ALLOW
    loses = decide(seccomp.filter_bytes(), number) != ALLOW

    assert (keeps and loses) == (number in ENTERING.values())
