"""Programs that look for a way out: processes, secrets, networks, the kernel (H-33 to H-46)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.sandbox_services import (
    CANARY,
    IS_ROOT,
    SMALL,
    Kind,
    on_every_kind,
    on_every_kind_and_tier,
    on_zygotes,
    service,
    start_service,
)
from verl_pivot.sandbox.bubblewrap.process_tree import descendants
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Status

pytestmark = pytest.mark.heavy

PROLOGUE = """
import ctypes, errno, fcntl, json, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action, *arguments):
    try:
        outcome = action(*arguments)
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno))
    answers[name] = outcome
def call(number, *arguments):
    outcome = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return errno.errorcode[ctypes.get_errno()] if outcome < 0 else outcome
answers = {}
"""
EPILOGUE = "\nprint(json.dumps(answers))"


def answers(kind: Kind, code: str, **options: object) -> dict[str, object]:
    """The dict `answers` that a program fills; its code runs between PROLOGUE and EPILOGUE."""
    found: dict[str, object] = json.loads(service(kind).output(PROLOGUE + code + EPILOGUE, **options))
    return found


@on_every_kind
def test_h33_proc_shows_no_process_outside(kind: Kind) -> None:
    found = answers(kind, "answers['pids'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")

    if kind is Kind.BWRAP_EXEC:
        assert found["pids"] == [1, 2]  # 1 is the pod's shim, without secrets or rights of its own
    else:
        assert found["pids"] == [2]  # hidepid: not even the pod's PID 1


@on_every_kind
def test_h33_pid_1_keeps_its_memory_and_files_to_itself(kind: Kind) -> None:
    code = """
for name in ("environ", "cmdline", "maps", "mem", "auxv", "stat"):
    attempt(name, lambda: open(f"/proc/1/{name}", "rb").read(100).decode("latin-1"))
attempt("memory write", lambda: bool(open("/proc/1/mem", "r+b")))
attempt("root", lambda: os.listdir("/proc/1/root"))
attempt("cwd", lambda: os.listdir("/proc/1/cwd"))
attempt("fd", lambda: os.listdir("/proc/1/fd"))
"""

    found = answers(kind, code)

    if kind is Kind.BWRAP_EXEC:
        closed = {name: found[name] for name in ("environ", "maps", "mem", "memory write", "root", "cwd", "fd")}
        assert set(closed.values()) <= {"EACCES", "EPERM"}
    else:
        assert set(found.values()) == {"ENOENT"}


SEARCH = """
import os, re, sys
needle = re.compile(sys.argv[1].encode())
def look(place, content):
    if needle.search(content):
        print("found in", place)
def read(path, size=1 << 22):
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""
def link(path):
    try:
        return os.readlink(path).encode()
    except OSError:
        return b""
look("environment", repr(os.environ).encode())
for folder, folders, files in os.walk("/proc"):
    folders[:] = [name for name in folders if name not in ("task", "kpagecgroup")]
    for name in files:
        if name not in ("mem", "pagemap", "kmsg", "kcore") and os.path.isfile(os.path.join(folder, name)):
            look(os.path.join(folder, name), read(os.path.join(folder, name), 1 << 16))
    for name in files + folders:
        look(os.path.join(folder, name) + " (name)", os.fsencode(name) + b" " + link(os.path.join(folder, name)))
for root in sys.argv[2:]:
    for folder, folders, files in os.walk(root):
        if folder == "/":
            folders[:] = [name for name in folders if name != "proc"]
        for name in files + folders:
            look(os.path.join(folder, name) + " (name)", os.fsencode(name) + b" " + link(os.path.join(folder, name)))
        if not folder.startswith(("/usr", "/venv", sys.base_prefix)):
            for name in files:
                if os.path.isfile(os.path.join(folder, name)):
                    look(os.path.join(folder, name), read(os.path.join(folder, name)))
pattern = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r")
if os.path.isdir("/proc/self"):
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps.readlines():
            found = pattern.match(line)
            if found and "[v" not in line:
                start, end = (int(part, 16) for part in found.groups())
                try:
                    memory.seek(start)
                    look("memory " + line.strip(), memory.read(end - start))
                except OSError:
                    pass
