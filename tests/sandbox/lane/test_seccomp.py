"""The seccomp filters, run here by an interpreter of their byte code, as the kernel runs them."""

import errno
import functools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.sandbox.lane import call_decisions, seccomp
from verl_pivot.sandbox.lane.system_calls import NUMBERS, TRACED

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
ARCHES = {"x86_64": X86_64, "aarch64": AARCH64}
LAST_NUMBER = 470
CALLS = st.integers(min_value=0, max_value=600)
ARGUMENTS = st.integers(min_value=0, max_value=2**64 - 1)
MACHINES = st.sampled_from(seccomp.MACHINES)
ENTERING = {
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "unshare": 272,
    "setns": 308,
    "landlock_restrict_self": 446,
}
filter_bytes = functools.cache(seccomp.filter_bytes)
zygote_filter_bytes = functools.cache(seccomp.zygote_filter_bytes)
program_filter_bytes = functools.cache(seccomp.program_filter_bytes)
on_every_machine = pytest.mark.parametrize("machine", seccomp.MACHINES)


@functools.cache
def instructions(code: bytes) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", code))


def decide(code: bytes, number: int, *arguments: int, arch: int = X86_64) -> int:
    """Action of the filter `code` for one system call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = instructions(code)
    accumulator, place = 0, 0
    while True:
        operation, when_true, when_false, operand = program[place]
        place += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x05:
            place += operand
        elif operation == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand != 0}
            place += when_true if holds[operation] else when_false


def number_of(name: str, machine: str) -> int | None:
    return NUMBERS[name][seccomp.MACHINES.index(machine)]


def ask(machine: str, name: str, *arguments: int) -> int:
    """Action of a machine's whole filter for the system call with this name."""
    number = number_of(name, machine)
    assert number is not None
    return decide(filter_bytes(machine), number, *arguments, arch=ARCHES[machine])


def named(groups: dict[str, str]) -> set[str]:
    return {name for names in groups.values() for name in names.split()}


@on_every_machine
def test_each_known_call_does_what_the_table_decides_for_it(machine: str) -> None:
    refused, missing = named(call_decisions.REFUSED), named(call_decisions.MISSING)
    allowed = ({*TRACED} | named(call_decisions.ALLOWED)) - refused - missing
    code = filter_bytes(machine)

    for name in NUMBERS:
        number = number_of(name, machine)
        if number is None:
            continue
        found = decide(code, number, arch=ARCHES[machine])
        if name in refused:
            assert found == ERRNO | errno.EPERM, name
        elif name not in allowed:
            assert found == ERRNO | errno.ENOSYS, name
        elif name not in ("sync", "syncfs", "socket", "socketpair", "ioctl", "prctl"):  # these depend on arguments
            assert found == ALLOW, name


def test_every_known_call_is_decided_once_and_every_decision_is_of_a_known_call() -> None:
    groups = [names.split() for table in (call_decisions.ALLOWED, call_decisions.REFUSED, call_decisions.MISSING)
              for names in table.values()]  # fmt: skip
    decided = [name for names in groups for name in names]

    assert sorted(decided) == sorted(set(decided))
    assert {*decided, *TRACED} == set(NUMBERS)
    assert set(ENTERING) == set(call_decisions.ENTERING)


@on_every_machine
def test_what_the_tables_do_not_name_does_not_exist(machine: str) -> None:
    code = filter_bytes(machine)
    known = {number_of(name, machine) for name in NUMBERS}
    unknown = [number for number in (*range(600), 0x3FFFFFFF, 0x40000000 + 39, 0xFFFFFFFF) if number not in known]

    assert {decide(code, number, arch=ARCHES[machine]) for number in unknown} == {ERRNO | errno.ENOSYS}
    assert LAST_NUMBER + 1 in unknown


def test_numbers_are_those_of_the_kernel() -> None:
    """The kernel's numbers stand in asm/unistd_64.h for x86-64 and in asm-generic/unistd.h for aarch64."""
    assert {
        name: NUMBERS[name] for name in ("read", "openat", "mmap", "clone", "ptrace", "statx", "clone3", "open")
    } == {
        "read": (0, 63),
        "openat": (257, 56),
        "mmap": (9, 222),
        "clone": (56, 220),
        "ptrace": (101, 117),
        "statx": (332, 291),
        "clone3": (435, 435),
        "open": (2, None),
    }


