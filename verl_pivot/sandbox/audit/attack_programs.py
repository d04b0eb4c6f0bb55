"""Programs of `verl-pivot sandbox audit`: each is bounded in time, processes and bytes, and ends by itself."""

PROLOGUE = """
import ctypes, errno, fcntl, mmap, os, re, resource, signal, socket, struct, sys, time
NUMBERS = {numbers}
PORT = {port}
SECRET = re.compile(b"canar[y]-[0-9a-f]{{32}}")
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    number = NUMBERS[name] if isinstance(name, str) else name
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    outcome = libc.syscall(ctypes.c_long(number), *words)
    if outcome < 0:
        raise OSError(ctypes.get_errno(), name)
    return outcome
def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except (OSError, ValueError, MemoryError):
        return
    print(what, flush=True)
def read(path, size=1 << 16):
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""
"""
"""Beginning of each attack; `numbers` are the numbers of system calls, `port` is the port of the service."""

PROCESSES = """
for pid in (name for name in os.listdir("/proc") if name.isdigit()):
    if int(pid) not in (1, os.getpid()) and read(f"/proc/{pid}/cmdline"):
        print("sees process", pid, read(f"/proc/{pid}/cmdline")[:60])
for name in ("environ", "mem", "maps", "root/etc/passwd"):
    attempt(f"opens /proc/1/{name}", open, f"/proc/1/{name}", "rb")
for pid in range(2, 1000):  # 1 is the pod's own, which the kernel protects
    if pid != os.getpid(): attempt(f"ends process {pid}", os.kill, pid, 9)
attempt("attaches to process 1", call, "ptrace", 16, 1, 0, 0)
attempt("reads the memory of process 1", call, "process_vm_readv", 1, bytes(16), 1, bytes(16), 1, 0)
"""
SECRETS = """
places = {"environment": repr(os.environ).encode()}
for folder in ("/proc", "/tmp", "/etc", "/home", "/root", "/run", "/var", "/dev/shm"):
    for base, folders, files in os.walk(folder):
        if base.count("/") > 4: folders.clear()
        for name in files:
            path = os.path.join(base, name)
            if name not in ("kmsg", "kcore", "mem", "pagemap", "kpagecount") and os.path.isfile(path):
                places[path] = read(path) + path.encode()
for place, content in places.items():
    if SECRET.search(content): print("finds a secret of the service in", place)
"""
WRITES = """
folders = ["/", "/usr", "/usr/bin", "/etc", "/home", "/root", "/var/tmp", "/dev", "/run", "/proc/sys/kernel", "/sys"]
for folder in [*folders, sys.prefix, sys.base_prefix]:
    attempt(f"writes below {folder}", open, os.path.join(folder, "audit-file"), "x")
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/etc/passwd", sys.executable, os.__file__):
    attempt(f"opens {path} for writing", open, path, "r+b")
"""
NETWORK = """
def reach(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, kind) as client:
        client.settimeout(0.3)
        try:
            client.connect(address)
        except TimeoutError:
            return  # the packet left
for address in (("127.0.0.1", PORT), ("0.0.0.0", PORT), ("::1", PORT), ("1.1.1.1", 53), ("169.254.169.254", 80),
                ("192.168.0.1", 80), ("10.0.0.1", 80), ("2606:4700:4700::1111", 53)):
    attempt(f"reaches {address[0]} port {address[1]}", reach, address)
"""
RIGHTS = """
attempt("becomes root", os.setuid, 0)
for name, arguments in {
    "unshare": (0x10000000,), "clone": (0x10000000 | 17, 0, 0, 0, 0), "clone3": (bytes(88), 88), "setns": (0, 0),
    "mount": (b"none", b"/tmp", b"tmpfs", 0, 0), "umount2": (b"/proc", 2), "pivot_root": (b"/tmp", b"/tmp"),
    "chroot": (b"/tmp",), "open_tree": (-100, b"/", 1), "fsopen": (b"tmpfs", 0), "bpf": (0, bytes(64), 64),
    "io_uring_setup": (8, ctypes.create_string_buffer(256)), "userfaultfd": (1,),
    "perf_event_open": (bytes(128), 0, -1, -1, 0), "add_key": (b"user", b"k", b"v", 1, -3), "keyctl": (1, b"s"),
    "init_module": (bytes(64), 64, b""), "kexec_load": (0, 0, 0, 0), "open_by_handle_at": (-100, bytes(256), 0),
    "fanotify_init": (0, 0), "memfd_create": (b"m", 0), "landlock_create_ruleset": (bytes(8), 8, 0),
    "personality": (0x40000,), "acct": (b"/tmp/x",), "swapon": (b"/tmp/x", 0), "clock_settime": (0, bytes(16)),
}.items():
    attempt(f"system call {name}", call, name, *arguments)
attempt("its own filter of system calls", call, "prctl", 22, 2, bytes(16))
attempt("a child of its own parent", call, "clone", 0x8000 | 17, 0, 0, 0, 0)
"""
UNKNOWN = """
for number in (*range(471, 700), 0x40000000, 0x40000000 + 321):
    try:
        call(number, 0, 0, 0, 0, 0, 0)
    except OSError as error:
        if error.errno == errno.ENOSYS: continue
    print("system call", number, "is there")
"""
FOREIGN_CALLS = """
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000" "cd80" "c3"))  # mov eax, 20 (getpid); int 0x80; ret
if os.uname().machine == "x86_64":
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    print("makes a 32-bit system call")
os.kill(os.getpid(), signal.SIGSYS)
"""
SOCKETS = """
for family in range(3, 50):
    if family != 10: attempt(f"socket of family {family}", call, "socket", family, 3, 0)
    attempt(f"pair of sockets of family {family}", call, "socketpair", family, 3, 0, ctypes.create_string_buffer(8))
for kind, protocol in ((5, 132), (1, 132), (1, 262), (6, 33), (3, 255), (2, 136)):
    attempt(f"socket of protocol {protocol}", socket.socket, 2, kind, protocol)
attempt("filter of a socket", lambda: socket.socket().setsockopt(1, 26, bytes(16)))
"""
TERMINALS = """
time.sleep(0.7)
for name in os.listdir("/dev/pts"):
    if name != "ptmx":
        print("finds terminal", name)
        fd = os.open(f"/dev/pts/{name}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(fd, b"INJECTED")
ours, theirs = os.openpty()
for request in (0x5412, 0x541C, 0x541D, 0x5423):
    attempt(f"terminal request {request:#x}", fcntl.ioctl, theirs, request, b"x")
"""
HONEST_TERMINAL = """
ours, theirs = os.openpty()
time.sleep(1.4)
os.set_blocking(ours, False)
try:
    print("disturbed by", os.read(ours, 100))
except BlockingIOError:
    print("fine")
"""
ALL_TERMINALS = """
held = []
try:
    while len(held) < 400: held += os.openpty()
except OSError:
    pass
time.sleep(1.2)
"""
PORTS = """
time.sleep(0.7)
for name in ("unix", "tcp", "udp"):
    for line in read(f"/proc/net/{name}").splitlines()[1:]: print(f"sees in /proc/net/{name}:", line[-40:].decode())
own = socket.socket()
try:
    own.bind(("0.0.0.0", 8000))
except OSError as error:
    print("finds port 8000 taken:", error.strerror)
"""
HONEST_PORT = """
own, named = socket.socket(), socket.socket(socket.AF_UNIX)
own.bind(("0.0.0.0", 8000)); own.listen(); named.bind("\\0honest-%d" % time.monotonic_ns()); named.listen()
time.sleep(1.2)
print("fine")
"""
COUNTERS = """
for number in range(200): attempt("inotify", call, "inotify_init1", 0)
attempt("asynchronous I/O", call, "io_setup", 65520, ctypes.create_string_buffer(8))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
num = 0
while num < 5000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0: num += 1
if num > 2000: print("queues", num, "signals")
time.sleep(1.0)
"""
HONEST_COUNTERS = """
time.sleep(0.5)
timer = ctypes.c_int()
print("fine" if libc.timer_create(1, None, ctypes.byref(timer)) == 0 else "has no timer")
"""
DESCRIPTORS_IN_FLIGHT = """
left, right = socket.socketpair()
right.setblocking(False); left.setblocking(False)
pairs = [socket.socketpair() for _ in range(60)]
for ours, theirs in pairs:
    ours.setblocking(False)
    try:
        while True: socket.send_fds(ours, [b"x"], [0] * 250)
    except OSError:
        pass
time.sleep(1.2)
"""
HONEST_DESCRIPTORS = """
time.sleep(0.6)
left, right = socket.socketpair()
socket.send_fds(left, [b"x"], [0])
print("fine")
"""
TREE = """
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(40 << 20)
        held[::4096] = b"x" * (40 << 20 >> 12)
        time.sleep(3.0)
        print("holds 40 MiB", flush=True)
        os._exit(0)
for _ in range(8): os.wait()
"""
PAGE_TABLES = """
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(100 << 30), 1, 0x4022, -1, ctypes.c_long(0))
libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(100 << 30), 15)
for offset in range(0, 100 << 30, 2 << 20): ctypes.c_char.from_address(start + offset).value
time.sleep(2.0)
print("holds 200 MiB of page tables")
"""
SHARED_MAPS = """
libc.mmap.restype = ctypes.c_void_p
for _ in range(40):
    start = libc.mmap(None, ctypes.c_size_t(16 << 20), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(start, 1, 16 << 20)
    libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t((16 << 20) - 4096))
time.sleep(0.5)
print("holds 640 MiB, of which 160 KiB can be seen")
"""
BUFFERS = """
for _ in range(3):
    if os.fork() == 0: break
held, size = [], 0
try:
    while len(held) < 120:
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        for each in held[-1]:
            each.setblocking(False)
            try:
                while True: size += each.send(bytes(1 << 16))
            except BlockingIOError:
                pass
except OSError:
    pass
time.sleep(2.0)
if size > 16 << 20: print("holds", size >> 20, "MiB of socket buffers")
"""
FORKS = """
end = time.monotonic() + 1.5
num = 0
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            time.sleep(3.0)
            os._exit(0)
        num += 1
    except OSError:
        time.sleep(0.05)
if num > 64: print("starts", num, "processes")
"""
HONEST_FORKS = """
import threading
time.sleep(0.5)
threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(4)]
for each in threads: each.start()
if os.fork() == 0: os._exit(0)
os.wait()
print("fine")
"""
FILES = """
size, num = 0, 0
try:
    with open("large", "wb") as file:
        while size < 200 << 20: size += file.write(bytes(1 << 20))
except OSError:
    pass
os.remove("large")
if size > 80 << 20: print("writes", size >> 20, "MiB to /tmp")
try:
    while num < 20000:
        os.close(os.open(f"file{num}", os.O_CREAT)); num += 1
except OSError:
    pass
if num > 8000: print("makes", num, "files")
"""
OUTPUT = "while True: os.write(1, b'x' * 65536)"
NO_RESULT = """
open("a", "w").write("a")
for action in (lambda: os.chmod("/tmp", 0), lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))):
    try: action()
    except OSError: pass
"""
PRIORITY = """
for kind in ("CPU", "DATA", "FSIZE", "NPROC", "NOFILE"):
    which = getattr(resource, "RLIMIT_" + kind)
    hard = resource.getrlimit(which)[1]
    attempt(f"raises RLIMIT_{kind}", resource.setrlimit, which, (hard, hard + 1))
attempt("raises its priority", os.setpriority, os.PRIO_PROCESS, 0, -20)
attempt("asks for real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
attempt("gives up its share of a core", os.sched_setscheduler, 0, os.SCHED_IDLE, os.sched_param(0))
attempt("chooses its cores", lambda: os.sched_setaffinity(0, {0}))
attempt("keeps others off the second half of a core", call, "prctl", 62, 1, 0, 0, 0)
"""
SPARED = """
def ask(): os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"0")
attempt("asks to be spared when memory runs out", ask)
"""
LOCKS = """
time.sleep(0.5)
try:
    fcntl.flock(os.open("/usr/bin/env", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("sees another program's lock on /usr/bin/env")
"""
HOLDS_LOCK = """
held = os.open("/usr/bin/env", os.O_RDONLY)
try: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError: pass
time.sleep(1.0)
print("fine")
"""
MOUNTS = """
for line in read("/proc/self/mountinfo").decode().splitlines():
    mount, _, kind = line.partition(" - ")
    root, place = mount.split()[3:5]
    is_own = kind.split()[0] in ("tmpfs", "devtmpfs", "proc", "devpts")  # made for the sandbox, or devices
    if root != "/" and not is_own: print(f"{place} is {root} of the machine")
"""
WATCHES = """
attempt("watches /usr/bin by F_NOTIFY", lambda: fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), 1026, 1))
for name in ("inotify_init1", "fanotify_init"): attempt(f"watches by {name}", call, name, 0, 0)
attempt("sees which pages others have read", call, "cachestat", 0, bytes(16), bytes(40), 0)
"""