print("searched")
"""


SEARCH_BY_COMMANDS = """
{
    env
    cat /proc/[0-9]*/{environ,cmdline,maps,mountinfo} /proc/net/unix 2> /dev/null | tr '\\0' '\\n'
    find / -path /proc -prune -o -printf '%p %l\\n' 2> /dev/null
    grep -arsh --devices=skip . /etc /dev /tmp /sandbox --exclude=main.sh
} | grep -aE "$1"
echo searched
"""


@on_every_kind_and_tier
@pytest.mark.parametrize(("language", "search"), [("python", SEARCH), ("bash", SEARCH_BY_COMMANDS)])
@pytest.mark.finding("secrets of the service")
def test_h34_no_secret_of_the_service_is_in_anything_readable(kind: Kind, language: str, search: str) -> None:
    limits = Limits(wall_seconds=30.0, memory_bytes=512 * MIB)

    assert service(kind).output(search, language=language, args=(CANARY, "/"), limits=limits) == "searched\n"


@on_zygotes
@pytest.mark.finding("secrets of the service")
def test_h34_no_program_reads_where_the_folders_that_it_sees_lie(kind: Kind) -> None:
    code = """
for line in open("/proc/self/mountinfo"):
    mount, _, kind = line.partition(" - ")
    kind, source, options = kind.split()
    if kind not in ("tmpfs", "proc", "devpts", "devtmpfs"): print(mount.split()[3], kind, source, options)
"""
    told = {"/ overlay overlay ro,lowerdir=.:/tmp/covers/empty"}

    lines = service(kind).output(code).splitlines()

    assert len(lines) >= 4
    assert {",".join(line.split(",")[:2]) for line in lines} == told


@on_zygotes
@pytest.mark.finding("secrets of the service")
def test_h34_nor_in_what_a_session_can_read(kind: Kind) -> None:
    import asyncio

    async def main() -> None:
        limits = Limits(wall_seconds=30.0, memory_bytes=512 * MIB)
        async with service(kind).client() as sandbox, await sandbox.open(limits=limits) as session:
            result = await session.run(f"import sys; sys.argv = ['', {CANARY!r}, '/']\n{SEARCH}")
            assert (result.error, result.stdout) == (None, "searched\n")

    asyncio.run(main())


def test_h34_the_search_does_find_what_is_there(tmp_path: object) -> None:
    secret = "canary-" + "0" * 32
    os.makedirs(f"{tmp_path}/{secret}")
    without_others = ("bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--")

    run = subprocess.run(
        [*without_others, sys.executable, "-c", SEARCH, CANARY, str(tmp_path)],
        env={"SECRET": secret},
        capture_output=True,
        text=True,
        check=True,
    )

    places = {line.split()[2] for line in run.stdout.splitlines() if line.startswith("found in")}
    assert {"environment", "memory", f"{tmp_path}/{secret}"} <= places
    assert any(re.fullmatch(r"/proc/\d+/environ", place) for place in places)


@on_every_kind
def test_h34_the_environment_is_a_constant(kind: Kind) -> None:
    found = answers(kind, "answers.update(os.environ)")

    assert found == {
        "PATH": "/venv/bin:/usr/local/bin:/usr/bin:/bin" if sys.prefix != sys.base_prefix else found["PATH"],
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "PWD": "/tmp",
    }


NETWORK = """
port = int(sys.argv[1])
def tcp(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        client.connect(address)
    return "connected"
def udp(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        client.connect(address)
        client.send(b"x")
        client.recv(10)
    return "answered"
def name(host):
    try:
        return socket.getaddrinfo(host, 80)[0][4][0]
    except socket.gaierror:
        return "unknown"
attempt("service", tcp, socket.AF_INET, ("127.0.0.1", port))
attempt("service udp", udp, socket.AF_INET, ("127.0.0.1", port))
attempt("any", tcp, socket.AF_INET, ("0.0.0.0", port))
attempt("ipv6 loopback", tcp, socket.AF_INET6, ("::1", port))
attempt("mapped", tcp, socket.AF_INET6, ("::ffff:127.0.0.1", port))
attempt("metadata", tcp, socket.AF_INET, ("169.254.169.254", 80))
attempt("lan", tcp, socket.AF_INET, ("192.168.0.1", 22))
attempt("internet", tcp, socket.AF_INET, ("1.1.1.1", 53))
attempt("internet udp", udp, socket.AF_INET, ("1.1.1.1", 53))
attempt("ipv6", tcp, socket.AF_INET6, ("2606:4700:4700::1111", 53))
attempt("multicast", udp, socket.AF_INET, ("224.0.0.1", 5353))
attempt("name", name, "example.com")
for family in range(64):
    if family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        attempt(f"family {family}", call, 41, family, socket.SOCK_RAW, 0)
        attempt(f"family {family} + 2**32", call, 41, family + (1 << 32), socket.SOCK_RAW, 0)  # the low 32 bits count
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) and "opened")
"""
UNREACHABLE = {"ENETUNREACH", "EADDRNOTAVAIL"}


@on_every_kind
@pytest.mark.parametrize("network", [each for each in Network if each is not Network.PROXY])
def test_h35_no_network_is_reachable_not_even_the_service(kind: Kind, network: Network) -> None:
    port = str(urlsplit(service(kind).url).port)

    found = answers(kind, NETWORK, args=(port,), network=network)

    assert {found.pop(name) for name in tuple(found) if name.startswith("family")} == {"EAFNOSUPPORT"}
    assert (found.pop("raw"), found.pop("name")) == ("EPERM", "unknown")
    has_loopback = kind is Kind.BWRAP_EXEC or network is Network.LOOPBACK
    local = {name: found.pop(name) for name in ("service", "service udp", "any", "ipv6 loopback", "mapped")}
    assert set(local.values()) <= ({"ECONNREFUSED"} if has_loopback else UNREACHABLE)
    assert set(found.values()) <= UNREACHABLE


MEET = """
import errno, socket, sys, time
address = "\\0meeting" if sys.argv[2] == "abstract" else ("127.0.0.1", 4000)
kind = socket.AF_UNIX if sys.argv[2] == "abstract" else socket.AF_INET
def connect():
    with socket.socket(kind) as client:
        try:
            client.connect(address)
        except OSError as error:
            return errno.errorcode[error.errno]
    return "connected"