def test_numbers_are_those_of_this_machines_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip(f"{header} is not installed: apt-get install linux-libc-dev")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    defined = {name.removeprefix("__NR_"): int(number) for _, name, number in words}

    assert {name: NUMBERS.get(name, (None, None))[0] for name in defined} == defined


def test_a_machine_without_a_table_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="machines of type x86_64 and aarch64, and this one is riscv64"):
        filter_bytes("riscv64")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("ptrace", 101), ("bpf", 321), ("io_uring_setup", 425), ("keyctl", 250), ("add_key", 248), ("shmget", 29)),
        *(("kexec_load", 246), ("reboot", 169), ("open_by_handle_at", 304), ("userfaultfd", 323), ("pidfd_getfd", 438)),
        *(("process_vm_readv", 310), ("perf_event_open", 298), ("memfd_create", 319), ("sched_setaffinity", 203)),
        *(("umount2", 166), ("pivot_root", 155), ("chroot", 161), ("move_mount", 429), ("mount_setattr", 442)),
        *(("mount", 165), ("unshare", 272), ("setns", 308)),
    ],
)
def test_system_calls_that_lead_into_the_kernel_are_refused(name: str, number: int) -> None:
    assert decide(filter_bytes("x86_64"), number) == ERRNO | errno.EPERM, name


@pytest.mark.parametrize("number", [0, 1, 2, 9, 39, 41, 56, 59, 60, 61, 62, 157, 231, 257, 318, 334])
def test_system_calls_that_programs_need_are_allowed(number: int) -> None:
    assert decide(filter_bytes("x86_64"), number, 1) == ALLOW


@on_every_machine
def test_new_namespaces_are_refused_also_through_clone_and_clone3(machine: str) -> None:
    new_user, new_net, threads = 0x10000000, 0x40000000, 0x003D0F00

    assert ask(machine, "clone", new_user | 17) == ERRNO | errno.EPERM
    assert ask(machine, "clone", new_net) == ERRNO | errno.EPERM
    assert ask(machine, "clone", threads) == ALLOW
    assert ask(machine, "clone3") == ERRNO | errno.ENOSYS


@on_every_machine
@pytest.mark.finding("children that no watch sees", where="no service")
def test_no_child_of_a_program_becomes_a_child_of_the_zygote(machine: str) -> None:
    parent, thread, sigchld = 0x8000, 0x10000, 17
    refused = [ask(machine, "clone", high | flags) for high in (0, 1 << 32) for flags in (parent, parent | sigchld)]

    assert {*refused, ask(machine, "clone", parent | thread)} == {ERRNO | errno.EPERM}


@on_every_machine
@pytest.mark.parametrize(
    "flags",
    [
        *(0x11, 0x1200011),  # SIGCHLD alone, and glibc's fork: CLONE_CHILD_{SETTID,CLEARTID}
        *(0x4111, 0x5111),  # glibc's and musl's posix_spawn: CLONE_VM, CLONE_VFORK; Go's with CLONE_PIDFD
        *(0x3D0F00, 0x7D0F00, 0x50F00),  # threads of glibc, musl and Go
        0x800700,  # sanitizers: CLONE_UNTRACED
    ],
)
def test_processes_and_threads_of_common_libraries_can_be_made(machine: str, flags: int) -> None:
    assert ask(machine, "clone", flags) == ALLOW


@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_terminal_injection_is_refused_whatever_the_high_bits_are(high: int) -> None:
    code = filter_bytes("x86_64")

    assert [decide(code, 16, 0, high | request) for request in (0x5412, 0x541C, 0x5423)] == [ERRNO | errno.EPERM] * 3
    assert decide(code, 16, 0, high | 0x5413) == ALLOW  # TIOCGWINSZ


@on_every_machine
def test_only_local_and_internet_sockets_can_be_asked_for(machine: str) -> None:
    stream, datagram, cloexec = 1, 2, 0x80000

    allowed = [family for family in range(64) if ask(machine, "socket", family, stream | cloexec) == ALLOW]

    assert allowed == [1, 2, 10]
    assert ask(machine, "socket", 16, datagram) == ERRNO | errno.EAFNOSUPPORT  # netlink
    assert ask(machine, "socket", 1 << 32 | 16, datagram) == ERRNO | errno.EAFNOSUPPORT


@on_every_machine
@pytest.mark.parametrize("family", [2, 10])
def test_internet_sockets_are_tcp_udp_and_ping_and_load_no_modules(machine: str, family: int) -> None:
    def wins(kind: int, protocol: int) -> bool:
        return ask(machine, "socket", family, kind, protocol) == ALLOW

    assert [kind for kind in range(16) if wins(kind, 0)] == [1, 2, 3]
    assert [protocol for protocol in range(300) if wins(1, protocol)] == [0, 1, 6, 17, 58]
    assert ask(machine, "socket", family, 5, 132) == ERRNO | errno.ESOCKTNOSUPPORT  # SOCK_SEQPACKET of SCTP
    assert ask(machine, "socket", family, 1, 262) == ERRNO | errno.EPROTONOSUPPORT  # IPPROTO_MPTCP


@on_every_machine
def test_requests_of_devices_are_those_of_terminals_files_and_questions(machine: str) -> None:
    terminals = [request for request in range(0x5400, 0x5500) if ask(machine, "ioctl", 0, request) == ALLOW]

    assert terminals == [
        request for request in range(0x5401, 0x5461) if request not in (0x5412, 0x541C, 0x541D, 0x5423)
    ]
    assert ask(machine, "ioctl", 0, 0x80045430) == ALLOW  # TIOCGPTN
    assert ask(machine, "ioctl", 0, 0x8912) == ALLOW  # SIOCGIFCONF
    others = (0x8916, 0x8946, 0x89E0, 0x40049409, 0xC020660B, 0x400454CA, 0x40085203)  # SIOCSIFADDR to RNDADDENTROPY
    assert {ask(machine, "ioctl", 0, request) for request in others} == {ERRNO | errno.ENOTTY}


@on_every_machine
@pytest.mark.finding("ports, sockets and open files of others", where="no service")
def test_nobody_watches_what_others_open(machine: str) -> None:
    f_notify, f_setlease = 1026, 1024

    assert [command for command in range(2000) if ask(machine, "fcntl", 0, command) != ALLOW] == [f_setlease, f_notify]
    assert ask(machine, "inotify_init1") == ERRNO | errno.ENOSYS


@on_every_machine
@pytest.mark.parametrize("option", [22, 35, 62])
def test_options_that_take_kernel_memory_or_others_cores_do_not_exist(machine: str, option: int) -> None:
    """The options 22, 35 and 62 are PR_SET_SECCOMP, PR_SET_MM and PR_SCHED_CORE."""
    assert ask(machine, "prctl", option) == ERRNO | errno.EINVAL
    assert ask(machine, "prctl", 15) == ALLOW  # PR_SET_NAME


@on_every_machine
def test_flushing_the_machines_disks_succeeds_without_doing_it(machine: str) -> None:
    assert [ask(machine, name) for name in ("sync", "syncfs")] == [ERRNO, ERRNO]
    assert ask(machine, "fsync") == ALLOW


@on_every_machine
def test_no_program_gives_up_its_share_of_the_core(machine: str) -> None:
    idle, reset_on_fork = 5, 0x40000000
    asked = [ask(machine, "sched_setscheduler", 0, policy) for policy in (0, 3, idle, idle | reset_on_fork)]

    assert asked == [ALLOW, ALLOW, *[ERRNO | errno.EPERM] * 2]


@on_every_machine
def test_a_personality_can_be_asked_for_and_not_changed(machine: str) -> None:
    asked = [ask(machine, "personality", value) for value in (0xFFFFFFFF, 0, 8, 0x40000)]

    assert asked == [ALLOW, ALLOW, *[ERRNO | errno.EPERM] * 2]


def test_pairs_of_sockets_are_local_ones() -> None:
    code = filter_bytes("x86_64")

    assert [family for family in range(64) if decide(code, 53, family) == ALLOW] == [1]


@pytest.mark.parametrize("option", [7, 8, 32, 33])
def test_sizes_of_socket_buffers_are_left_alone_and_said_to_be_set(option: int) -> None:
    code = filter_bytes("x86_64")

    assert decide(code, 54, 3, 1, option) == ERRNO
    assert decide(code, 54, 3, 1 << 32 | 1, 1 << 32 | option) == ERRNO
    assert decide(code, 54, 3, 6, option) == ALLOW  # the same number among the options of TCP
    assert [other for other in range(64) if decide(code, 54, 3, 1, other) == ERRNO] == [7, 8, 32, 33]