if sys.argv[1] == "listen":
    server = socket.socket(kind)
    server.bind(address)
    server.listen()
    print(connect())
    time.sleep(1.0)
    server.setblocking(False)
    server.accept()
    try:
        server.accept()
    except BlockingIOError:
        print("nobody else")
else:
    seen = set()
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        seen.add(connect())
        time.sleep(0.02)
    print(sorted(seen))
"""


@on_every_kind_and_tier
@pytest.mark.finding("ports, sockets and open files of others")
def test_h36_abstract_sockets_of_other_programs_cannot_be_met(kind: Kind) -> None:
    others = [Program(code=MEET, args=("connect", "abstract"), limits=SMALL)] * 4  # so many that both lanes run some

    listener, *clients = service(kind).run_many(
        [Program(code=MEET, args=("listen", "abstract"), limits=SMALL), *others]
    )

    assert listener.stdout == "connected\nnobody else\n"
    assert {client.stdout for client in clients} <= {"['EPERM']\n", "['ECONNREFUSED']\n", "['ECONNREFUSED', 'EPERM']\n"}


@on_every_kind_and_tier
@pytest.mark.finding("ports, sockets and open files of others")
def test_h37_two_servers_on_one_port_do_not_see_each_other(kind: Kind) -> None:
    servers = [Program(code=MEET, args=("listen", "tcp"), limits=SMALL, network=Network.LOOPBACK)] * 2
    client = Program(code=MEET, args=("connect", "tcp"), limits=SMALL, network=Network.LOOPBACK)

    *served, alone = service(kind).run_many([*servers, client])

    assert [result.stdout for result in served] == ["connected\nnobody else\n"] * 2
    assert alone.stdout == "['ECONNREFUSED']\n"


KERNEL = {
    "h38_other_processes": (
        """
buffer = ctypes.create_string_buffer(64)
vector = struct.pack("QQ", ctypes.addressof(buffer), 64)
for name, request, pid in (("attach", 16, 1), ("seize", 0x4206, 1), ("traceme", 0, 0)):
    attempt(name, call, 101, request, pid, 0, 0)