@on_every_machine
def test_sockets_take_no_filters(machine: str) -> None:
    refused = [other for other in range(90) if ask(machine, "setsockopt", 3, 1, other) == ERRNO | errno.ENOPROTOOPT]

    assert refused == [26, 50, 51, 52]


def test_only_a_process_s_own_limits_can_be_asked_for_and_set() -> None:
    code = filter_bytes("x86_64")

    assert [decide(code, 302, pid) for pid in (0, 1, 2, 0xFFFFFFFF)] == [ALLOW, *[ERRNO | errno.EPERM] * 3]


@pytest.mark.parametrize("number", [206, 253, 294])
def test_calls_that_use_up_what_all_programs_share_do_not_exist(number: int) -> None:
    assert decide(filter_bytes("x86_64"), number) == ERRNO | errno.ENOSYS


def test_other_architectures_are_killed_and_x32_does_not_exist() -> None:
    assert decide(filter_bytes("x86_64"), 4, arch=I386) == KILL
    assert decide(filter_bytes("x86_64"), 0, arch=AARCH64) == KILL
    assert decide(filter_bytes("x86_64"), 0x40000000) == ERRNO | errno.ENOSYS
    assert decide(filter_bytes("aarch64"), 4, arch=ARM) == KILL


@given(MACHINES, CALLS, ARGUMENTS | st.integers(0, 99), ARGUMENTS)
def test_the_filters_of_zygote_and_program_together_are_the_whole_filter(
    machine: str, number: int, first: int, second: int
) -> None:
    arch = ARCHES[machine]
    zygote = decide(zygote_filter_bytes(machine), number, first, second, arch=arch)
    program = decide(program_filter_bytes(machine), number, first, second, arch=arch)

    together = program if zygote == ALLOW else zygote  # the kernel applies the stricter filter
    assert together == decide(filter_bytes(machine), number, first, second, arch=arch)


@given(MACHINES, CALLS)
def test_a_zygote_may_make_only_the_calls_that_enter_a_pod_beside_those_of_programs(machine: str, number: int) -> None:
    arch = ARCHES[machine]
    keeps = decide(zygote_filter_bytes(machine), number, arch=arch) == ALLOW
    loses = decide(filter_bytes(machine), number, arch=arch) != ALLOW

    assert (keeps and loses) == (number in [number_of(name, machine) for name in ENTERING])


@on_every_machine
def test_jumps_of_a_filter_stay_inside_it_and_it_is_of_a_size_that_the_kernel_takes(machine: str) -> None:
    for code in (
        filter_bytes(machine),
        zygote_filter_bytes(machine),
        program_filter_bytes(machine),
    ):
        program = instructions(code)
        for place, (operation, when_true, when_false, operand) in enumerate(program):
            farthest = operand if operation == 0x05 else max(when_true, when_false)
            assert operation == 0x06 or place + 1 + farthest < len(program)
        assert len(program) <= 4096  # BPF_MAXINSNS


@on_every_machine
def test_the_limit_on_core_files_stays_and_every_other_limit_of_ones_own_may_be_set(machine: str) -> None:
    core, others, pointer = 4, [each for each in range(16) if each != 4], 0x7F0000001000

    assert {ask(machine, "prlimit64", 0, core, 0, pointer), ask(machine, "prlimit64", 0, core)} == {ALLOW}
    assert {ask(machine, "prlimit64", 0, core, new) for new in (pointer, 1, 1 << 32, 1 << 63)} == {ERRNO}
    assert {ask(machine, "prlimit64", 0, core, new, pointer) for new in (pointer, 1 << 32)} == {ERRNO | errno.EPERM}
    assert {ask(machine, "prlimit64", 0, each, pointer, pointer) for each in others} == {ALLOW}
    assert ask(machine, "prlimit64", 1, core) == ERRNO | errno.EPERM
    assert ask(machine, "setrlimit", core, pointer) == ERRNO
    assert {ask(machine, "setrlimit", each, pointer) for each in others} == {ALLOW}