attempt("process_vm_readv", call, 310, 1, vector, 1, vector, 1, 0)
attempt("process_vm_writev", call, 311, 1, vector, 1, vector, 1, 0)
attempt("kcmp", call, 312, 1, os.getpid(), 0, 0, 0)
attempt("pidfd_getfd", call, 438, os.pidfd_open(os.getpid()), 0, 0)
attempt("process_madvise", call, 440, os.pidfd_open(os.getpid()), vector, 1, 4, 0)
""",
        {"EPERM"},
    ),
    "h39_namespaces_and_mounts": (
        """
for name, flag in {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
                   "pid": 0x20000000, "net": 0x40000000, "time": 0x80}.items():
    attempt("unshare " + name, call, 272, flag)
    attempt("clone " + name, call, 56, flag | 17, 0, 0, 0, 0)
attempt("setns", call, 308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)
attempt("mount", call, 165, b"none", b"/tmp", b"tmpfs", 0, 0)
attempt("umount2", call, 166, b"/tmp", 2)
attempt("pivot_root", call, 155, b"/tmp", b"/tmp")
attempt("chroot", call, 161, b"/tmp")
attempt("open_tree", call, 428, -100, b"/", 1)
attempt("move_mount", call, 429, -1, b"", -1, b"", 0)
attempt("fsopen", call, 430, b"tmpfs", 0)
attempt("fsmount", call, 432, -1, 0, 0)
attempt("mount_setattr", call, 442, -1, b"/", 0, 0, 0)
attempt("mknod", lambda: os.mknod("device", 0o60600, os.makedev(8, 0)))
attempt("mknod null", lambda: os.mknod("null", 0o20600, os.makedev(1, 3)))
attempt("sethostname", lambda: socket.sethostname("x"))
""",
        {"EPERM"},
    ),
    "h39_clone3": ("attempt('clone3', call, 435, bytes(88), 88)", {"ENOSYS"}),
    "h40_kernel_interfaces": (
        """
empty = bytes(256)
attempt("io_uring_setup", call, 425, 8, ctypes.create_string_buffer(256))
attempt("bpf", call, 321, 0, empty, 64)
attempt("userfaultfd", call, 323, 1)
attempt("perf_event_open", call, 298, empty, 0, -1, -1, 0)
attempt("kexec_load", call, 246, 0, 0, 0, 0)
attempt("kexec_file_load", call, 320, -1, -1, 0, 0, 0)
attempt("init_module", call, 175, empty, 64, b"")
attempt("finit_module", call, 313, 0, b"", 0)
attempt("delete_module", call, 176, b"x", 0)
attempt("reboot", call, 169, 0xfee1dead, 672274793, 0x89abcdef, 0)
attempt("swapon", call, 167, b"/tmp/x", 0)
attempt("open_by_handle_at", call, 304, -100, empty, 0)
attempt("name_to_handle_at", call, 303, -100, b"/", ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0)
attempt("fanotify_init", call, 300, 0, 0)
attempt("syslog", call, 103, 3, ctypes.create_string_buffer(64), 64)
attempt("iopl", call, 172, 3)
attempt("clock_settime", call, 227, 0, bytes(16))
attempt("settimeofday", call, 164, bytes(16), 0)
attempt("adjtimex", call, 159, ctypes.create_string_buffer(256))
attempt("quotactl", call, 179, 0, b"/", 0, 0)
attempt("acct", call, 163, b"/tmp/x")
""",
        {"EPERM"},
    ),
    "h40_x32_calls": ("attempt('x32 getpid', call, 0x40000000 + 39)", {"ENOSYS"}),
    "h41_keyrings": (
        """
for name, ring in (("thread", -1), ("process", -2), ("session", -3), ("user", -4), ("user session", -5)):
    attempt("add_key " + name, call, 248, b"user", b"secret", b"SECRET", 6, ring)
    attempt("search " + name, call, 250, 10, ring, b"user", b"secret", 0)
attempt("request_key", call, 249, b"user", b"secret", b"", -3)
attempt("join session", call, 250, 1, b"shared")
""",
        {"EPERM"},
    ),
    "h43_terminal_injection": (
        """
for name, number in {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}.items():
    for offset in (0, 1 << 32, 1 << 63):  # CVE-2019-10063: the kernel takes the low 32 bits for the request
        attempt(f"{name} + {offset}", call, 16, 0, number + offset - (1 << 64 if offset == 1 << 63 else 0), b"x")
""",
        {"EPERM"},
    ),
    "h43_the_terminal": ("attempt('tty', os.open, '/dev/tty', os.O_RDWR)", {"ENXIO"}),
    "h45_own_limits": (
        """
import resource
for name in ("CPU", "DATA", "FSIZE", "NPROC", "NOFILE", "MSGQUEUE"):
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    attempt(name, call, 302, 0, kind, struct.pack("QQ", hard, hard + 1), 0)
attempt("nice", os.setpriority, os.PRIO_PROCESS, 0, -20)
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("affinity", lambda: os.sched_setaffinity(0, {0}))
attempt("oom", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"))
attempt("idle io", call, 251, 1, 0, 1 << 13)
""",
        {"EPERM", "EACCES", "EROFS"},
    ),
}


@on_every_kind
@pytest.mark.parametrize("name", KERNEL)
def test_system_calls_that_lead_outside_are_refused(kind: Kind, name: str) -> None:
    code, expected = KERNEL[name]

    assert {call: answer for call, answer in answers(kind, code).items() if answer not in expected} == {}


HONEST_CALLS = """
import ctypes, errno, fcntl, os, platform, pty, socket, struct, sys, tempfile, termios, threading, tty
libc = ctypes.CDLL(None, use_errno=True)
def call(name, arguments=()):
    answers[name] = libc[name](*arguments) >= 0 or errno.errorcode[ctypes.get_errno()]
os.sync(); os.fsync(os.open("a", os.O_CREAT | os.O_RDWR)); os.mkfifo("f"); os.truncate("a", 9)
os.posix_fallocate(os.open("a", os.O_RDWR), 0, 99); os.link("a", "b"); os.symlink("a", "c"); os.chmod("a", 0o600)
os.utime("a"); os.setxattr("a", "user.x", b"1"); os.listxattr("a"); os.statvfs("/")
os.eventfd(0); os.pidfd_open(os.getpid()); os.sched_yield(); os.getpriority(0, 0); os.waitstatus_to_exitcode(0)
os.splice(os.open("a", os.O_RDONLY), os.pipe()[1], 1); os.getrandom(4); os.times(); os.getloadavg()
fcntl.fcntl(0, fcntl.F_GETFL); fcntl.flock(os.open("a", os.O_RDWR), fcntl.LOCK_EX)
ours, theirs = pty.openpty(); termios.tcgetattr(theirs); tty.setraw(theirs); termios.tcgetwinsize(theirs)
fcntl.ioctl(ours, termios.FIONREAD, bytes(4)); os.set_blocking(ours, False)
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as one: one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
socket.if_nametoindex("lo")
threading.Thread(target=print).start(); os.posix_spawn("/bin/true", ["true"], {}); os.wait()
for name, arguments in {"personality": (0xffffffff,), "prctl": (15, b"name"), "syncfs": (1,), "sched_getcpu": (),
                        "epoll_create1": (0,), "timerfd_create": (1, 0), "close_range": (900, 901, 0)}.items():
    call(name, arguments)
answers["wrong"] = sorted(name for name, outcome in answers.items() if outcome is not True)
"""


@on_every_kind
def test_h40_calls_that_honest_programs_make_are_answered(kind: Kind) -> None:
    assert answers(kind, HONEST_CALLS)["wrong"] == []


UNKNOWN_CALLS = """
for name, number in (("seccomp", 317), ("landlock", 444), ("cachestat", 451), ("statmount", 457), ("listmount", 458),
                     ("futex2", 455), ("vmsplice", 278), ("mbind", 237), ("unknown", 471), ("far", 4000),
                     ("x32 read", 0x40000000), ("x32 bpf", 0x40000000 + 321), ("minus one", -1)):
    attempt(name, call, number, 0, 0, 0, 0, 0)
"""


@on_every_kind_and_tier
@pytest.mark.finding("system calls outside the list")
def test_h40_calls_that_no_program_needs_do_not_exist(kind: Kind) -> None:
    assert set(answers(kind, UNKNOWN_CALLS).values()) == {"ENOSYS"}


NARROWED = {
    "PR_SET_SECCOMP": ("call(157, 22, 1, 0, 0, 0)", "EINVAL"),
    "PR_SCHED_CORE": ("call(157, 62, 1, 0, 0, 0)", "EINVAL"),
    "F_NOTIFY": ("fcntl.fcntl(os.open('/usr', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)", "EINVAL"),
    "MPTCP": ("socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", "EPROTONOSUPPORT"),
    "SCTP": ("socket.socket(socket.AF_INET, socket.SOCK_SEQPACKET, 132)", "ESOCKTNOSUPPORT"),
    "SO_ATTACH_FILTER": ("socket.socket().setsockopt(socket.SOL_SOCKET, 26, bytes(16))", "ENOPROTOOPT"),
    "TIOCCONS": ("fcntl.ioctl(os.openpty()[1], 0x541D)", "EPERM"),
    "FICLONE": ("fcntl.ioctl(os.open('a', os.O_CREAT | os.O_RDWR), 0x40049409, 0)", "ENOTTY"),
    "ADDR_NO_RANDOMIZE": ("call(135, 0x40000)", "EPERM"),
    "CLONE_PARENT": ("call(56, 0x8000 | 17, 0, 0, 0, 0)", "EPERM"),
}


@on_every_kind_and_tier
@pytest.mark.parametrize("name", NARROWED)
@pytest.mark.finding("system calls outside the list")
def test_h40_calls_are_narrowed_to_what_programs_need(kind: Kind, name: str) -> None:
    action, expected = NARROWED[name]

    assert answers(kind, f"attempt('it', lambda: {action})") == {"it": expected}


@on_every_kind_and_tier
@pytest.mark.finding("system calls outside the list")
def test_h40_a_32_bit_system_call_ends_the_program(kind: Kind) -> None:
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000" "cd80" "c3"))  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

    result = service(kind).run(code)

    assert (result.status, result.signal) == (Status.SIGNALED, 31)  # SIGSYS


@on_every_kind
def test_h42_a_lock_on_a_shared_read_only_file_is_seen_by_others(kind: Kind) -> None:
    """The sandbox does not stop this within a lane, as documented: programs that cooperate can exchange bits so."""
    holder = "import fcntl, time; file = open('/usr/bin/env'); fcntl.flock(file, fcntl.LOCK_EX); time.sleep(1)"
    seeker = """
import fcntl, time
end = time.monotonic() + 0.8
while time.monotonic() < end:
    try:
        file = open("/usr/bin/env")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.close()
        time.sleep(0.01)
    except BlockingIOError:
        print("held")
        break
"""

    _, *results = service(kind).run_many([Program(code=code, limits=SMALL) for code in (holder, *[seeker] * 5)])

    assert "held\n" in [result.stdout for result in results]


@on_every_kind
def test_h44_no_program_gains_rights(kind: Kind) -> None:
    code = """
import subprocess
def status(command):
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return dict(line.split(":\\t") for line in lines if line.startswith(("Cap", "NoNewPrivs", "Seccomp:", "Uid")))
answers["self"] = status(["cat", "/proc/self/status"])
answers["su"] = subprocess.run(["su", "-c", "id -u"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
setuid = [entry.path for entry in os.scandir("/usr/bin") if entry.is_file() and entry.stat().st_mode & 0o6000]
answers["found"] = len(setuid)
for path in setuid:
    attempt(path, lambda: os.stat(path).st_uid)
attempt("setuid 0", os.setuid, 0)
attempt("setgid 0", os.setgid, 0)
attempt("setgroups", os.setgroups, [0])
"""

    found = answers(kind, code)

    none = "0000000000000000"
    status = found.pop("self")
    assert status == {
        "CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
        "NoNewPrivs": "1", "Seccomp": "2", "Uid": "1000\t1000\t1000\t1000",
    }  # fmt: skip
    assert found.pop("su") == ""
    assert {found.pop(name) for name in ("setuid 0", "setgid 0", "setgroups")} <= {"EPERM", "EINVAL"}
    found.pop("found")
    assert 1000 not in found.values()
    assert set(found.values()) <= {65534}  # their owner has no id in the sandbox, so setuid does nothing


def test_h44_a_service_started_by_root_is_root_no_longer() -> None:
    if not IS_ROOT:
        pytest.skip(f"only root can start a service as root, and this is uid {os.geteuid()}")
    running = service(Kind.BY_ROOT)
    family = [running.pid, *descendants(running.pid)]

    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in family]

    assert len(family) > 5
    waiting = [set(text.splitlines()) for text in statuses if "\nUid:\t0\t" in text]
    assert len(waiting) <= 1  # one process of root waits to remove the control groups at the end
    assert all({"CapPrm:\t0000000000000002", "CapEff:\t0000000000000002", "NoNewPrivs:\t1"} <= each for each in waiting)
    assert {
        line for line in statuses[0].splitlines() if line.startswith(("CapPrm", "CapEff", "NoNewPrivs", "Groups"))
    } == {
        *("CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Groups:\t "),
    }


@pytest.mark.parametrize("kind", [Kind.BY_ROOT, Kind.BWRAP_EXEC_BY_ROOT])
@pytest.mark.finding("secrets of the service")
def test_h34_of_roots_environment_nothing_is_in_the_processes_of_an_ordinary_user(kind: Kind) -> None:
    """Another service may run under the same uid, and its processes can read /proc/PID/environ."""
    if not IS_ROOT:
        pytest.skip(f"only root can start a service as root, and this is uid {os.geteuid()}")
    running = service(kind)
    family = [running.pid, *descendants(running.pid)]
    ordinary = [pid for pid in family if os.stat(f"/proc/{pid}").st_uid != 0]

    environments = [Path(f"/proc/{pid}/environ").read_bytes().decode() for pid in ordinary]

    assert len(ordinary) > (5 if kind is Kind.BY_ROOT else 0)
    assert [text for text in environments if re.search(CANARY, text) or running.token in text] == []
    assert all(running.token not in Path(f"/proc/{pid}/cmdline").read_text() for pid in ordinary)


@on_every_kind
@pytest.mark.finding("descriptors of the service")
def test_h46_a_program_holds_its_three_streams_and_nothing_else(kind: Kind) -> None:
    code = """
answers["open"] = [fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{fd}")]
answers["targets"] = [os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in answers["open"]]
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    answers["error"] = errno.errorcode[error.errno]
answers["count"] = len(held)
for fd in held: os.close(fd)
"""

    found = answers(kind, code, stdin="x")

    assert found["open"] == [0, 1, 2]
    assert found["targets"][1:] == ["pipe", "pipe"]  # type: ignore[index]
    assert (found["error"], found["count"]) == ("EMFILE", 256 - 3)


OPEN = """
import os
for fd in range(3, 256):
    try: print(fd, os.fstat(fd))
    except OSError: pass
"""
OPEN_IN_A_COMMAND = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {OPEN!r}], close_fds=False)"


@on_every_kind_and_tier
@pytest.mark.parametrize("code", [OPEN, OPEN_IN_A_COMMAND], ids=["itself", "a command that it starts"])
@pytest.mark.finding("descriptors of the service")
def test_h46_nothing_else_is_open_in_a_program_or_what_it_starts(kind: Kind, code: str) -> None:
    assert service(kind).output(code) == ""


@on_zygotes
def test_h46_a_session_holds_one_more_which_speaks_for_itself_alone(kind: Kind) -> None:
    import asyncio

    async def main() -> None:
        async with service(kind).client() as sandbox, await sandbox.open(limits=SMALL) as session:
            code = "import os; [fd for fd in range(1024) if os.path.exists(f'/proc/self/fd/{fd}')]"
            held = json.loads((await session.run(code)).value or "")
            assert held[:4] == [0, 1, 2, 3]
            assert len(held) <= 5  # the fifth carries this cell's answer

    asyncio.run(main())


OWN_NETWORK = """
import os, socket, sys, time
server = socket.socket()
server.bind(("0.0.0.0", 8000))
server.listen()
named = socket.socket(socket.AF_UNIX)
named.bind("\\0name-" + sys.argv[1])
time.sleep(1.0)
names = [line.split()[-1] for line in open("/proc/net/unix") if "@" in line]
print(names, sum(1 for _ in open("/proc/net/tcp")) - 1)
"""


@on_every_kind
@pytest.mark.parametrize("network", [each for each in Network if each is not Network.PROXY])
@pytest.mark.finding("ports, sockets and open files of others")
def test_h37_programs_take_the_same_port_and_see_their_own_sockets_alone(kind: Kind, network: Network) -> None:
    names = [str(number) for number in range(6)]

    results = service(kind).run_many(
        [Program(code=OWN_NETWORK, args=(name,), network=network, limits=Limits(wall_seconds=20.0)) for name in names]
    )

    assert [result.stdout for result in results] == [f"['@name-{name}'] 1\n" for name in names]


@pytest.mark.finding("ports, sockets and open files of others")
def test_h37_a_network_that_was_used_before_holds_nothing_of_that() -> None:
    leaver = """
import os, socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(50)]
for number, each in enumerate(held): each.bind(f"\0{number}"); each.listen()
left, right = socket.socketpair()
socket.send_fds(left, [b"x"], [left.fileno(), right.fileno(), held[0].fileno()])  # a circle, which only the kernel ends
if os.fork() == 0:
    os.setsid()
    while True: socket.socket(socket.AF_UNIX)
"""
    finder = "print(sum(1 for _ in open('/proc/net/unix')), open('/proc/net/sockstat').readline())"
    running = service()
    running.run_many([Program(code=leaver, limits=SMALL)] * 40)

    found = {result.stdout for result in running.run_many([Program(code=finder, limits=SMALL)] * 40)}

    assert found == {"1 sockets: used 0\n\n"}


def test_h37_a_shared_network_is_shared_and_still_leads_nowhere() -> None:
    running = start_service(Kind.ZYGOTE, "--shared-network", lanes=1)
    try:
        holder = "import socket, time\nserver = socket.socket()\nserver.bind(('0.0.0.0', 8000))\ntime.sleep(1.5)"
        late = "import socket, time\ntime.sleep(0.7)\nserver = socket.socket()\n"
        late += "print(server.connect_ex(('127.0.0.1', 8000)))"
        late += "\ntry:\n    server.bind(('0.0.0.0', 8000))\nexcept OSError as error: print(error.strerror)"
        results = running.run_many([Program(code=code, limits=SMALL) for code in (holder, late)])
        assert results[1].stdout == "101\nAddress already in use\n"  # ENETUNREACH
    finally:
        running.stop()


TERMINALS = """
import os, sys, time
names = []
for name in sorted(os.listdir("/dev/pts")):
    if name != "ptmx":
        names.append(name)
        fd = os.open(f"/dev/pts/{name}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(fd, b"INJECTED")
print(names)
"""


@on_every_kind_and_tier
@pytest.mark.parametrize("how", ["os.openpty()", "__import__('pty').fork()", "os.open('/dev/ptmx', os.O_RDWR)"])
@pytest.mark.finding("terminals of others")
def test_h31_the_terminals_of_other_programs_do_not_exist(kind: Kind, how: str) -> None:
    victim = f"import os, time\nheld = {how}\ntime.sleep(2.0)\nprint(len(os.listdir('/dev/pts')))"
    codes = [victim] * 3 + [f"import time; time.sleep(1.0)\n{TERMINALS}"] * 3

    results = service(kind).run_many([Program(code=code, limits=Limits(wall_seconds=20.0)) for code in codes])

    assert [result.stdout for result in results] == ["2\n"] * 3 + ["[]\n"] * 3


@on_zygotes
@pytest.mark.finding("terminals of others")
def test_h31_a_program_that_takes_every_terminal_takes_its_own(kind: Kind) -> None:
    greedy = """
import os, time
held = []
try:
    while True:
        held += os.openpty()
except OSError as error:
    print(len(held) // 2, error.strerror, flush=True)
time.sleep(1.0)
"""
    honest = "import os, time\ntime.sleep(0.5)\nos.openpty()\nprint('mine')"
    limits = Limits(wall_seconds=20.0, num_open_files=1024)

    results = service(kind).run_many([Program(code=code, limits=limits) for code in [greedy] * 2 + [honest] * 4])

    assert [result.stdout for result in results] == ["32 No space left on device\n"] * 2 + ["mine\n"] * 4


def test_h31_a_terminal_works_as_on_any_machine() -> None:
    code = """
import os, pty, subprocess
ours, theirs = os.openpty()
done = subprocess.run("tty; stty size; echo out", shell=True, stdin=theirs, stdout=theirs, stderr=theirs)
shown = b""
while b"out" not in shown:
    shown += os.read(ours, 1000)
print(os.ttyname(theirs), done.returncode, shown.split())
"""

    assert service().output(code) == "/dev/pts/0 0 [b'/dev/pts/0', b'0', b'0', b'out']\n"
